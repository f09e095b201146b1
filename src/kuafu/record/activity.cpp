// SPDX-License-Identifier: Apache-2.0
#include "kuafu/record/activity.h"

#include <algorithm>
#include <set>
#include <tuple>

#include "kuafu/base/errors.h"
#include "kuafu/record/files.h"
#include "kuafu/record/json.h"

namespace kuafu {
namespace {

bool ends_with(const std::string& path, const std::string& end) {
  return path.size() > end.size() && path.compare(path.size() - end.size(), end.size(), end) == 0;
}

bool is_before(const Activity& a, const Activity& b) {
  return std::tie(a.rank, a.row, a.start_s, a.end_s) < std::tie(b.rank, b.row, b.start_s, b.end_s);
}

Json name_event(const char* of, int64_t pid, int64_t tid, const std::string& name) {
  return {{"name", of}, {"ph", "M"}, {"pid", pid}, {"tid", tid}, {"args", {{"name", name}}}};
}

/// The number of a row: that of the rank, and for its queues others behind those of all ranks.
int64_t thread_of(int rank, Activity::Row row, int ranks) {
  return rank + static_cast<int64_t>(row) * ranks;
}

Json event(const Activity& a, int64_t pid, int ranks) {
  return {{"name", a.label.empty() ? a.what : a.label},
          {"cat", to_string(a.kind)},
          {"ph", "X"},
          {"ts", a.start_s * 1e6},
          {"dur", (a.end_s - a.start_s) * 1e6},
          {"pid", pid},
          {"tid", thread_of(a.rank, a.row, ranks)},
          {"args", {{"what", a.what}}}};
}

}  // namespace

std::string to_string(Activity::Kind kind) {
  switch (kind) {
    case Activity::Kind::kCompute:
      return "compute";
    case Activity::Kind::kCommunication:
      return "communication";
    case Activity::Kind::kCopy:
      return "copy";
    default:
      return "idle";
  }
}

Activity::Row row_of(TraceQueue queue) {
  switch (queue) {
    case TraceQueue::kToDevice:
      return Activity::Row::kToDevice;
    case TraceQueue::kToHost:
      return Activity::Row::kToHost;
    case TraceQueue::kFromDisk:
      return Activity::Row::kFromDisk;
    case TraceQueue::kToDisk:
      return Activity::Row::kToDisk;
    default:
      return Activity::Row::kRank;
  }
}

std::string queue_name(Activity::Row row) {
  switch (row) {
    case Activity::Row::kToDevice:
      return "to device";
    case Activity::Row::kToHost:
      return "to host";
    case Activity::Row::kFromDisk:
      return "from disk";
    case Activity::Row::kToDisk:
      return "to disk";
    default:
      return "";
  }
}

std::string row_name(int rank, Activity::Row row) {
  const std::string queue = queue_name(row);
  return text("rank ", rank, queue.empty() ? "" : " ", queue);
}

void complete(ActivityLog& log, int ranks) {
  std::vector<Activity>& all = log.activities;
  std::sort(all.begin(), all.end(), is_before);
  std::vector<Activity> gaps;
  auto at = all.begin();
  for (int r = 0; r < ranks; ++r) {
    double reached = 0;
    const auto idle_until = [&](double end) {
      if (end > reached) gaps.push_back({r, Activity::Kind::kIdle, "idle", "", reached, end});
    };
    for (; at != all.end() && at->rank == r; ++at) {
      if (at->row != Activity::Row::kRank) continue;
      idle_until(at->start_s);
      reached = std::max(reached, at->end_s);
    }
    idle_until(log.length_s);
  }
  all.insert(all.end(), gaps.begin(), gaps.end());
  std::sort(all.begin(), all.end(), is_before);
}

std::vector<std::pair<int, Activity::Row>> rows_of(const ActivityLog& log) {
  std::set<std::pair<int, Activity::Row>> rows;
  for (const Activity& a : log.activities) rows.insert({a.rank, a.row});
  return {rows.begin(), rows.end()};
}

std::vector<std::string> problems(const ActivityLog& log, double slack_s) {
  std::vector<std::string> out;
  std::vector<Activity> all = log.activities;
  std::sort(all.begin(), all.end(), is_before);
  for (size_t i = 0; i < all.size(); ++i) {
    const Activity& a = all[i];
    const std::string who = text(row_name(a.rank, a.row), ", ", a.what, " ", a.label, " from ",
                                 a.start_s, " to ", a.end_s, " s");
    if (a.end_s < a.start_s) out.push_back(who + " ends before it starts");
    if (a.start_s < -slack_s) out.push_back(who + " starts before the step");
    if (a.end_s > log.length_s + slack_s) {
      out.push_back(text(who, " ends after the step of ", log.length_s, " s"));
    }
    const bool is_of_row = i > 0 && all[i - 1].rank == a.rank && all[i - 1].row == a.row;
    if (is_of_row && all[i - 1].end_s > a.start_s + slack_s) {
      out.push_back(text(who, " overlaps ", all[i - 1].what, " ", all[i - 1].label,
                         ", which ends at ", all[i - 1].end_s, " s"));
    }
  }
  return out;
}

std::string chrome_trace(const std::vector<ActivityLog>& logs) {
  Json events = Json::array();
  for (size_t run = 0; run < logs.size(); ++run) {
    const auto pid = static_cast<int64_t>(run);
    events.push_back(name_event("process_name", pid, 0, logs[run].name));
    const auto rows = rows_of(logs[run]);
    const int ranks = rows.empty() ? 0 : rows.back().first + 1;
    for (const auto& [rank, row] : rows) {
      events.push_back(
          name_event("thread_name", pid, thread_of(rank, row, ranks), row_name(rank, row)));
    }
    for (const Activity& a : logs[run].activities) events.push_back(event(a, pid, ranks));
  }
  return Json{{"traceEvents", events}, {"displayTimeUnit", "ms"}}.dump(1) + "\n";
}

void check_activity_path(const std::string& path) {
  KUAFU_REQUIRE(ends_with(path, ".json") || ends_with(path, ".svg"), "--timeline ", path,
                ": the name must end in .json (Chrome trace) or .svg (picture)");
}

void write_activities(const ActivityLog& log, const std::string& path) {
  check_activity_path(path);
  replace_file(path, ends_with(path, ".svg") ? activity_svg(log) : chrome_trace({log}));
}

}  // namespace kuafu
