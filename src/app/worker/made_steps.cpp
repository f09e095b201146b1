// SPDX-License-Identifier: Apache-2.0
#include "app/worker/made_steps.h"

#include "app/worker/document.h"

namespace kuafu {
namespace {

template <class T>
void take_new(std::vector<T>& kept, const std::vector<T>& all) {
  kept.insert(kept.end(), all.begin() + static_cast<int64_t>(kept.size()), all.end());
}

}  // namespace

void MadeSteps::take(const RankResult& so_far) {
  const std::lock_guard lock(mutex_);
  take_new(made_.losses, so_far.losses);
  take_new(made_.step_seconds, so_far.step_seconds);
  take_new(made_.loss_scales, so_far.loss_scales);
  take_new(made_.skipped, so_far.skipped);
  take_new(made_.validation.steps, so_far.validation.steps);
  take_new(made_.validation.losses, so_far.validation.losses);
  made_.telemetry.layers = so_far.telemetry.layers;
  take_new(made_.telemetry.steps, so_far.telemetry.steps);
  for (const TelemetryRows& s : telemetry_rows()) {
    take_new(made_.telemetry.*s.rows, so_far.telemetry.*s.rows);
  }
  made_.resumed_from = so_far.resumed_from;
  made_.resume_changes = so_far.resume_changes;
}

void MadeSteps::add_to(Json& document, const Plan& plan) const {
  const std::lock_guard lock(mutex_);
  if (!made_.losses.empty()) add_steps(document, plan, made_, made_.step_seconds);
}

}  // namespace kuafu
