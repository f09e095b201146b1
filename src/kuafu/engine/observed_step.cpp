// SPDX-License-Identifier: Apache-2.0
#include "kuafu/engine/observed_step.h"

#include <algorithm>
#include <chrono>

#include "kuafu/base/errors.h"

namespace kuafu {
namespace {

using pipeline::Action;
using pipeline::Op;

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

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

}  // namespace

std::string mark_of(const Action& action) {
  switch (action.op) {
    case Op::kForward:
      return "forward " + to_string(action);
    case Op::kBackward:
      return "backward " + to_string(action);
    case Op::kInputGrad:
      return "input_grad " + to_string(action);
    case Op::kWeightGrad:
      return "weight_grad " + to_string(action);
    default:
      return "";
  }
}

void StepObserver::begin(int rank, int pipeline) {
  rank_ = rank;
  pipeline_ = pipeline;
  step_ = {};
  actions_.clear();
  calls_.clear();
  step_.begin_s = seconds_now();
}

std::string StepObserver::message(int boundary, char direction, int micro_batch) const {
  return text(pipeline_, ' ', boundary, direction, micro_batch);
}

void StepObserver::note(int, const Action& a, double start_s, double end_s) {
  switch (a.op) {
    case Op::kSendForward:
      step_.sent[message(a.stage, 'f', a.micro_batch)] = start_s;
      return;
    case Op::kSendBackward:
      step_.sent[message(a.stage - 1, 'b', a.micro_batch)] = start_s;
      return;
    case Op::kRecvForward:
      step_.waits.push_back({message(a.stage - 1, 'f', a.micro_batch), start_s, end_s});
      return;
    case Op::kRecvBackward:
      step_.waits.push_back({message(a.stage, 'b', a.micro_batch), start_s, end_s});
      return;
    default:
      break;
  }
  const std::string mark = mark_of(a);
  const size_t space = mark.find(' ');
  actions_.push_back({mark.substr(0, space), mark.substr(space + 1), start_s, end_s});
}

void StepObserver::note(const std::string& axis, Verb verb, double start_s, double end_s) {
  const std::string what{to_string(verb)};
  calls_.push_back({what, axis.empty() ? what : text(what, ' ', axis), start_s, end_s});
}

ObservedStep StepObserver::end() {
  step_.end_s = seconds_now();
  std::vector<Span> local;
  if (actions_.empty()) {
    local.push_back({"compute", "", step_.begin_s, step_.end_s});
  } else {
    local.push_back({"load", "", step_.begin_s, actions_.front().start_s});
    local.insert(local.end(), actions_.begin(), actions_.end());
    local.push_back({"update", "", actions_.back().end_s, step_.end_s});
  }
  // Calls follow each other; what lies between them is the rank's own.
  std::vector<Activity>& all = step_.activities;
  size_t call = 0;
  for (const Span& span : local) {
    Activity a{rank_, Activity::Kind::kCompute, span.what, span.label, span.start_s, span.end_s};
    double from = span.start_s;
    while (call < calls_.size() && calls_[call].end_s <= from) ++call;
    for (size_t c = call; c < calls_.size() && calls_[c].start_s < span.end_s; ++c) {
      add_part(all, a, from, calls_[c].start_s);
      from = std::max(from, calls_[c].end_s);
    }
    add_part(all, a, from, span.end_s);
  }
  for (const Span& c : calls_) {
    add_part(all, {rank_, Activity::Kind::kCommunication, c.what, c.label, c.start_s, c.end_s},
             step_.begin_s, step_.end_s);
  }
  std::stable_sort(all.begin(), all.end(),
                   [](const Activity& a, const Activity& b) { return a.start_s < b.start_s; });
  return std::move(step_);
}

ActivityLog log_of(const std::vector<ObservedStep>& ranks, const std::string& name) {
  KUAFU_REQUIRE(!ranks.empty(), "a log of no ranks");
  std::map<std::string, double> sent;
  double begin = ranks[0].begin_s, end = ranks[0].end_s;
  for (const ObservedStep& r : ranks) {
    sent.insert(r.sent.begin(), r.sent.end());
    begin = std::min(begin, r.begin_s);
    end = std::max(end, r.end_s);
  }
  ActivityLog log{name, end - begin, {}};
  for (const ObservedStep& r : ranks) {
    std::vector<Activity> all = r.activities;
    for (const ObservedStep::Wait& wait : r.waits) {
      const auto found = sent.find(wait.message);
      if (found == sent.end() || found->second <= wait.start_s) continue;
      cut_idle(all, {wait.start_s, std::min(wait.end_s, found->second), "for a message"});
    }
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
