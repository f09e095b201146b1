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

/// Stages of `s` that no row holds.
std::vector<int> missing_stages(const Timetable& t, PipeShape s) {
  std::vector<bool> is_held(static_cast<size_t>(s.stages()), false);
  for (const Row& row : t) {
    for (const Action& a : row) {
      if (a.stage < s.stages()) is_held[static_cast<size_t>(a.stage)] = true;
    }
  }
  std::vector<int> missing;
  for (int stage = 0; stage < s.stages(); ++stage) {
    if (!is_held[static_cast<size_t>(stage)]) missing.push_back(stage);
  }
  return missing;
}

/// "0, 1, 2, ..."
std::string first_of(const std::vector<int>& numbers) {
  constexpr size_t kShown = 8;
  std::vector<std::string> words;
  for (size_t i = 0; i < std::min(kShown, numbers.size()); ++i) words.push_back(text(numbers[i]));
  if (numbers.size() > kShown) words.emplace_back("...");
  return join(words);
}

/// The first row whose stages all come behind `stage`: before it the stage's own would stand.
size_t row_behind(const Timetable& t, int stage) {
  const auto comes_behind = [stage](const Row& row) {
    return std::all_of(row.begin(), row.end(), [&](const Action& a) { return a.stage > stage; });
  };
  return static_cast<size_t>(std::find_if(t.begin(), t.end(), comes_behind) - t.begin());
}

/// Throws where rows are fewer than ranks, and says which are not there. `lines`: of a file, by row;
/// empty for other timetables.
void check_has_rows(const Timetable& t, PipeShape s, const std::vector<int>& lines) {
  if (t.empty() || static_cast<int>(t.size()) >= s.ranks) return;
  const std::vector<int> stages = missing_stages(t, s);
  if (stages.empty()) return;  // they are another division of the stages
  const size_t behind = row_behind(t, stages.front()), last = t.size() - 1;
  const bool is_last = behind > last;
  const size_t row = is_last ? last : behind;
  throw ConfigError(text("it has ", t.size(), t.size() == 1 ? " row" : " rows", ", and each of ",
                         s.ranks, " ranks needs one: no row has stage ", first_of(stages),
                         " (such as ", to_string(Action{Op::kForward, stages.front(), 0}),
                         "); it belongs ", is_last ? "behind " : "before ",
                         lines.empty() ? "row " : "line ",
                         lines.empty() ? static_cast<int>(row) + 1 : lines[row]));
}

/// Throws where a timetable is not made for `s`, or cannot run; `source` is what made it.
void check_runs(const Timetable& t, PipeShape s, const std::string& source,
                const std::vector<int>& lines) {
  try {
    for (const Row& row : t) {
      for (const Action& a : row) {
        KUAFU_REQUIRE(!is_message(a.op), "it lists ", to_string(a),
                      ", and messages follow from the actions: leave them out");
      }
    }
    check_has_rows(t, s, lines);
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
    check_runs(t, s, is_named ? text("schedule ", in_quotes(schedule)) : schedule,
               is_named ? std::vector<int>() : lines_of_rows(read_file(schedule, "schedule")));
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
