// SPDX-License-Identifier: Apache-2.0
#include "kuafu/record/trace_timeline.h"

#include <algorithm>
#include <map>

#include "kuafu/base/errors.h"

namespace kuafu {
namespace {

double seconds(int64_t ns) { return static_cast<double>(ns) * 1e-9; }

struct Span {
  std::string what, label;
  double start_s = 0, end_s = 0;
};

/// What one rank did in one step; seconds of the steady clock that all ranks of a machine share.
struct ObservedStep {
  double begin_s = 0, end_s = 0;
  std::vector<Span> phases = {}, calls = {};
  std::map<std::string, double> sent = {};  // by message: when its send began
  struct Wait {
    std::string message;
    double start_s = 0, end_s = 0;
  };
  std::vector<Wait> waits = {};  // for messages
  std::vector<Activity> copies = {};
};

/// Reads the last step of a trace.
class Reader {
 public:
  Reader(const Trace& trace, int rank) : trace_(trace), rank_(rank) {
    for (const TraceRecord& r : trace.records) read(r);
    KUAFU_REQUIRE(step_.end_s > step_.begin_s, "rank ", rank, " has no step to show");
  }
  ObservedStep take() { return std::move(step_); }

 private:
  void read(const TraceRecord& r) {
    const std::string& name = trace_.names[static_cast<size_t>(r.name)];
    const double start = seconds(r.start_ns), end = seconds(r.end_ns);
    switch (r.kind) {
      case TraceKind::kPhaseBegin:
        open_.push_back(start);
        if (open_.size() == 1) step_ = {.begin_s = start, .end_s = start};
        break;
      case TraceKind::kPhaseEnd:
        close(name, end);
        break;
      case TraceKind::kCall:
        note_message(r, name, start);
        add_call(r, name, start, end);
        break;
      case TraceKind::kWait:
        add_call(r, name, start, end);
        if (const auto found = received_.find(r.payload[2]); found != received_.end()) {
          step_.waits.push_back({found->second, start, end});
        }
        break;
      case TraceKind::kCopy:
        step_.copies.push_back({rank_, Activity::Kind::kCopy, text("copy ", to_string(r.queue)),
                                name, start, end, row_of(r.queue)});
        break;
      case TraceKind::kArrival:
        if (end > start) step_.calls.push_back({"wait for a copy", name, start, end});
        break;
      default:
        break;
    }
  }

  void close(const std::string& name, double end) {
    const double start = open_.empty() ? end : open_.back();
    if (!open_.empty()) open_.pop_back();
    if (open_.empty()) step_.end_s = end;
    if (open_.size() != 1 || name == "update") return;
    const size_t space = std::min(name.find(' '), name.size());
    const std::string label = space < name.size() ? name.substr(space + 1) : "";
    step_.phases.push_back({name.substr(0, space), label, start, end});
  }

  void add_call(const TraceRecord& r, const std::string& verb, double start, double end) {
    const std::string& axis = group_of(r).label;
    step_.calls.push_back({verb, axis.empty() ? verb : text(verb, ' ', axis), start, end});
  }

  const TraceGroup& group_of(const TraceRecord& r) const {
    const TraceCall& call = trace_.calls[static_cast<size_t>(r.payload[0])];
    return trace_.groups[static_cast<size_t>(call.group)];
  }

  /// The n-th message of a sender to a receiver of a group under a tag is one on both ranks.
  void note_message(const TraceRecord& r, const std::string& verb, double start) {
    if (verb != "send" && verb != "recv") return;
    const TraceCall& call = trace_.calls[static_cast<size_t>(r.payload[0])];
    const TraceGroup& group = group_of(r);
    const int peer = group.members[static_cast<size_t>(verb == "send" ? call.to : call.from)];
    std::string members;
    for (const int m : group.members) members += text(' ', m);
    const std::string key = text(group.label, members, ": ", verb == "send" ? rank_ : peer, " to ",
                                 verb == "send" ? peer : rank_, " tag ", call.tag);
    const std::string message = text(key, ", ", numbers_[key]++);
    if (verb == "send") {
      step_.sent[message] = start;
    } else {
      received_[r.payload[2]] = message;
    }
  }

  const Trace& trace_;
  const int rank_;
  ObservedStep step_;
  std::vector<double> open_;                 // begins of phases
  std::map<int64_t, std::string> received_;  // messages by call
  std::map<std::string, int64_t> numbers_;   // of messages so far
};

/// `a` where it lies between the marks, if anything of it does.
void add_part(std::vector<Activity>& all, Activity a, double from, double to) {
  a.start_s = std::max(a.start_s, from);
  a.end_s = std::min(a.end_s, to);
  if (a.end_s > a.start_s) all.push_back(std::move(a));
}

/// A rank's wait for a message that nobody had begun to send.
struct Idle {
  double start_s = 0, end_s = 0;
  std::string label;
};

/// Communication during `idle` becomes idle time.
void cut_idle(std::vector<Activity>& all, const Idle& idle) {
  std::vector<Activity> parts;
  for (const Activity& a : all) {
    const bool meets = a.kind == Activity::Kind::kCommunication && a.start_s < idle.end_s &&
                       a.end_s > idle.start_s;
    if (!meets) {
      parts.push_back(a);
      continue;
    }
    Activity waited = a;
    waited.kind = Activity::Kind::kIdle;
    waited.what = "idle";
    waited.label = idle.label;
    add_part(parts, a, a.start_s, idle.start_s);
    add_part(parts, waited, idle.start_s, idle.end_s);
    add_part(parts, a, idle.end_s, a.end_s);
  }
  all = std::move(parts);
}

/// Calls follow each other; what lies between them is the rank's own.
std::vector<Activity> activities_of(const ObservedStep& step, int rank) {
  std::vector<Span> local;
  if (step.phases.empty()) {
    local.push_back({"compute", "", step.begin_s, step.end_s});
  } else {
    local.push_back({"load", "", step.begin_s, step.phases.front().start_s});
    local.insert(local.end(), step.phases.begin(), step.phases.end());
    local.push_back({"update", "", step.phases.back().end_s, step.end_s});
  }
  std::vector<Activity> all;
  size_t call = 0;
  for (const Span& span : local) {
    const Activity a{rank,      Activity::Kind::kCompute, span.what, span.label, span.start_s,
                     span.end_s};
    double from = span.start_s;
    while (call < step.calls.size() && step.calls[call].end_s <= from) ++call;
    for (size_t c = call; c < step.calls.size() && step.calls[c].start_s < span.end_s; ++c) {
      add_part(all, a, from, step.calls[c].start_s);
      from = std::max(from, step.calls[c].end_s);
    }
    add_part(all, a, from, span.end_s);
  }
  for (const Span& c : step.calls) {
    add_part(all, {rank, Activity::Kind::kCommunication, c.what, c.label, c.start_s, c.end_s},
             step.begin_s, step.end_s);
  }
  std::stable_sort(all.begin(), all.end(),
                   [](const Activity& a, const Activity& b) { return a.start_s < b.start_s; });
  return all;
}

}  // namespace

ActivityLog timeline_of(const std::vector<Trace>& ranks, const std::string& name) {
  KUAFU_REQUIRE(!ranks.empty(), "a log of no ranks");
  std::vector<ObservedStep> steps;
  std::map<std::string, double> sent;
  for (size_t r = 0; r < ranks.size(); ++r) {
    steps.push_back(Reader(ranks[r], static_cast<int>(r)).take());
    sent.insert(steps.back().sent.begin(), steps.back().sent.end());
  }
  double begin = steps[0].begin_s, end = steps[0].end_s;
  for (const ObservedStep& step : steps) {
    begin = std::min(begin, step.begin_s);
    end = std::max(end, step.end_s);
  }
  ActivityLog log{name, end - begin, {}};
  for (size_t r = 0; r < steps.size(); ++r) {
    std::vector<Activity> all = activities_of(steps[r], static_cast<int>(r));
    for (const ObservedStep::Wait& wait : steps[r].waits) {
      const auto found = sent.find(wait.message);
      if (found == sent.end() || found->second <= wait.start_s) continue;
      cut_idle(all, {wait.start_s, std::min(wait.end_s, found->second), "for a message"});
    }
    all.insert(all.end(), steps[r].copies.begin(), steps[r].copies.end());
    for (Activity& a : all) {
      a.start_s -= begin;
      a.end_s -= begin;
      log.activities.push_back(std::move(a));
    }
  }
  complete(log, static_cast<int>(ranks.size()));
  return log;
}

}  // namespace kuafu
