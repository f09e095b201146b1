// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <numbers>

#include "kuafu/base/errors.h"
#include "kuafu/optim/optimizer.h"

namespace kuafu {

double learning_rate(const OptimizerPlan& plan, int64_t t, int64_t steps) {
  KUAFU_CHECK(t >= 0, "step ", t);
  if (t < plan.warmup) {
    return plan.lr * static_cast<double>(t + 1) / static_cast<double>(plan.warmup);
  }
  if (plan.schedule == "constant") return plan.lr;
  KUAFU_REQUIRE(plan.schedule == "cosine", "unknown optimizer.schedule \"", plan.schedule,
                "\"; allowed: constant, cosine");
  // The first step after warm-up has the full rate, the last step of all has the final one.
  const int64_t span = std::max<int64_t>(1, steps - 1 - plan.warmup);
  const double progress =
      std::min(1.0, static_cast<double>(t - plan.warmup) / static_cast<double>(span));
  const double wave = 0.5 * (1 + std::cos(std::numbers::pi * progress));
  return plan.lr * (plan.min_lr_ratio + (1 - plan.min_lr_ratio) * wave);
}

}  // namespace kuafu
