// SPDX-License-Identifier: Apache-2.0
#include "kuafu/parallel/pipeline/analysis.h"

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <map>
#include <numeric>

#include "kuafu/base/errors.h"
#include "kuafu/parallel/pipeline/play.h"

namespace kuafu::pipeline {
namespace {

constexpr size_t kWholeRow = 16;  ///< actions; a longer row is cut around what it is shown for
constexpr size_t kContext = 4;    ///< actions shown on each side of it
constexpr size_t kShownRows = 8;

/// The positions of one rank, in row order.
std::vector<size_t> of_rank(const std::vector<Position>& culprits, size_t rank) {
  std::vector<size_t> found;
  for (const Position& p : culprits) {
    if (p.rank == static_cast<int>(rank)) found.push_back(static_cast<size_t>(p.index));
  }
  std::sort(found.begin(), found.end());
  return found;
}

/// A row as text, those of its actions between > and <; "..." stands for what is left out.
std::string row_text(const Row& row, const std::vector<size_t>& marked) {
  const bool is_whole = row.size() <= kWholeRow;
  const size_t first = marked.empty() ? 0 : marked.front();
  const size_t last = marked.empty() ? 0 : marked.back();
  const size_t from = is_whole || first <= kContext ? 0 : first - kContext;
  const size_t to = is_whole ? row.size() : std::min(row.size(), last + kContext + 1);
  std::string out = from > 0 ? " ..." : "";
  for (size_t i = from; i < to; ++i) {
    const bool is_marked = std::find(marked.begin(), marked.end(), i) != marked.end();
    out += is_marked ? text(" >", to_string(row[i]), "<") : " " + to_string(row[i]);
  }
  return out + (to < row.size() ? " ..." : "");
}

/// The rows as text, the positions named between > and <: all of a small table, else the rows that
/// hold one, near it.
std::string excerpt(const Timetable& t, const std::vector<Position>& culprits) {
  const bool is_small = t.size() <= kShownRows && std::all_of(t.begin(), t.end(), [](const Row& r) {
                          return r.size() <= kWholeRow;
                        });
  std::string out;
  size_t shown = 0, left_out = 0;
  for (size_t r = 0; r < t.size(); ++r) {
    const std::vector<size_t> marked = of_rank(culprits, r);
    if (!is_small && !culprits.empty() && marked.empty()) continue;
    if (shown == kShownRows) {
      ++left_out;
      continue;
    }
    out += text("\n  rank ", r, ":", row_text(t[r], marked));
    ++shown;
  }
  return left_out == 0 ? out : text(out, "\n  and ", left_out, " ranks more");
}

/// Where an action that is missing would be looked for: the last one that its stage has of the nearest
/// micro-batch. @pre a row holds the stage
Position near_missing(const Timetable& t, const Action& missing) {
  Position near;
  int least = std::numeric_limits<int>::max();
  for (size_t r = 0; r < t.size(); ++r) {
    for (size_t i = 0; i < t[r].size(); ++i) {
      if (t[r][i].stage != missing.stage) continue;
      const int distance = std::abs(t[r][i].micro_batch - missing.micro_batch);
      if (distance > least) continue;
      least = distance;
      near = {static_cast<int>(r), static_cast<int>(i)};
    }
  }
  return near;
}

/// Every action that must occur, each 0 times so far.
std::map<Action, int> wanted(const Timetable& t, PipeShape s) {
  std::map<Action, int> count;
  std::map<std::pair<int, int>, bool> is_split;
  for (const Row& row : t) {
    for (const Action& a : row) {
      if (a.op == Op::kInputGrad || a.op == Op::kWeightGrad) {
        is_split[{a.stage, a.micro_batch}] = true;
      }
    }
  }
  for (int stage = 0; stage < s.stages(); ++stage) {
    for (int m = 0; m < s.micro_batches; ++m) {
      count[{Op::kForward, stage, m}] = 0;
      if (is_split[{stage, m}]) {
        count[{Op::kInputGrad, stage, m}] = count[{Op::kWeightGrad, stage, m}] = 0;
      } else {
        count[{Op::kBackward, stage, m}] = 0;
      }
    }
  }
  return count;
}

void check_once(const Timetable& t, PipeShape s) {
  std::map<Action, int> count = wanted(t, s);
  for (size_t r = 0; r < t.size(); ++r) {
    for (size_t i = 0; i < t[r].size(); ++i) {
      const Action& a = t[r][i];
      if (is_message(a.op)) continue;
      const Position position{static_cast<int>(r), static_cast<int>(i)};
      const auto found = count.find(a);
      KUAFU_REQUIRE(found != count.end(), "action ", to_string(a), " of rank ", r,
                    " does not belong to ", s.stages(), " stages and ", s.micro_batches,
                    " micro-batches", excerpt(t, {position}));
      KUAFU_REQUIRE(++found->second == 1, "action ", to_string(a), " of rank ", r, " occurs twice",
                    excerpt(t, {position}));
    }
  }
  for (const auto& [action, times] : count) {
    if (times == 1) continue;
    const Position near = near_missing(t, action);
    throw ConfigError(text("action ", to_string(action), " is missing in the row of rank ",
                           near.rank, ", near here:", excerpt(t, {near})));
  }
}

/// Most stage inputs kept at once: from a forward until its weights have their gradient.
int peak_alive(const Row& row) {
  int alive = 0, peak = 0;
  for (const Action& a : row) {
    if (a.op == Op::kForward) peak = std::max(peak, ++alive);
    if (a.op == Op::kBackward || a.op == Op::kWeightGrad) --alive;
  }
  return peak;
}

}  // namespace

double OpCosts::of(const Action& a) const {
  const double weight = stage_weight.empty() ? 1 : stage_weight.at(static_cast<size_t>(a.stage));
  switch (a.op) {
    case Op::kForward:
      return weight * forward;
    case Op::kBackward:
      return weight * (input_grad + weight_grad);
    case Op::kInputGrad:
      return weight * input_grad;
    case Op::kWeightGrad:
      return weight * weight_grad;
    default:
      return 0;
  }
}

double Estimate::bubble() const {
  const double most = *std::max_element(busy.begin(), busy.end());
  return most > 0 ? length / most - 1 : 0;
}

void validate(const Timetable& t, PipeShape s, int max_alive) {
  KUAFU_REQUIRE(static_cast<int>(t.size()) == s.ranks, "a schedule of ", t.size(),
                " rows for a pipeline of ", s.ranks, " ranks");
  const std::vector<int> ranks = ranks_of_stages(t, s.stages());
  check_once(t, s);
  const Playback p = play(t, ranks, {});
  KUAFU_REQUIRE(p.stuck.empty(), "the schedule deadlocks: each rank waits for what another does ",
                "later", excerpt(t, p.stuck));
  for (size_t r = 0; r < t.size() && max_alive > 0; ++r) {
    const int peak = peak_alive(t[r]);
    KUAFU_REQUIRE(peak <= max_alive, "rank ", r, " keeps ", peak,
                  " stage inputs at once; allowed: ", max_alive, excerpt(t, {}));
  }
}

Timetable lower(const Timetable& t) {
  const PipeShape shape = shape_of(t);
  const int stages = shape.stages();
  const std::vector<int> rank_of = ranks_of_stages(t, stages);
  const Playback p = play(t, rank_of, {});
  // Messages go into both rows in one order, that in which their data come to be.
  std::vector<std::map<int, Row>> before(t.size()), after(t.size());
  for (const Position& position : p.order) {
    const TimedAction& span =
        p.spans[static_cast<size_t>(position.rank)][static_cast<size_t>(position.index)];
    const Action a = span.action;
    const bool is_gradient = a.op == Op::kBackward || a.op == Op::kInputGrad;
    const int to_stage = a.op == Op::kForward ? a.stage + 1 : a.stage - 1;
    if ((a.op != Op::kForward && !is_gradient) || to_stage < 0 || to_stage >= stages) continue;
    const auto to = static_cast<size_t>(rank_of[static_cast<size_t>(to_stage)]);
    if (static_cast<int>(to) == position.rank) continue;
    after[static_cast<size_t>(position.rank)][position.index].push_back(
        {is_gradient ? Op::kSendBackward : Op::kSendForward, a.stage, a.micro_batch});
    const auto& theirs = p.spans[to];
    const auto next = std::find_if(theirs.begin(), theirs.end(),
                                   [&](const TimedAction& s) { return s.start >= span.end; });
    before[to][static_cast<int>(next - theirs.begin())].push_back(
        {is_gradient ? Op::kRecvBackward : Op::kRecvForward, to_stage, a.micro_batch});
  }
  Timetable out(t.size());
  for (size_t r = 0; r < t.size(); ++r) {
    for (size_t i = 0; i < t[r].size(); ++i) {
      const Row& first = before[r][static_cast<int>(i)];
      const Row& then = after[r][static_cast<int>(i)];
      out[r].insert(out[r].end(), first.begin(), first.end());
      out[r].push_back(t[r][i]);
      out[r].insert(out[r].end(), then.begin(), then.end());
    }
  }
  return out;
}

Estimate estimate(const Timetable& t, const OpCosts& costs) {
  const Playback p = play(t, ranks_of_stages(t, shape_of(t).stages()), costs);
  KUAFU_REQUIRE(p.stuck.empty(), "the schedule deadlocks", excerpt(t, p.stuck));
  Estimate e;
  e.spans = p.spans;
  for (size_t r = 0; r < t.size(); ++r) {
    double busy = 0;
    for (const TimedAction& span : p.spans[r]) {
      busy += span.end - span.start;
      e.length = std::max(e.length, span.end);
    }
    e.busy.push_back(busy);
    e.peak_alive.push_back(peak_alive(t[r]));
  }
  return e;
}

std::vector<int> partition(const std::vector<double>& layer_costs, int stages) {
  const auto n = layer_costs.size();
  if (stages < 1 || n < static_cast<size_t>(stages)) {
    throw Refused(text(n, " layers cannot fill ", stages, " stages; nearest: ", n, " stages"));
  }
  std::vector<double> sum(n + 1, 0);
  std::partial_sum(layer_costs.begin(), layer_costs.end(), sum.begin() + 1);
  // best[k][i]: the least cost of the largest of k stages over the first i layers.
  const auto k_max = static_cast<size_t>(stages);
  std::vector<std::vector<double>> best(k_max + 1, std::vector<double>(n + 1, 1e300));
  std::vector<std::vector<size_t>> cut(k_max + 1, std::vector<size_t>(n + 1, 0));
  best[0][0] = 0;
  for (size_t k = 1; k <= k_max; ++k) {
    for (size_t i = k; i <= n; ++i) {
      for (size_t j = k - 1; j < i; ++j) {
        const double cost = std::max(best[k - 1][j], sum[i] - sum[j]);
        if (cost < best[k][i]) {
          best[k][i] = cost;
          cut[k][i] = j;
        }
      }
    }
  }
  std::vector<int> layers(k_max);
  for (size_t k = k_max, i = n; k > 0; --k) {
    layers[k - 1] = static_cast<int>(i - cut[k][i]);
    i = cut[k][i];
  }
  return layers;
}

}  // namespace kuafu::pipeline
