// SPDX-License-Identifier: Apache-2.0
#include "kuafu/engine/saving/saved_run.h"

#include <limits>

#include "kuafu/base/config.h"
#include "kuafu/base/errors.h"
#include "kuafu/base/suggest.h"
#include "kuafu/base/utf8.h"
#include "kuafu/checkpoint/weights.h"
#include "kuafu/engine/saving/save.h"
#include "kuafu/record/json_text.h"

namespace kuafu {
namespace saved_run {
namespace {

constexpr const char* kLossScale = "loss_scale";  // all three where a run has had one
constexpr const char* kGoodSteps = "loss_scale_good_steps";
constexpr const char* kSkippedSteps = "skipped_steps";
constexpr const char* kMorePushes = "updates_beyond_steps";  // of a run that was under servers
constexpr int64_t kMostWorkers = 1 << 20;                    // pushes of a step
constexpr const char* kValidation = "validation";
constexpr const char* kTelemetry = "telemetry";

/// 0 of a run that never scaled its loss.
int64_t skipped_steps(const Checkpoint& from) {
  if (!from.state().contains(kLossScale)) return 0;
  const int64_t skipped = from.state_count(kSkippedSteps);
  KUAFU_REQUIRE(skipped <= from.step(), kIndexFile, ": state.", kSkippedSteps, ": ", skipped,
                " steps were skipped of ", from.step());
  return skipped;
}

/// All three strings of a loss scale or none, of no more steps than were made, and one that f32 has.
void check_saved_scale(const Checkpoint& from, const std::string& index) {
  const auto has = [&](const char* key) { return from.state().contains(key); };
  const bool has_scale = has(kLossScale);
  KUAFU_REQUIRE(has(kGoodSteps) == has_scale && has(kSkippedSteps) == has_scale, index,
                ": of state.", kLossScale, ", ", kGoodSteps, " and ", kSkippedSteps,
                " some are there and some are not; use an earlier checkpoint");
  if (!has_scale) return;
  const double scale = from.state_number(kLossScale);
  KUAFU_REQUIRE(scale <= std::numeric_limits<float>::max(), index, ": state.", kLossScale, ": ",
                scale, " is beyond the range of f32; use an earlier checkpoint");
  const int64_t good = from.state_count(kGoodSteps);
  KUAFU_REQUIRE(good <= from.step() - skipped_steps(from), index, ": state.", kGoodSteps, ": ",
                good, " good steps after each other, of ", from.step(),
                "; use an earlier checkpoint");
}

void check_imported(const Checkpoint& from, const std::string& index) {
  const bool is_untrained = from.step() == 0 && from.state_count(kOptimizerSteps) == 0 &&
                            !from.state().contains(kLossScale);
  const std::string optimizer(plan_of(from, index).optimizer.kind);
  const bool is_weights = weight_names(from, optimizer).size() == from.tensors().size();
  KUAFU_REQUIRE(is_untrained && is_weights, index, ": state.", weights::kStateKey,
                " says that nothing but weights is here, and there is a state of training beside "
                "them; import the weights again");
}

}  // namespace

void write_scale(const LossScaler& scaler, Metadata& state) {
  const LossScale& now = scaler.state();
  if (!scaler.is_active() && now.skipped == 0) return;
  state[kLossScale] = toml_number(now.scale);
  state[kGoodSteps] = text(now.good_steps);
  state[kSkippedSteps] = text(now.skipped);
}

void read_scale(const Checkpoint& from, LossScaler& scaler) {
  if (!from.state().contains(kLossScale)) return;
  const LossScale saved{.scale = from.state_number(kLossScale),
                        .good_steps = from.state_count(kGoodSteps),
                        .skipped = skipped_steps(from)};
  scaler.restore(saved);
}

void write_updates(int64_t updates, int64_t steps, const LossScaler& scaler, Metadata& state) {
  state[kOptimizerSteps] = text(updates);
  const int64_t more = updates - (steps - scaler.state().skipped);
  if (more > 0) state[kMorePushes] = text(more);
}

int64_t read_updates(const Checkpoint& from, const std::string& folder) {
  const int64_t updates = from.state_count(kOptimizerSteps);
  const int64_t skipped = skipped_steps(from);
  const bool has_more = from.state().contains(kMorePushes);
  const int64_t more = has_more ? from.state_count(kMorePushes) : 0;
  const bool is_possible = more / kMostWorkers <= from.step() && more <= updates;
  KUAFU_REQUIRE(is_possible && updates - more == from.step() - skipped, folder, "/", kIndexFile,
                ": state.", kOptimizerSteps, ": ", updates, " updates after ", from.step(),
                " steps, ", skipped, " of them skipped",
                has_more ? text(", and ", more, " by further pushes to servers") : "",
                "; use an earlier checkpoint");
  return updates;
}

void check_consistent(const Checkpoint& from, const std::string& folder) {
  const std::string index = text(folder, "/", kIndexFile);
  for (const char* note : {kProgram, kPlugins}) {
    const auto found = from.state().find(note);
    if (found == from.state().end()) continue;
    KUAFU_REQUIRE(Json::parse(found->second, nullptr, false).is_object(), index, ": state.", note,
                  ": expected a JSON object, found ", in_quotes(as_utf8(found->second)),
                  "; use an earlier checkpoint");
  }
  if (is_weights_only(from)) return check_imported(from, index);
  check_saved_scale(from, index);
  read_updates(from, folder);
  const int64_t steps = plan_of(from, folder).train.steps;
  KUAFU_REQUIRE(from.step() <= steps, index, ": step is ", from.step(),
                ", and the plan that saved it ends after step ", steps,
                "; use an earlier checkpoint");
}

void write_validation(const ValidationSeries& series, Metadata& state) {
  if (!series.steps.empty()) state[kValidation] = to_text(series);
}

ValidationSeries read_validation(const Checkpoint& from, const std::string& folder,
                                 const Plan& now) {
  const auto found = from.state().find(kValidation);
  if (found == from.state().end() || !has_same_validation(plan_of(from, folder), now)) return {};
  return validation_from(found->second, from.step(),
                         text(folder, "/", kIndexFile, ": state.", kValidation));
}

void write_telemetry(const TelemetrySeries& series, Metadata& state) {
  if (!series.is_empty()) state[kTelemetry] = to_text(series);
}

TelemetrySeries read_telemetry(const Checkpoint& from, const std::string& folder,
                               const std::vector<std::string>& layers) {
  const auto found = from.state().find(kTelemetry);
  if (found == from.state().end()) return {};
  return telemetry_from(found->second, layers, from.step(),
                        text(folder, "/", kIndexFile, ": state.", kTelemetry));
}

Plan plan_of(const Checkpoint& from, const std::string& folder) {
  const auto toml = from.state().find(kPlan);
  KUAFU_REQUIRE(toml != from.state().end(), folder, " holds no run: it has no ", kPlan);
  return parse_values(toml->second, text("the plan of ", folder));
}

bool is_weights_only(const Checkpoint& from) { return from.state().contains(weights::kStateKey); }

void check_agreement(const Checkpoint& from, const std::string& folder, const Plan& plan,
                     ResumeChanges changes) {
  if (is_weights_only(from)) return check_same_model(plan_of(from, folder), plan, folder);
  check_resumable(plan_of(from, folder), plan, folder, changes);
  KUAFU_REQUIRE(from.step() <= plan.train.steps, folder, " is ", from.step(),
                " steps far, and this run ends after step ", plan.train.steps,
                " (train.steps, or --stop-at); name a step from ", from.step(), " on");
}

}  // namespace saved_run

void check_save_options(const SaveOptions& options, const Plan& plan) {
  const std::vector<std::string> found = checkpoints(options.folder);
  KUAFU_REQUIRE(found.empty() || options.resumes, "--checkpoint ", options.folder,
                " holds the checkpoints of another run, the newest ", found.front(),
                "; add --resume to go on from it, or choose another folder");
  for (const std::string& folder : found) {
    std::optional<Checkpoint> from;
    try {
      from.emplace(folder);
    } catch (const ConfigError&) {
      continue;  // damaged: passed over, and told of, when it is loaded
    }
    return saved_run::check_agreement(*from, folder, plan, options.changes);
  }
  if (options.from.empty()) return;
  const std::string folder = named_checkpoint(options.from);
  saved_run::check_agreement(Checkpoint(folder), folder, plan, options.changes);
}

}  // namespace kuafu
