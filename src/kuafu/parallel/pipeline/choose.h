// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "kuafu/parallel/pipeline/schedules.h"

namespace kuafu::pipeline {

/// Names of the generators, in the order of their registry.
std::vector<std::string> schedule_names();

/// Whether a plan's schedule means a file: it names no generator and looks like a path ("mine.csv",
/// "schedules/mine").
bool is_schedule_file(const std::string& schedule);

/// The actions of a schedule file, without the messages it may name: lower() places those anew.
/// Throws ConfigError: unreadable, or a line that is no row of actions.
Timetable load_timetable(const std::string& file);

/// Throws NotFound, with the nearest, where a schedule is none of `names` and no file.
void check_schedule_name(const std::string& schedule, const std::vector<std::string>& names);

/// The timetable of a plan: that of a generator, or of a CSV file. What this build does not bring
/// itself is checked against the shape. Throws ConfigError for an unknown name (with the nearest),
/// an unreadable file, and a schedule that cannot run (with its table); Refused for chunks that the
/// schedule does not have.
Timetable make_timetable(const std::string& schedule, PipeShape s,
                         const Registry<Schedule>& known = builtin_schedules());

/// The forwards alone, every stage where it was and in the same order: validation.
Timetable forwards_of(const Timetable& t);

}  // namespace kuafu::pipeline
