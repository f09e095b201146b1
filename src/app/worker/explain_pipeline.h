// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "kuafu/engine/registries.h"
#include "kuafu/record/json.h"

namespace kuafu {

/// Prints the stages of a plan with several and draws its timetable; nothing for plans with one.
void print_pipeline(const Plan& plan, const Registries& registries);

/// The same as JSON (docs/explain.md); null for plans with one stage.
Json pipeline_json(const Plan& plan, const Registries& registries);

/// Writes a plan's timetable into `file`: .csv, which `parallel.pipeline.schedule` takes, or .svg.
/// Throws ConfigError for another ending, a plan of one stage, and a file that cannot be written.
void write_timetable(const Plan& plan, const Registries& registries, const std::string& file);

}  // namespace kuafu
