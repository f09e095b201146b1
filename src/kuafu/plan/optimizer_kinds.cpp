// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "kuafu/plan/kind_names.h"
#include "kuafu/plan/plan.h"

namespace kuafu {

const std::vector<OptimizerKind>& builtin_optimizer_kinds() {
  static const std::vector<OptimizerKind> kinds = {
#define KUAFU_OPTIMIZER(constant, name_, rule, formula, ...) \
  {.name = optimizer_kinds::constant, __VA_ARGS__},
#include "kuafu/plan/optimizers.def"
  };
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
