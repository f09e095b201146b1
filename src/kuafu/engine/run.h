// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "kuafu/base/trace.h"
#include "kuafu/checkpoint/weights.h"
#include "kuafu/comm/ledger.h"
#include "kuafu/engine/engine.h"
#include "kuafu/engine/measuring/validation.h"
#include "kuafu/engine/proof/certificate.h"
#include "kuafu/engine/requests.h"
#include "kuafu/engine/saving/save.h"
#include "kuafu/memory/regret.h"
#include "kuafu/meter/book.h"
#include "kuafu/parallel/stale/order.h"
#include "kuafu/record/load.h"

namespace kuafu {

/// One rank's traffic on one axis, summed over the training steps.
struct AxisTraffic {
  int64_t bytes_sent = 0, bytes_received = 0, messages = 0;
  int64_t peers = 0;                     ///< other members of the groups used
  RankSet wire_peers;                    ///< world ranks bytes went to or came from
  std::map<std::string, int64_t> calls;  ///< by verb
  std::string counting;                  ///< "wire" or "convention"
  bool operator==(const AxisTraffic&) const = default;
};
using TrafficByAxis = std::map<std::string, AxisTraffic>;

TrafficByAxis traffic_of(const Ledger& ledger);

/// What one rank measured over its training steps: neither validation nor certificate is in it.
struct RankResult {
  std::vector<double> losses;        ///< one a step, global mean; where replicas are not in step of
                                     ///< each one's samples at the parameters it had read
  std::vector<double> loss_scales;   ///< one a step; empty where the plan scales no loss
  std::vector<int64_t> skipped;      ///< steps, from 0, that updated nothing
  std::vector<double> step_seconds;  ///< one a step
  double validation_loss = std::numeric_limits<double>::quiet_NaN();  ///< where it was taken
  ValidationSeries validation;  ///< of the run that it goes on from, too; the same everywhere
  TelemetrySeries telemetry;    ///< likewise; empty without train.telemetry
  double peak_flops_per_s = 0;  ///< of all ranks together, in products; 0: not measured
  int64_t flops = 0, flops_recomputed = 0;  ///< a step
  int64_t flops_optimizer = 0;              ///< a step; none of the model's
  int64_t peak_bytes = 0;                   ///< largest live bytes of the steps, without scratch
  BytesByCategory at_peak{};                ///< composition at that moment
  BytesByCategory peak_by_category{};       ///< each category's own peak, scratch too
  TrafficByAxis traffic;                    ///< summed over the steps, by axis
  MoveCounts moves;                         ///< between tiers, summed over the steps
  memory::UseTrace uses;                    ///< of a step by chunk, where memory has tiers
  memory::LeastBytes least;                 ///< that moves of such a step load; likewise
  std::vector<ExpertLoad> experts;          ///< one a mixture block, the same on every rank
  std::vector<PushOrder> pushes;            ///< one a server; none where replicas are in step
  std::vector<int64_t> met;                 ///< steps after which those that are not had settled
  std::optional<int64_t> resumed_from;      ///< steps done before, by a checkpoint; 0: `init`
  std::vector<std::string> resume_changes;  ///< what it learns otherwise since: both values
  int64_t saves = 0, saved_bytes = 0;       ///< checkpoints, and what this rank wrote of them
  std::vector<double> save_seconds;         ///< one a step: saving between it and the next
  CpuWindow load;                           ///< of this process and its machine, over all steps
  Stop stopped = Stop::kNone;               ///< after the last of `losses`, before the plan's end
  std::string diverged;                     ///< why there was no further step; empty: it did not
  std::string last_good;                    ///< rank 0, diverged: the newest sound checkpoint
  std::string unsaved;                      ///< why it could not be saved, which ended it
  Certificate certificate;

  bool is_whole() const { return stopped == Stop::kNone && diverged.empty() && unsaved.empty(); }
};

/// A step that was made, for those who watch.
struct StepDone {
  int64_t step = 0;  ///< from 0
  StepReport report;
  double seconds = 0;           ///< of rank 0
  int64_t flops = 0;            ///< of all ranks in a step, what is recomputed too; 0: not known
  double peak_flops_per_s = 0;  ///< measured before the first step; 0: not known
  std::optional<double> validation_loss;       ///< after it, where it was taken
  const TelemetrySeries* telemetry = nullptr;  ///< up to it; null without train.telemetry
};

struct RunOptions {
  at::Device device = compute_device();
  bool is_certified = false;
  int64_t certificate_memory = int64_t{4} << 30;  ///< bytes
  /// How many times slower a rank computes in a step: stragglers, for experiments; null: 1.
  std::function<double(int rank, int64_t step)> slowdown = {};
  std::vector<int> push_script = {};  ///< order of pushes to servers; by arrival where empty
  bool measures_peak = false;         ///< RankResult::peak_flops_per_s, before the first step
  bool is_metered = true;             ///< ledger and FLOPs; off only to measure what they cost
  TraceRecorder* recorder = nullptr;  ///< of this rank: takes every event of its last step, and
                                      ///< fills its tables in the step before
  std::function<std::unique_ptr<Dataset>(const Plan&)> make_data;
  /// Whether the plan's steps are the first of a run that goes on: the validation after the last of
  /// them is in its series where `train.validate_every` has it.
  bool goes_on_later = false;
  SaveOptions checkpoint;  ///< no folder: none
  /// What it begins with where it goes on from no checkpoint; null: weights of the plan's seed.
  const NamedWeights* init = nullptr;
  /// Called on every rank with what it measured, before that is certified: a certificate may end
  /// badly, and then costs no results. It may communicate over the world.
  std::function<void(const RankResult& measured)> on_measured;
  /// TimedRun::on_refuted, of its certificate.
  std::function<void(const Certificate& so_far)> on_refuted;
  /// Called on every rank once a step is made, and after a validation on the way: what is known
  /// where the run ends by an exception. Where replicas are not in step on rank 0 alone, with the
  /// steps that all have made.
  std::function<void(const RankResult& so_far)> on_made;
  /// Called on rank 0 after each step. Set on all ranks or none.
  std::function<void(const StepDone& done)> on_step;
  /// Called on rank 0, before any step, with the validation loss after `steps` steps: the one in which
  /// the saved run was stopped.
  std::function<void(int64_t steps, double loss)> on_caught_up = {};
  /// Asked between steps, or where replicas are not in step when they meet; null: nobody asks, and a
  /// loss that is not finite is thrown. @pre outlives the run, the same on all ranks
  const Requests* requests = nullptr;
};

/// Throws ConfigError where a run of the plan cannot be saved or resumed as asked.
void check_can_be_saved(const Plan& plan, const SaveOptions& saving);

/// One rank of a whole run: load, train, save, validate, certify. The same for every world. A run
/// that ends early, being asked to or by its loss, is saved where it was asked (a diverged state is
/// not), and is neither validated nor certified. One whose last validation loss is no number has
/// diverged too.
/// Throws OutOfMemory where the plan's budget is passed; where nobody may ask, Diverged and
/// SaveFailed.
RankResult run_rank(const Plan& plan, const Registries& registries, Communicator& world,
                    const RunOptions& options);

/// Median of the steady samples and its 95 % interval by order statistics (binomial, no assumption
/// about the distribution). The first samples count as warm-up until one lies within 10 % of the
/// median of the rest; at most half are dropped.
struct StepTime {
  double median = 0;
  std::optional<std::array<double, 2>> ci95;  ///< none of fewer than kFewestForInterval samples
  int64_t warmup = 0;                         ///< samples dropped from the front
};
/// Least and most of n samples enclose the median but in 2 of 2^n cases: 6.2 % of five, 3.1 % of six.
inline constexpr int64_t kFewestForInterval = 6;
StepTime summarise(const std::vector<double>& seconds);

}  // namespace kuafu
