// SPDX-License-Identifier: Apache-2.0
#include "kuafu/parallel/tensor/relayout.h"

#include <algorithm>
#include <map>
#include <queue>
#include <tuple>

#include "kuafu/base/errors.h"
#include "kuafu/tensor/collectives.h"

namespace kuafu {
namespace {

using Kind = RelayoutMove::Kind;

/// Axes of each dim behind the common ones.
using State = std::vector<Axes>;

bool is_prefix(const Axes& axes, const Axes& of) {
  return axes.size() <= of.size() && std::equal(axes.begin(), axes.end(), of.begin());
}

bool contains(const State& state, const std::string& axis) {
  return std::any_of(state.begin(), state.end(), [&](const Axes& axes) {
    return std::find(axes.begin(), axes.end(), axis) != axes.end();
  });
}

/// Axes of the mesh longer than 1.
State state_of(const Mesh& mesh, const Layout& layout) {
  State state;
  for (const Axes& axes : layout.dims) {
    state.push_back(mesh.canonical(axes));
    std::erase_if(state.back(), [&](const std::string& axis) { return mesh.size(axis) == 1; });
  }
  return state;
}

struct Step {
  RelayoutMove move;
  State next;
  int64_t forward = 0, backward = 0;
};

/// The graph of layouts: which moves leave a state and what they cost.
class Graph {
 public:
  Graph(const Mesh& mesh, const Shape& local, const Layout& from, const Layout& to)
      : mesh_(mesh), from_(state_of(mesh, from)), to_(state_of(mesh, to)), whole_(local) {
    KUAFU_CHECK(local.size() == from.dims.size() && local.size() == to.dims.size(), "re-layout of ",
                to_string(local), " between layouts of ", from.dims.size(), " and ", to.dims.size(),
                " dims");
    for (size_t d = 0; d < local.size(); ++d) {
      size_t common = 0;
      while (common < std::min(from_[d].size(), to_[d].size()) &&
             from_[d][common] == to_[d][common]) {
        ++common;
      }
      is_fixed_.push_back(common > 0);
      for (State* state : {&from_, &to_}) {
        (*state)[d].erase((*state)[d].begin(), (*state)[d].begin() + static_cast<long>(common));
      }
      whole_[d] *= mesh.size(from_[d]);
      for (const State* state : {&from_, &to_}) {
        for (const std::string& axis : (*state)[d]) {
          if (std::find(axes_.begin(), axes_.end(), axis) == axes_.end()) axes_.push_back(axis);
        }
      }
    }
    local_shape(Layout{to_}, whole_, mesh_, "re-layout");
  }

  const State& from() const { return from_; }
  const State& to() const { return to_; }

  std::vector<Step> steps(const State& at) const {
    std::vector<Step> out;
    const int64_t dims = static_cast<int64_t>(at.size()), n = numel(at);
    for (int64_t d = 0; d < dims; ++d) {
      for (const std::string& axis : axes_) {
        if (!contains(at, axis)) add(out, at, {Kind::kSlice, axis, -1, d}, n);
      }
      if (at[static_cast<size_t>(d)].empty()) continue;
      const std::string& minor = at[static_cast<size_t>(d)].back();
      add(out, at, {Kind::kCollect, minor, d, -1}, n);
      for (int64_t other = 0; other < dims; ++other) {
        if (other != d) add(out, at, {Kind::kExchange, minor, d, other}, n);
      }
    }
    return out;
  }

 private:
  /// Elements of a shard.
  int64_t numel(const State& at) const {
    int64_t n = 1;
    for (size_t d = 0; d < at.size(); ++d) n *= whole_[d] / mesh_.size(at[d]);
    return n;
  }

  /// Where ranks may hold different extents of a dim, only the ends' own axes divide it on all.
  bool is_legal(const Axes& axes, size_t d) const {
    if (is_fixed_[d] && !is_prefix(axes, from_[d]) && !is_prefix(axes, to_[d])) return false;
    return whole_[d] % mesh_.size(axes) == 0;
  }

  void add(std::vector<Step>& out, const State& at, const RelayoutMove& move, int64_t n) const {
    Step step{move, at};
    const int64_t p = mesh_.size(move.axis);
    if (move.from >= 0) step.next[static_cast<size_t>(move.from)].pop_back();
    if (move.to >= 0) {
      Axes& axes = step.next[static_cast<size_t>(move.to)];
      axes.push_back(move.axis);
      if (!is_legal(axes, static_cast<size_t>(move.to))) return;
    }
    if (move.kind == Kind::kCollect) step.forward = (p - 1) * n;
    if (move.kind == Kind::kSlice) step.backward = (p - 1) * (n / p);
    if (move.kind == Kind::kExchange) step.forward = step.backward = (p - 1) * (n / p);
    out.push_back(std::move(step));
  }

  const Mesh& mesh_;
  State from_, to_;
  Shape whole_;  ///< the tensor of the ranks that the common axes leave
  std::vector<bool> is_fixed_;
  Axes axes_;
};

/// How a state was reached best.
struct Reached {
  int64_t cost = 0, moves = 0;
  State parent;
  Step step;
};

}  // namespace

/// Dijkstra over layouts.
RelayoutPlan plan_relayout(const Mesh& mesh, const Shape& local, const Layout& from,
                           const Layout& to) {
  const Graph graph(mesh, local, from, to);
  std::map<State, Reached> reached = {{graph.from(), {}}};
  using Entry = std::tuple<int64_t, int64_t, State>;  // cost, moves, state
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> open;
  open.emplace(0, 0, graph.from());
  while (!open.empty()) {
    const auto [cost, moves, at] = open.top();
    open.pop();
    if (at == graph.to()) break;
    const Reached& best = reached.at(at);
    if (std::pair(cost, moves) > std::pair(best.cost, best.moves)) continue;
    for (Step& step : graph.steps(at)) {
      Reached next{cost + step.forward + step.backward, moves + 1, at, step};
      const auto found = reached.find(step.next);
      if (found != reached.end() &&
          std::pair(next.cost, next.moves) >= std::pair(found->second.cost, found->second.moves)) {
        continue;
      }
      open.emplace(next.cost, next.moves, step.next);
      reached[step.next] = std::move(next);
    }
  }
  RelayoutPlan plan;
  for (State at = graph.to(); at != graph.from();) {
    const Reached& r = reached.at(at);  // gathering all and cutting anew is always a way
    plan.moves.push_back(r.step.move);
    plan.forward += r.step.forward;
    plan.backward += r.step.backward;
    at = State(r.parent);
  }
  std::reverse(plan.moves.begin(), plan.moves.end());
  return plan;
}

Tensor relayout(const Mesh& mesh, Tensor x, const RelayoutPlan& plan) {
  for (const RelayoutMove& move : plan.moves) {
    Communicator& group = mesh.comm(move.axis);
    if (move.kind == Kind::kSlice) x = slice(x, group, move.to);
    if (move.kind == Kind::kCollect) x = collect(x, group, move.from);
    if (move.kind == Kind::kExchange) x = exchange(x, group, move.to, move.from);
  }
  return x;
}

Tensor relayout(const Mesh& mesh, const Tensor& x, const Layout& from, const Layout& to) {
  return relayout(mesh, x, plan_relayout(mesh, shape_of(x), from, to));
}

std::string to_string(const RelayoutPlan& plan) {
  std::string out;
  for (const RelayoutMove& move : plan.moves) {
    const std::string by = " by " + move.axis;
    out += out.empty() ? "" : "; ";
    if (move.kind == Kind::kSlice) out += text("slice dim ", move.to, by);
    if (move.kind == Kind::kCollect) out += text("collect dim ", move.from, by);
    if (move.kind == Kind::kExchange) out += text("exchange dim ", move.from, " for ", move.to, by);
  }
  return out.empty() ? "nothing to do" : out;
}

}  // namespace kuafu
