// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "kuafu/comm/ledger.h"
#include "kuafu/engine/certificate.h"
#include "kuafu/engine/engine.h"
#include "kuafu/meter/book.h"

namespace kuafu {

/// What one rank measured over its training steps: neither validation nor certificate is in it.
struct RankResult {
  std::vector<double> losses;        ///< one a step, global mean
  std::vector<double> step_seconds;  ///< one a step
  double validation_loss = 0;
  int64_t flops = 0, flops_recomputed = 0;  ///< a step
  int64_t peak_bytes = 0;                   ///< largest live bytes of the steps, without scratch
  BytesByCategory at_peak{};                ///< composition at that moment
  BytesByCategory peak_by_category{};       ///< each category's own peak, scratch too
  Ledger ledger;                            ///< summed over the steps
  Certificate certificate;
};

struct RunOptions {
  at::Device device = at::kCPU;
  bool is_certified = false;
  int64_t certificate_memory = int64_t{4} << 30;  ///< bytes
  bool is_metered = true;  ///< ledger and FLOPs; off only to measure what they cost
  std::function<std::unique_ptr<Dataset>(const Plan&)> make_data;
  /// Called on rank 0 after each step.
  std::function<void(int64_t step, const StepReport& report)> on_step;
};

/// One rank of a whole run: train, validate, certify. The same for every world.
/// Throws OutOfMemory where the plan's budget is passed, ConfigError with the step of a loss that is
/// not finite.
RankResult run_rank(const Plan& plan, const Registries& registries, Communicator& world,
                    const RunOptions& options);

/// Median of the steady samples and its 95 % interval by order statistics (binomial, no assumption
/// about the distribution). The first samples count as warm-up until one lies within 10 % of the
/// median of the rest; at most half are dropped.
struct StepTime {
  double median = 0, low = 0, high = 0;
  int64_t warmup = 0;  ///< samples dropped from the front
};
StepTime summarise(const std::vector<double>& seconds);

}  // namespace kuafu
