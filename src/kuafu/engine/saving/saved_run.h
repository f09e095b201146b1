// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "kuafu/checkpoint/checkpoint.h"
#include "kuafu/engine/measuring/telemetry.h"
#include "kuafu/engine/measuring/validation.h"
#include "kuafu/optim/loss_scaler.h"
#include "kuafu/plan/resume.h"

// The strings of a checkpoint's state: what a run is besides its tensors.
namespace kuafu::saved_run {

inline constexpr const char* kPlan = "plan";
inline constexpr const char* kOptimizerSteps = "optimizer_steps";
/// Notes of the program: what it was, and hashes of its plug-ins by file name.
inline constexpr const char *kProgram = "program", *kPlugins = "plugins";

/// Nothing of a run that never scaled its loss, so that its checkpoints are as they were.
void write_scale(const LossScaler& scaler, Metadata& state);
void read_scale(const Checkpoint& from, LossScaler& scaler);

/// Updates that its optimizer has made: one a step that was not skipped, and what servers made of more
/// pushes than steps.
void write_updates(int64_t updates, int64_t steps, const LossScaler& scaler, Metadata& state);
int64_t read_updates(const Checkpoint& from, const std::string& folder);

/// Throws ConfigError where what the state says is no run's: another count of updates, more steps than
/// its plan has, imported weights that have been trained, notes that are no JSON.
void check_consistent(const Checkpoint& from, const std::string& folder);

/// Nothing of a run that was not validated yet.
void write_validation(const ValidationSeries& series, Metadata& state);
/// Empty where the checkpoint has none, or of other samples than `now` validates on.
ValidationSeries read_validation(const Checkpoint& from, const std::string& folder,
                                 const Plan& now);

/// Nothing of a run without train.telemetry.
void write_telemetry(const TelemetrySeries& series, Metadata& state);
/// Empty where the checkpoint has none. `layers`: the model's.
TelemetrySeries read_telemetry(const Checkpoint& from, const std::string& folder,
                               const std::vector<std::string>& layers);

/// The plan that saved it.
Plan plan_of(const Checkpoint& from, const std::string& folder);

/// Imported, not saved by a run: there is a model, and nothing was learned by any plan.
bool is_weights_only(const Checkpoint& from);

/// Throws ConfigError where a run under `plan` may not go on from it.
void check_agreement(const Checkpoint& from, const std::string& folder, const Plan& plan,
                     ResumeChanges changes);

}  // namespace kuafu::saved_run
