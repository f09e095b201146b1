// SPDX-License-Identifier: Apache-2.0
//
// Learning rates of a schedule.

#include <algorithm>
#include <cmath>
#include <numbers>

#include "kuafu/base/errors.h"
#include "kuafu/oracle/oracle.h"

namespace kuafu::oracle {
namespace {

/// A batch k times the base has k times the rate       [Goyal et al., arXiv 1706.02677, 2.1]
/// or sqrt(k) times        [Krizhevsky, arXiv 1404.5997, section 5; You et al., arXiv 1904.00962].
double full_rate(const OptimizerPlan& plan, int64_t batch) {
  if (plan.scale_lr == "none") return plan.lr;
  KUAFU_REQUIRE(plan.scale_lr == "linear" || plan.scale_lr == "sqrt", "optimizer.scale_lr = \"",
                plan.scale_lr, "\" is not known to the oracle; allowed: none, linear, sqrt");
  KUAFU_CHECK(batch > 0, "a rate that follows the batch, and no batch");
  const double k = static_cast<double>(batch) / static_cast<double>(plan.base_batch);
  return plan.lr * (plan.scale_lr == "linear" ? k : std::sqrt(k));
}

}  // namespace

/// Linear warm-up: step t of w has (t + 1) / w of the rate (that of Goyal et al., arXiv 1706.02677, 2.2,
/// begins at the rate of the base batch).
/// With T_cur = 0 at the first step after warm-up and T at the last step, eta_min the last rate:
/// Cosine: eta_min + (eta_max - eta_min) (1 + cos(pi T_cur / T)) / 2
///                                          [Loshchilov & Hutter, arXiv 1608.03983, equation 5]
/// Polynomial: eta_min + (eta_max - eta_min) (1 - T_cur / T)^power; linear: the same, power 1
///                                                  [You et al., arXiv 1708.03888, algorithm 1]
/// Step: eta_max factor^floor(T_cur / n)                  [He et al., arXiv 1512.03385, 3.4]
/// A warm-up of e epochs of n samples is one of ceil(e n / B) steps.
/// Warm restart at step R: the steps before it are a run of R steps, those from it on a run of its own
///                                     [Loshchilov & Hutter, arXiv 1608.03983, section 3; one restart]
double learning_rate(const OptimizerPlan& plan, int64_t t, int64_t steps, int64_t batch) {
  if (const int64_t restart = plan.rewarm_at; restart > 0) {
    OptimizerPlan once = plan;
    once.rewarm_at = 0;
    return t < restart ? learning_rate(once, t, std::min(steps, restart), batch)
                       : learning_rate(once, t - restart, steps - restart, batch);
  }
  const double most = full_rate(plan, batch);
  int64_t warmup = plan.warmup;
  if (plan.warmup_unit == "epochs") {
    KUAFU_CHECK(batch > 0, "epochs of no batch");
    const double samples = static_cast<double>(warmup) * static_cast<double>(plan.epoch);
    warmup =
        static_cast<int64_t>(std::min(0x1p53, std::ceil(samples / static_cast<double>(batch))));
  }
  if (t < warmup) return most * static_cast<double>(t + 1) / static_cast<double>(warmup);
  const int64_t current = t - warmup;
  if (plan.schedule == "constant") return most;
  if (plan.schedule == "step") {
    return most * std::pow(plan.drop_factor, static_cast<double>(current / plan.drop_every));
  }
  const auto last = static_cast<double>(std::max<int64_t>(1, steps - 1 - warmup));
  const double done = std::min(1.0, static_cast<double>(current) / last);
  const double least = most * plan.min_lr_ratio;
  if (plan.schedule == "cosine") {
    return least + 0.5 * (most - least) * (1 + std::cos(std::numbers::pi * done));
  }
  if (plan.schedule == "linear") return least + (most - least) * (1 - done);
  KUAFU_REQUIRE(plan.schedule == "polynomial", "optimizer.schedule = \"", plan.schedule,
                "\" is not known to the oracle; allowed: constant, cosine, linear, polynomial, "
                "step");
  return least + (most - least) * std::pow(1 - done, plan.power);
}

}  // namespace kuafu::oracle
