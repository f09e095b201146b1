// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <numbers>

#include "kuafu/base/errors.h"
#include "kuafu/optim/optimizer.h"

// Warm-up, then a fall. At rewarm_at both begin again, over the steps that are left: the schedule
// before it has its last rate at the step before.

namespace kuafu {
namespace {

/// The rate after the warm-up: optimizer.lr, times what a larger batch allows.
double peak_rate(const OptimizerPlan& plan, int64_t batch) {
  if (plan.scale_lr == "none") return plan.lr;
  KUAFU_CHECK(batch > 0, "optimizer.scale_lr = ", plan.scale_lr, " of a batch of ", batch);
  const double factor = static_cast<double>(batch) / static_cast<double>(plan.base_batch);
  if (plan.scale_lr == "linear") return plan.lr * factor;
  KUAFU_REQUIRE(plan.scale_lr == "sqrt", "unknown optimizer.scale_lr \"", plan.scale_lr,
                "\"; allowed: none, linear, sqrt");
  return plan.lr * std::sqrt(factor);
}

/// The part of the way from the last rate to the first that is left, at a progress from 0 to 1.
double left_of(const OptimizerPlan& plan, double progress) {
  if (plan.schedule == "cosine") return 0.5 * (1 + std::cos(std::numbers::pi * progress));
  if (plan.schedule == "linear") return 1 - progress;
  KUAFU_REQUIRE(plan.schedule == "polynomial", "unknown optimizer.schedule \"", plan.schedule,
                "\"; allowed: constant, cosine, linear, polynomial, step");
  return std::pow(1 - progress, plan.power);
}

}  // namespace

double learning_rate(const OptimizerPlan& plan, int64_t t, int64_t steps, int64_t batch) {
  KUAFU_CHECK(t >= 0, "step ", t);
  const int64_t begin = plan.rewarm_at > 0 && t >= plan.rewarm_at ? plan.rewarm_at : 0;
  if (begin == 0 && plan.rewarm_at > 0) steps = std::min(steps, plan.rewarm_at);
  t -= begin;
  steps -= begin;
  const double peak = peak_rate(plan, batch);
  const int64_t warmup = plan.warmup_steps(batch);
  if (t < warmup) return peak * static_cast<double>(t + 1) / static_cast<double>(warmup);
  if (plan.schedule == "constant") return peak;
  if (plan.schedule == "step") {
    const int64_t drops = (t - warmup) / plan.drop_every;
    return peak * std::pow(plan.drop_factor, static_cast<double>(drops));
  }
  // The first step after warm-up has the full rate, the last step of all has the final one.
  const int64_t span = std::max<int64_t>(1, steps - 1 - warmup);
  const double progress =
      std::min(1.0, static_cast<double>(t - warmup) / static_cast<double>(span));
  return peak * (plan.min_lr_ratio + (1 - plan.min_lr_ratio) * left_of(plan, progress));
}

}  // namespace kuafu
