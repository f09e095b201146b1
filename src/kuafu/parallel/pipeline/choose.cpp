// SPDX-License-Identifier: Apache-2.0
#include "kuafu/parallel/pipeline/choose.h"

#include "kuafu/base/config.h"
#include "kuafu/base/errors.h"
#include "kuafu/base/suggest.h"
#include "kuafu/parallel/pipeline/analysis.h"
#include "kuafu/parallel/pipeline/play.h"
#include "kuafu/parallel/pipeline/schedules.h"

namespace kuafu::pipeline {
namespace {

Registry<Schedule> builtin_schedules() {
  Registry<Schedule> schedules("pipeline schedule");
  register_schedules(schedules);
  return schedules;
}

}  // namespace

std::vector<std::string> schedule_names() { return builtin_schedules().names(); }

bool is_schedule_file(const std::string& schedule) {
  return !builtin_schedules().contains(schedule) &&
         schedule.find_first_of("./") != std::string::npos;
}

Timetable load_timetable(const std::string& file) {
  Timetable t = parse_csv(read_file(file, "schedule"), file);
  for (Row& row : t) {
    std::erase_if(row, [](const Action& a) { return is_message(a.op); });
  }
  return t;
}

Timetable make_timetable(const std::string& schedule, PipeShape s) {
  const Registry<Schedule> known = builtin_schedules();
  if (known.contains(schedule)) return known.find(schedule).make(s);
  KUAFU_REQUIRE(is_schedule_file(schedule), in_quotes(schedule),
                " is no pipeline schedule; allowed: ", join_or(in_quotes(known.names())),
                ", or a CSV file; nearest: ", in_quotes(nearest(schedule, known.names())));
  const Timetable t = load_timetable(schedule);
  try {
    const PipeShape own = shape_of(t);
    KUAFU_REQUIRE(own == s, "it is made for ", own.ranks, " ranks, ", own.chunks,
                  own.chunks == 1 ? " stage" : " stages", " a rank and ", own.micro_batches,
                  " micro-batches");
    validate(t, s);
  } catch (const ConfigError& e) {
    throw ConfigError(text(schedule, ", for ", s.ranks, " ranks, ", s.chunks,
                           s.chunks == 1 ? " stage" : " stages", " a rank and ", s.micro_batches,
                           " micro-batches: ", e.what()));
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
