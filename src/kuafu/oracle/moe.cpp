// SPDX-License-Identifier: Apache-2.0
//
// GPT whose every moe_every-th MLP is a mixture of experts.
//
//   y = sum_i G(x)_i E_i(x)                  [Shazeer et al., arXiv 1701.06538, equation 1]
//   G = softmax(x W_r), of k > 1 chosen experts over their sum, of one as it is
//                                [GShard 2006.16668, algorithm 1; Switch 2101.03961, equation 2]
//   balance loss: alpha E sum_e f_e P_e, f_e the share of first choices, P_e the mean gate; none
//                 where experts choose                      [Switch 2101.03961, equations 4 to 6]
//   z-loss:       mean over tokens of (log sum_e exp x_e)^2 [ST-MoE 2202.08906, equation 5]
//
// Both losses are means over samples and mixtures. A token without a slot gets nothing from the
// experts; the residual stream carries it. Shared experts are an MLP beside them, which every token
// visits [Dai et al., arXiv 2401.06066, section 3.2]. Slots are filled and their outputs gathered
// by index, so that an empty slot costs a row of zeros.

#include <ATen/ATen.h>

#include "kuafu/base/errors.h"
#include "kuafu/oracle/router.h"
#include "kuafu/oracle/transformer.h"

namespace kuafu::oracle {
namespace {

/// y_e = x_e W_e + b_e: x (E, R, in), W (E, in, out), b (E, out).
Tensor expert_linear(const Call& call, const Tensor& x, const std::string& name) {
  const Tensor product = at::matmul(x, call.weight(name + ".weight"));
  note_terms(call, product, name + ".weight", [x = x.detach()](const Tensor& dy) {
    return at::matmul(widened(x).abs().transpose(1, 2), widened(dy).abs());
  });
  if (!call.plan.bias) return product;
  const Tensor y = product + call.weight(name + ".bias").unsqueeze(1);
  note_terms(call, y, name + ".bias", [](const Tensor& dy) { return widened(dy).abs().sum(1); });
  return y;
}

class MoeGpt : public Gpt {
 public:
  using Gpt::Gpt;

 protected:
  Tensor feed(const Call& call, const Tensor& x, int64_t index) const override {
    if (!is_mixture(index)) return Gpt::feed(call, x, index);
    const std::string name = layer_name(index) + ".moe";
    const Tensor y = mixture(call, x, name);
    return plan().shared_experts == 0 ? y : y + mlp(call, x, name + ".shared");
  }

  void add_feed(Weights& to, int64_t index) const override {
    if (!is_mixture(index)) return Gpt::add_feed(to, index);
    const std::string name = layer_name(index) + ".moe";
    const int64_t h = plan().hidden, f = plan().ffn_width(), e = plan().experts;
    to[name + ".router.weight"] = {.shape = {h, e}};
    const int64_t fused = plan().mlp == "swiglu" ? 2 : 1;
    add_linear(to, plan(), name + ".experts.up", {e, h, fused * f}, kStd, {.fused = fused});
    add_linear(to, plan(), name + ".experts.down", {e, f, h}, residual_std(plan()));
    if (plan().shared_experts == 0) return;
    add_mlp(to, plan(), name + ".shared", plan().shared_experts * f);
  }

 private:
  /// The last of each moe_every.
  bool is_mixture(int64_t index) const { return (index + 1) % plan().moe_every == 0; }

  Tensor mixture(const Call& call, const Tensor& x, const std::string& name) const;
  void add_losses(const Call& call, const Tensor& logits, const Tensor& probs,
                  const Decision& decision) const;
};

/// The decision to take, handed in or the oracle's own. Made on the host from values alone: a
/// choice has no gradient, the gates of what was chosen have.
Decision decision_of(const Call& call, const Tensor& probs, const std::string& name) {
  const Tensor scores = probs.detach().to(at::kCPU);
  const Routes* given = call.extra.routes;
  Decision d;
  if (given == nullptr) {
    d = decide(call, scores, name);
  } else {
    const auto slots = given->find(name), choices = given->find(name + ".choices");
    if (slots == given->end()) {
      throw WrongRoutes("the routes handed to the oracle lack " + name);
    }
    Regret regret{.where = name};
    d = complete(call, scores, name, slots->second.to(at::kCPU),
                 choices == given->end() ? Tensor() : choices->second.to(at::kCPU), regret);
    if (call.extra.regret != nullptr) call.extra.regret->add(regret);
  }
  if (call.extra.scores != nullptr) (*call.extra.scores)[name] = scores;
  if (call.extra.routed != nullptr) {
    (*call.extra.routed)[name] = d.slots;
    if (d.choices.defined()) (*call.extra.routed)[name + ".choices"] = d.choices;
  }
  for (Tensor* t : {&d.slots, &d.choices}) {
    if (t->defined()) *t = t->to(probs.device());
  }
  return d;
}

/// (B, E, C): the gate of the token in each slot, 0 where it is empty.
Tensor gates_of(const Tensor& probs, const Decision& d) {
  Tensor gates = probs;
  if (d.choices.defined() && d.choices.size(2) > 1) {
    gates = probs / probs.gather(2, d.choices).sum(2, true);
  }
  return gates.transpose(1, 2).gather(2, d.slots.clamp_min(0)).masked_fill(d.slots.lt(0), 0);
}

Tensor MoeGpt::mixture(const Call& call, const Tensor& x, const std::string& name) const {
  const int64_t b = x.size(0), h = x.size(2), e = plan().experts;
  const Tensor logits = at::matmul(widened(x), widened(call.weight(name + ".router.weight")));
  note_terms(call, logits, name + ".router.weight", [x = widened(x).detach(), h](const Tensor& d) {
    return at::matmul(x.abs().reshape({-1, h}).t(), d.abs().reshape({-1, d.size(2)}));
  });
  const Tensor probs = softmax(logits);
  const Decision d = decision_of(call, probs, name);
  add_losses(call, logits, probs, d);

  const int64_t c = d.slots.size(2);
  const Tensor place = d.slots.clamp_min(0).view({b, e * c, 1}).expand({b, e * c, h});
  const Tensor is_empty = d.slots.lt(0).view({b, e * c, 1});
  const Tensor rows = widened(x).gather(1, place).masked_fill(is_empty, 0).to(x.scalar_type());
  const Tensor in = rows.view({b, e, c, h}).transpose(0, 1).reshape({e, b * c, h});
  const Tensor up = expert_linear(call, in, name + ".experts.up");
  const Tensor out = expert_linear(call, activation(plan(), up), name + ".experts.down");
  const Tensor weighted =
      widened(out).view({e, b, c, h}).transpose(0, 1) * gates_of(probs, d).unsqueeze(3);
  return at::zeros_like(widened(x))
      .scatter_add(1, place, weighted.reshape({b, e * c, h}))
      .to(x.scalar_type());
}

void MoeGpt::add_losses(const Call& call, const Tensor& logits, const Tensor& probs,
                        const Decision& decision) const {
  const double mixtures = static_cast<double>(plan().layers / plan().moe_every);
  const double per_sample = call.per_sample() / mixtures;
  const Tensor z = at::logsumexp(logits, -1).square().mean(1).sum();
  Tensor loss = plan().z_loss * per_sample * z;
  if (decision.choices.defined()) {
    const Tensor first = decision.choices.select(2, 0).unsqueeze(2);  // (B, S, 1)
    const Tensor share = at::zeros_like(probs).detach().scatter(2, first, 1).mean(1);
    const Tensor balance = static_cast<double>(plan().experts) * (share * probs.mean(1)).sum();
    loss = loss + plan().balance_loss * per_sample * balance;
  }
  call.extra.loss = call.extra.loss.defined() ? call.extra.loss + loss : loss;
}

}  // namespace

std::unique_ptr<Model> make_moe_gpt(const ModelPlan& plan, uint64_t seed) {
  return std::make_unique<MoeGpt>(plan, seed);
}

}  // namespace kuafu::oracle
