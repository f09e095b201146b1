// SPDX-License-Identifier: Apache-2.0
#include "kuafu/parallel/pipeline/play.h"

#include <algorithm>
#include <map>

namespace kuafu::pipeline {
namespace {

/// Ends of compute actions so far.
class Ends {
 public:
  void note(const Action& a, double end) { ends_[a] = end; }

  /// End of `a` (or of the whole backward it may be part of); negative while it has not run.
  double of(Action a) const {
    if (const auto found = ends_.find(a); found != ends_.end()) return found->second;
    if (a.op != Op::kInputGrad) return -1;
    a.op = Op::kBackward;
    const auto whole = ends_.find(a);
    return whole == ends_.end() ? -1 : whole->second;
  }

 private:
  std::map<Action, double> ends_;
};

/// What an action needs: (action, whether it may run on another rank).
std::vector<Action> needs(const Action& a, int num_stages) {
  const int s = a.stage, m = a.micro_batch;
  switch (a.op) {
    case Op::kForward:
      return s == 0 ? std::vector<Action>{} : std::vector<Action>{{Op::kForward, s - 1, m}};
    case Op::kBackward:
    case Op::kInputGrad:
      if (s == num_stages - 1) return {{Op::kForward, s, m}};
      return {{Op::kForward, s, m}, {Op::kInputGrad, s + 1, m}};
    case Op::kWeightGrad:
      return {{Op::kInputGrad, s, m}};
    default:
      return {};
  }
}

}  // namespace

Playback play(const Timetable& t, const std::vector<int>& rank_of_stage, const OpCosts& costs) {
  const int num_stages = static_cast<int>(rank_of_stage.size());
  Playback p;
  p.spans.resize(t.size());
  Ends ends;
  std::vector<double> clock(t.size(), 0);
  std::vector<std::pair<double, Position>> ended;
  for (bool is_moving = true; is_moving;) {
    is_moving = false;
    for (size_t r = 0; r < t.size(); ++r) {
      while (p.spans[r].size() < t[r].size()) {
        const Action a = t[r][p.spans[r].size()];
        double start = clock[r];
        bool is_ready = true;
        for (const Action& need : needs(a, num_stages)) {
          const double end = ends.of(need);
          is_ready = is_ready && end >= 0;
          const bool is_far = rank_of_stage[static_cast<size_t>(need.stage)] != static_cast<int>(r);
          start = std::max(start, end + (is_far ? costs.transfer : 0));
        }
        if (!is_ready) break;
        clock[r] = start + costs.of(a);
        if (!is_message(a.op)) ends.note(a, clock[r]);
        ended.push_back({clock[r], {static_cast<int>(r), static_cast<int>(p.spans[r].size())}});
        p.spans[r].push_back({a, start, clock[r]});
        is_moving = true;
      }
    }
  }
  std::stable_sort(ended.begin(), ended.end(),
                   [](const auto& x, const auto& y) { return x.first < y.first; });
  for (const auto& [end, position] : ended) p.order.push_back(position);
  for (size_t r = 0; r < t.size(); ++r) {
    const size_t next = p.spans[r].size();
    if (next < t[r].size()) p.stuck.push_back({static_cast<int>(r), static_cast<int>(next)});
  }
  return p;
}

}  // namespace kuafu::pipeline
