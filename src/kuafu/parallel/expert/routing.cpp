// SPDX-License-Identifier: Apache-2.0
#include "kuafu/parallel/expert/routing.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>

#include "kuafu/base/philox.h"
#include "kuafu/meter/book.h"
#include "kuafu/tensor/differentiable.h"
#include "kuafu/tensor/root_gradient.h"
#include "kuafu/tensor/scale.h"

namespace kuafu {

int64_t choices_of_token(const ModelPlan& plan) {
  if (plan.router == "top1") return 1;
  if (plan.router == "top2") return std::min<int64_t>(2, plan.experts);
  return plan.router == "topk" ? plan.top_k : 0;
}

int64_t expert_capacity(const ModelPlan& plan) {
  const int64_t k = std::max<int64_t>(1, choices_of_token(plan));
  const double share = plan.capacity_factor * static_cast<double>(k * plan.sequence) /
                       static_cast<double>(plan.experts);
  // A product that is whole but for its rounding is whole: 1.1 * 10 is 11 slots.
  const double slots = std::ceil(share * (1 - 1e-12));
  if (slots >= static_cast<double>(plan.sequence)) return plan.sequence;
  return std::max<int64_t>(1, static_cast<int64_t>(slots));
}

Routed route(const Tensor& logits, const ops::RouteSpec& spec, ops::LossWeights weights) {
  ops::RouteOut out;
  const Forward forward = [&](const Tensors& in) -> ForwardResult {
    out = ops::route(in[0], spec);
    const Tensor loss = out.losses[0].clone();
    scale(loss, weights.balance);
    loss.add_(out.losses[1], weights.z);
    return {{out.gates, loss},
            {out.gates, out.token, out.probs, out.lse, out.norm, out.chosen, out.share}};
  };
  const Backward backward = [weights](const Tensors& saved, const Tensors& grads,
                                      const std::vector<bool>&) -> Tensors {
    const ops::RouteOut kept = {.gates = saved[0],
                                .token = saved[1],
                                .probs = saved[2],
                                .lse = saved[3],
                                .norm = saved[4],
                                .chosen = saved[5],
                                .share = saved[6]};
    // The loss is a root of the block's backward call: its gradient is root_gradient() by
    // construction.
    const Tensor dgates = grads[0].defined() ? grads[0] : at::zeros_like(kept.gates);
    const double root = root_gradient();
    const ops::LossWeights scaled = {.balance = weights.balance * root, .z = weights.z * root};
    const auto active = grads[1].defined() ? scaled : ops::LossWeights{};
    return {ops::route_backward(dgates, kept, active)};
  };
  const Tensors made = differentiable({logits}, forward, backward);
  return {.gates = made[0],
          .loss = made[1],
          .token = out.token,
          .counts = out.counts,
          .chosen = out.chosen};
}

Tensor coins(const CoinKey& key, int64_t samples, int64_t sequence, at::Device device) {
  const auto options = at::TensorOptions(at::kDouble);
  if (device.is_meta()) return at::empty({samples, sequence}, options.device(device));
  const Tensor u = at::empty({samples, sequence}, options);
  const uint64_t stream = key.site + 0x9e3779b97f4a7c15 * static_cast<uint64_t>(key.step + 1);
  const CounterRandom random(key.seed, stream);
  double* out = u.mutable_data_ptr<double>();
  for (int64_t i = 0; i < samples * sequence; ++i) {
    out[i] = random.uniform(static_cast<uint64_t>(key.first_sample * sequence + i));
  }
  return u.to(device);
}

void RouterTally::add(const Routed& routed, int64_t step, int64_t first_sample) {
  if (step != last_step_) {
    seen_.clear();
    routes_.clear();
  }
  if (!seen_.insert(first_sample).second) return;
  const at::NoGradGuard no_grad;
  const BookScope unbooked(nullptr);
  if (is_empty() || step != last_step_) by_step_.push_back(at::zeros_like(routed.counts));
  last_step_ = step;
  by_step_.back().add_(routed.counts);
  if (keeps_routes_) {
    routes_.push_back({first_sample, routed.token.clone(), routed.chosen.clone()});
  }
}

Tensor RouterTally::counts() const { return at::stack(by_step_); }

}  // namespace kuafu
