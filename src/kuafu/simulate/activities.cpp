// SPDX-License-Identifier: Apache-2.0
#include "kuafu/simulate/activities.h"

#include <algorithm>

#include "kuafu/simulate/priced_events.h"

namespace kuafu {
namespace {

double seconds(int64_t ps) { return static_cast<double>(ps) * 1e-12; }

/// Turns spans of a replay into activities; a mark names the local work before it.
class Collector {
 public:
  explicit Collector(const std::vector<Trace>& traces) : traces_(traces), ranks_(traces.size()) {}

  void note(const ReplaySpan& span) {
    Row& row = ranks_[static_cast<size_t>(span.rank)];
    if (span.kind == ReplaySpan::Kind::kMark) return close(row, span);
    row.all.push_back(activity(span));
  }

  /// The last step of every rank, cut off what came before.
  ActivityLog log(const std::string& name) const {
    ActivityLog log{name, 0, {}};
    double begin = -1, end = 0;
    for (size_t r = 0; r < ranks_.size(); ++r) {
      KUAFU_REQUIRE(ranks_[r].num_steps > 0, "rank ", r, " was recorded without the phase ",
                    kStepPhase, ": it has no step to show");
      begin = begin < 0 ? ranks_[r].step_begin : std::min(begin, ranks_[r].step_begin);
      end = std::max(end, ranks_[r].step_end);
    }
    log.length_s = end - begin;
    for (const Row& row : ranks_) {
      for (Activity a : row.all) {
        a.start_s = std::max(a.start_s, begin) - begin;
        a.end_s = std::min(a.end_s, end) - begin;
        if (a.end_s > a.start_s) log.activities.push_back(std::move(a));
      }
    }
    complete(log, static_cast<int>(ranks_.size()));
    return log;
  }

 private:
  struct Row {
    std::vector<Activity> all;
    size_t num_named = 0;  ///< activities before the last mark
    int64_t num_steps = 0;
    double step_begin = 0, step_end = 0;
  };

  Activity activity(const ReplaySpan& span) const {
    Activity a{span.rank, Activity::Kind::kCompute, "compute",
               "",        seconds(span.start_ps),   seconds(span.end_ps)};
    if (span.kind == ReplaySpan::Kind::kWork) return a;
    if (span.kind == ReplaySpan::Kind::kCopy || span.kind == ReplaySpan::Kind::kStall) {
      a.label = trace_of(span).names[static_cast<size_t>(span.name)];
      const bool is_stall = span.kind == ReplaySpan::Kind::kStall;
      a.kind = is_stall ? Activity::Kind::kCommunication : Activity::Kind::kCopy;
      a.what = is_stall ? "wait for a copy" : text("copy ", to_string(span.queue));
      if (!is_stall) a.row = row_of(span.queue);
      return a;
    }
    const std::string& axis = trace_of(span).groups[static_cast<size_t>(span.group)].label;
    const std::string verb{to_string(span.verb)};
    a.label = axis.empty() ? verb : text(verb, " ", axis);
    const bool is_wait = span.kind == ReplaySpan::Kind::kWait;
    a.kind = is_wait ? Activity::Kind::kIdle : Activity::Kind::kCommunication;
    a.what = is_wait ? "idle" : verb;
    if (is_wait) a.label = "for " + a.label;
    return a;
  }

  void close(Row& row, const ReplaySpan& span) const {
    const std::string& phase = trace_of(span).names[static_cast<size_t>(span.name)];
    const std::string mark = phase == kStepPhase ? "update" : phase;
    const size_t space = std::min(mark.find(' '), mark.size());
    for (; row.num_named < row.all.size(); ++row.num_named) {
      Activity& a = row.all[row.num_named];
      if (a.kind != Activity::Kind::kCompute) continue;
      a.what = mark.substr(0, space);
      a.label = space < mark.size() ? mark.substr(space + 1) : "";
    }
    if (phase != kStepPhase) return;
    row.step_begin = row.step_end;
    row.step_end = seconds(span.end_ps);
    ++row.num_steps;
  }

  const Trace& trace_of(const ReplaySpan& span) const {
    return traces_[static_cast<size_t>(span.rank)];
  }

  const std::vector<Trace>& traces_;
  std::vector<Row> ranks_;
};

}  // namespace

ActivityLog activities_of(const std::vector<Trace>& traces, const ClusterPlan& cluster,
                          const std::string& name) {
  Collector collector(traces);
  replay(traces, cluster, [&](const ReplaySpan& span) { collector.note(span); });
  return collector.log(name);
}

}  // namespace kuafu
