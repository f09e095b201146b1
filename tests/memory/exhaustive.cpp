// SPDX-License-Identifier: Apache-2.0
#include "tests/memory/exhaustive.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "kuafu/base/errors.h"

namespace kuafu::memory {
namespace {

constexpr int64_t kNever = std::numeric_limits<int64_t>::max() / 4;

// A state is a number of base 3, a digit a chunk: 0 out, 1 clean, 2 dirty.
using Costs = std::vector<int64_t>;  // by state

class Search {
 public:
  Search(const UseTrace& trace, int64_t budget) : trace_(trace), budget_(budget) {
    for (int64_t c = 0; c < trace.num_chunks(); ++c)
      power_.push_back(c == 0 ? 1 : 3 * power_.back());
    states_ = 3 * power_.back();
    for (int64_t t = 0; t < trace.num_moments(); ++t) {
      std::vector<bool> may(static_cast<size_t>(states_));
      for (int64_t state = 0; state < states_; ++state) {
        may[static_cast<size_t>(state)] = may_compute(t, state);
      }
      may_.push_back(may);
    }
  }

  int64_t least() const {
    std::vector<int64_t> starts = states_at(0);
    int64_t first = 0;
    for (int64_t t = 1; t < trace_.num_moments(); ++t) {
      std::vector<int64_t> others = states_at(t);
      if (others.size() >= starts.size()) continue;
      starts = others;
      first = t;
    }
    int64_t best = kNever;
    for (const int64_t start : starts) best = std::min(best, around(first, start, best));
    return best;
  }

 private:
  int64_t digit(int64_t state, int64_t chunk) const {
    return state / power_[static_cast<size_t>(chunk)] % 3;
  }

  /// Whether a moment can compute with this state.
  bool may_compute(int64_t t, int64_t state) const {
    const Moment& moment = trace_.moments[static_cast<size_t>(t)];
    int64_t live = moment.in_use;
    for (int64_t c = 0; c < trace_.num_chunks(); ++c) {
      if (digit(state, c) != 0) live += trace_.chunks[static_cast<size_t>(c)].bytes;
    }
    for (const ChunkUse& use : moment.uses) {
      if ((digit(state, use.chunk) != 0) != needs_device(use.access)) return false;
    }
    return live <= budget_;
  }

  std::vector<int64_t> states_at(int64_t t) const {
    std::vector<int64_t> out;
    for (int64_t state = 0; state < states_; ++state) {
      if (may_[static_cast<size_t>(t)][static_cast<size_t>(state)]) out.push_back(state);
    }
    return out;
  }

  /// Whether the first use from moment t on puts something else in the chunk's place.
  bool is_lost_at(int64_t t, int64_t chunk) const {
    for (int64_t i = 0; i < trace_.num_moments(); ++i) {
      const size_t at = static_cast<size_t>((t + i) % trace_.num_moments());
      for (const ChunkUse& use : trace_.moments[at].uses) {
        if (use.chunk == chunk) return use.access == Access::kOverwrite;
      }
    }
    return false;
  }

  /// One chunk leaves, comes or is written back, or not, before moment t.
  void change(int64_t t, int64_t chunk, Costs& costs) const {
    const int64_t step = power_[static_cast<size_t>(chunk)];
    const int64_t bytes = trace_.chunks[static_cast<size_t>(chunk)].bytes;
    const bool is_lost = is_lost_at(t, chunk);
    bool is_overwritten = false;
    for (const ChunkUse& use : trace_.moments[static_cast<size_t>(t)].uses) {
      if (use.chunk == chunk) is_overwritten = use.access == Access::kOverwrite;
    }
    for (int64_t state = 0; state < states_; ++state) {
      if (digit(state, chunk) != 0) continue;
      const int64_t out = costs[static_cast<size_t>(state)];
      const int64_t clean = costs[static_cast<size_t>(state + step)];
      const int64_t dirty = costs[static_cast<size_t>(state + 2 * step)];
      costs[static_cast<size_t>(state)] = std::min({out, clean, dirty + (is_lost ? 0 : bytes)});
      costs[static_cast<size_t>(state + step)] =
          std::min({clean, dirty + bytes, out + (is_overwritten ? 0 : bytes)});
    }
  }

  void compute(int64_t t, int64_t best, Costs& costs) const {
    const std::vector<bool>& may = may_[static_cast<size_t>(t)];
    for (int64_t state = 0; state < states_; ++state) {
      int64_t& cost = costs[static_cast<size_t>(state)];
      if (cost >= best || !may[static_cast<size_t>(state)]) cost = kNever;
    }
    for (const ChunkUse& use : trace_.moments[static_cast<size_t>(t)].uses) {
      if (!writes(use.access)) continue;
      for (int64_t state = 0; state < states_; ++state) {
        if (digit(state, use.chunk) != 1) continue;
        int64_t& clean = costs[static_cast<size_t>(state)];
        int64_t& dirty = costs[static_cast<size_t>(state + power_[static_cast<size_t>(use.chunk)])];
        dirty = std::min(dirty, clean);
        clean = kNever;
      }
    }
  }

  /// From `start` as moment `first` computes to the same one step later; ways of `best` or more are
  /// left.
  int64_t around(int64_t first, int64_t start, int64_t best) const {
    Costs costs(static_cast<size_t>(states_), kNever);
    costs[static_cast<size_t>(start)] = 0;
    for (int64_t i = 0; i < trace_.num_moments(); ++i) {
      const int64_t t = (first + i) % trace_.num_moments();
      compute(t, best, costs);
      const int64_t next = (t + 1) % trace_.num_moments();
      for (int64_t c = 0; c < trace_.num_chunks(); ++c) change(next, c, costs);
    }
    return costs[static_cast<size_t>(start)];
  }

  const UseTrace& trace_;
  int64_t budget_;
  std::vector<int64_t> power_;
  int64_t states_ = 1;
  std::vector<std::vector<bool>> may_ = {};  ///< by moment and state
};

}  // namespace

int64_t exhaustive_least_bytes(const UseTrace& trace, int64_t budget) {
  check(trace);
  KUAFU_REQUIRE(trace.num_chunks() > 0 && trace.num_chunks() <= kMostExhaustive, "all states of ",
                trace.num_chunks(), " chunks are not tried; 1 to ", kMostExhaustive, " are");
  return Search(trace, budget).least();
}

}  // namespace kuafu::memory
