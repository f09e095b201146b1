// SPDX-License-Identifier: Apache-2.0
#include "kuafu/parallel/pipeline/on_cores.h"

#include <algorithm>
#include <limits>
#include <set>

#include "kuafu/base/errors.h"

namespace kuafu::pipeline {
namespace {

/// Ranks between two ends of actions.
class Cores {
 public:
  Cores(const Timetable& t, const std::vector<RowSeconds>& seconds)
      : t_(t), seconds_(seconds), last_stage_(shape_of(t).stages() - 1), next_(t.size(), 0) {
    for (const RowSeconds& row : seconds) left_.push_back(row.empty() ? 0 : row[0]);
  }

  std::vector<size_t> ready() const {
    std::vector<size_t> ranks;
    for (size_t r = 0; r < t_.size(); ++r) {
      if (next_[r] < seconds_[r].size() && is_ready(r)) ranks.push_back(r);
    }
    return ranks;
  }
  double left(size_t rank) const { return left_[rank]; }

  /// The rank does so much of its action; at its end it stands before the next one.
  void work(size_t rank, double seconds, bool is_end) {
    left_[rank] -= seconds;
    if (!is_end) return;
    if (next_[rank] < t_[rank].size()) done_.insert(t_[rank][next_[rank]]);
    if (++next_[rank] < seconds_[rank].size()) left_[rank] = seconds_[rank][next_[rank]];
  }

 private:
  bool is_ready(size_t rank) const {
    if (next_[rank] >= t_[rank].size()) return true;
    const Action& a = t_[rank][next_[rank]];
    if (a.op == Op::kWeightGrad) return true;  // its row has the other half before it
    if (a.op == Op::kForward) {
      return a.stage == 0 || done_.count({Op::kForward, a.stage - 1, a.micro_batch}) > 0;
    }
    return a.stage == last_stage_ || done_.count({Op::kBackward, a.stage + 1, a.micro_batch}) > 0 ||
           done_.count({Op::kInputGrad, a.stage + 1, a.micro_batch}) > 0;
  }

  const Timetable& t_;
  const std::vector<RowSeconds>& seconds_;
  int last_stage_;
  std::vector<size_t> next_;
  std::vector<double> left_;
  std::set<Action> done_;
};

}  // namespace

double length_on_cores(const Timetable& t, const std::vector<RowSeconds>& seconds, int cores) {
  KUAFU_REQUIRE(cores >= 1, cores, " cores; give 1 or more");
  KUAFU_REQUIRE(seconds.size() == t.size(), seconds.size(), " rows of seconds for ", t.size(),
                " ranks");
  for (size_t r = 0; r < t.size(); ++r) {
    KUAFU_REQUIRE(seconds[r].size() == t[r].size() || seconds[r].size() == t[r].size() + 1, "rank ",
                  r, " has ", seconds[r].size(), " durations for ", t[r].size(),
                  " actions; give one each, and one more for what follows them");
  }
  Cores state(t, seconds);
  double now = 0;
  for (std::vector<size_t> ready = state.ready(); !ready.empty(); ready = state.ready()) {
    const double speed =
        std::min(1.0, static_cast<double>(cores) / static_cast<double>(ready.size()));
    double least = std::numeric_limits<double>::infinity();
    for (const size_t r : ready) least = std::min(least, state.left(r));
    for (const size_t r : ready) state.work(r, least, state.left(r) <= least);
    now += least / speed;
  }
  return now;
}

}  // namespace kuafu::pipeline
