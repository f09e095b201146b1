// SPDX-License-Identifier: Apache-2.0
#include "kuafu/parallel/pipeline/choose.h"

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "kuafu/base/config.h"
#include "kuafu/base/errors.h"
#include "kuafu/base/registry.h"
#include "kuafu/base/suggest.h"
#include "kuafu/parallel/pipeline/analysis.h"
#include "kuafu/parallel/pipeline/play.h"

namespace kuafu::pipeline {
namespace {

/// Throws where a timetable is not made for `s`, or cannot run; `source` is what made it.
void check_runs(const Timetable& t, PipeShape s, const std::string& source) {
  try {
    const PipeShape own = shape_of(t);
    KUAFU_REQUIRE(own == s, "it is made for ", own.ranks, " ranks, ", own.chunks,
                  own.chunks == 1 ? " stage" : " stages", " a rank and ", own.micro_batches,
                  " micro-batches");
    validate(t, s);
  } catch (const ConfigError& e) {
    throw ConfigError(text(source, ", for ", s.ranks, " ranks, ", s.chunks,
                           s.chunks == 1 ? " stage" : " stages", " a rank and ", s.micro_batches,
                           " micro-batches: ", e.what()));
  }
}

}  // namespace

std::vector<std::string> schedule_names() { return builtin_schedules().names(); }

bool is_schedule_file(const std::string& schedule) {
  return !builtin_schedules().contains(schedule) &&
         schedule.find_first_of("./") != std::string::npos;
}

void check_schedule_name(const std::string& schedule, const std::vector<std::string>& names) {
  if (std::find(names.begin(), names.end(), schedule) != names.end()) return;
  if (is_schedule_file(schedule)) return;
  throw NotFound(text(in_quotes(schedule),
                      " is no pipeline schedule; allowed: ", join_or(in_quotes(names)),
                      ", or a CSV file; nearest: ", in_quotes(nearest(schedule, names))));
}

Timetable load_timetable(const std::string& file) {
  std::error_code ignored;
  const auto status = std::filesystem::status(file, ignored);
  KUAFU_REQUIRE(!std::filesystem::is_other(status), "the schedule ", in_quotes(file),
                " is no regular file but a pipe or a device");
  Timetable t = parse_csv(read_file(file, "schedule"), file);
  for (Row& row : t) {
    std::erase_if(row, [](const Action& a) { return is_message(a.op); });
  }
  return t;
}

Timetable make_timetable(const std::string& schedule, PipeShape s,
                         const Registry<Schedule>& known) {
  check_schedule_name(schedule, known.names());
  const bool is_named = known.contains(schedule);
  const Timetable t = is_named ? known.find(schedule).make(s) : load_timetable(schedule);
  if (!builtin_schedules().contains(schedule)) {
    check_runs(t, s, is_named ? text("schedule ", in_quotes(schedule)) : schedule);
  }
  return t;
}

Timetable forwards_of(const Timetable& t) {
  Timetable forwards = t;
  for (Row& row : forwards) {
    std::erase_if(row, [](const Action& a) { return a.op != Op::kForward; });
  }
  return forwards;
}

}  // namespace kuafu::pipeline
