// SPDX-License-Identifier: Apache-2.0
#include "kuafu/engine/saving/saved_run.h"

#include "kuafu/base/config.h"
#include "kuafu/base/errors.h"
#include "kuafu/checkpoint/weights.h"
#include "kuafu/engine/saving/save.h"

namespace kuafu {
namespace saved_run {
namespace {

constexpr const char* kLossScale = "loss_scale";  // all three where a run has had one
constexpr const char* kGoodSteps = "loss_scale_good_steps";
constexpr const char* kSkippedSteps = "skipped_steps";
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

int64_t read_updates(const Checkpoint& from, const std::string& folder) {
  const int64_t updates = from.state_count(kOptimizerSteps);
  const int64_t skipped = skipped_steps(from);
  if (is_weights_only(from)) return updates;  // of another program: none
  // More where steps, of this run or of one that it goes on from, were under servers, which count pushes.
  KUAFU_REQUIRE(updates >= from.step() - skipped, folder, "/", kIndexFile, ": state.",
                kOptimizerSteps, ": ", updates, " updates after ", from.step(), " steps, ", skipped,
                " of them skipped; use an earlier checkpoint");
  return updates;
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
