// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "kuafu/plan/kind_names.h"
#include "kuafu/plan/plan.h"

namespace kuafu {

const std::vector<OptimizerKind>& builtin_optimizer_kinds() {
  static const std::vector<OptimizerKind> kinds = {
      {optimizer_kinds::kAdamW,
       "Adam, which decays the weight itself",
       {"beta1", "beta2", "epsilon", "correction_in"}},
      {optimizer_kinds::kSgd,
       "stochastic gradient descent with momentum",
       {"momentum", "nesterov", "dampening"}},
      {optimizer_kinds::kAdam,
       "Adam, which decays through its gradient",
       {"beta1", "beta2", "epsilon", "correction_in"}},
      {optimizer_kinds::kLars,
       "SGD whose rate in each layer follows the norms of weights and gradients",
       {"momentum", "coefficient", "bound", "ratio_min", "ratio_max", "rate_in", "denominator"},
       true},
      {optimizer_kinds::kLamb,
       "Adam whose step in each layer is as long as its weights",
       {"beta1", "beta2", "epsilon", "bias_correction", "correction_in", "bound", "ratio_min",
        "ratio_max", "scaled_layers"},
       true},
      {optimizer_kinds::kMuon,
       "momentum of hidden matrices made orthogonal, AdamW of all else",
       {"momentum", "nesterov", "adam_lr", "beta1", "beta2", "epsilon", "matrix_scale",
        "coefficients"},
       true,
       true}};
  return kinds;
}

std::vector<std::string> builtin_optimizer_names() {
  std::vector<std::string> names;
  for (const OptimizerKind& kind : builtin_optimizer_kinds()) names.push_back(kind.name);
  return names;
}

int64_t OptimizerPlan::warmup_steps(int64_t batch) const {
  if (warmup_unit == "steps") return warmup;
  KUAFU_CHECK(batch > 0, "a warm-up by epochs of batches of ", batch);
  constexpr double kMost = 0x1p53;  // counts beyond it are no exact doubles, nor ever reached
  const double samples = static_cast<double>(warmup) * static_cast<double>(epoch);
  return static_cast<int64_t>(std::min(kMost, std::ceil(samples / static_cast<double>(batch))));
}

}  // namespace kuafu
