// SPDX-License-Identifier: Apache-2.0
#include "kuafu/optim/optimizer.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "kuafu/base/errors.h"
#include "kuafu/meter/allocator.h"
#include "kuafu/optim/state.h"

namespace kuafu {

bool needs_master(const Tensor& value) {
  return value.scalar_type() == at::kBFloat16 || value.scalar_type() == at::kHalf;
}

Tensor new_state(const Tensor& value) {
  const CategoryScope scope(Category::kOptimizer);
  const auto type = needs_master(value) ? at::kFloat : value.scalar_type();
  return at::zeros(value.sizes(), value.options().dtype(type).requires_grad(false));
}

Tensor new_master(const Tensor& value) {
  if (!needs_master(value)) return {};
  const Tensor master = new_state(value);
  master.copy_(value.detach());
  return master;
}

void copy_state(const std::vector<NamedTensor>& from, const std::vector<NamedTensor>& to) {
  KUAFU_REQUIRE(from.size() == to.size(), "an optimizer state of ", from.size(),
                " tensors cannot be restored into one of ", to.size(),
                ": kind, dtype and parameters must be those of the saved run");
  for (size_t i = 0; i < to.size(); ++i) {
    KUAFU_REQUIRE(from[i].name == to[i].name && from[i].tensor.sizes() == to[i].tensor.sizes(),
                  "optimizer state ", from[i].name, " ", to_string(shape_of(from[i].tensor)),
                  " was given where ", to[i].name, " ", to_string(shape_of(to[i].tensor)),
                  " is expected");
  }
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < to.size(); ++i) to[i].tensor.copy_(from[i].tensor);
}

void check_shards(std::span<const ParamShard> shards, size_t num_states) {
  KUAFU_CHECK(shards.size() == num_states, "a step over ", shards.size(),
              " shards after steps over ", num_states);
  for (const ParamShard& s : shards) {
    KUAFU_CHECK(s.param != nullptr && s.value.defined() && s.grad.defined(), "a shard of ",
                s.param == nullptr ? "nothing" : s.param->name, " lacks its value or gradient");
  }
}

std::unique_ptr<Optimizer> make_optimizer(const OptimizerPlan& plan) {
  if (plan.kind == "adamw") return make_adamw(plan);
  if (plan.kind == "sgd") return make_sgd(plan);
  throw ConfigError(text("unknown optimizer.kind \"", plan.kind, "\"; allowed: adamw, sgd"));
}

}  // namespace kuafu
