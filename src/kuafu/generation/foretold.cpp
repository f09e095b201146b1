// SPDX-License-Identifier: Apache-2.0
//
// Each forward is a "step" of the trace, whose end the replay tells. Of those of one token the third is
// priced: the first begins with an empty device, and from the second on one is like the next.

#include "kuafu/generation/foretold.h"

#include <algorithm>
#include <limits>

#include "kuafu/base/trace.h"
#include "kuafu/generation/meta_rank.h"
#include "kuafu/meter/book.h"
#include "kuafu/simulate/priced_events.h"
#include "kuafu/simulate/replay.h"

namespace kuafu {
namespace {

constexpr double kPicosecond = 1e-12;
/// Forwards of one token that are made.
constexpr int64_t kLater = 3;

/// What one rank has moved after each of its forwards, and what it held.
class Forwards {
 public:
  Forwards(Engine& engine, const BatchSize& size) : engine_(engine), size_(size) {}

  void make() {
    const int64_t sequence = engine_.plan().model.sequence;
    if (size_.cache == Cache::kOff || !engine_.why_no_cache().empty()) {
      for (int64_t i = 0; i <= kLater; ++i) one(sequence, size_.longest - 1, nullptr);
      return;
    }
    KeyValueCache cache(cache_capacity(engine_.plan(), size_),
                        size_.cache == Cache::kHost ? engine_.make_cache_home() : nullptr);
    one(size_.longest, size_.longest - 1, &cache);
    const int64_t last = cache_capacity(engine_.plan(), size_) - 1;
    for (int64_t i = 0; i < kLater && size_.longest < sequence; ++i) {
      one(1, (size_.longest + last) / 2, &cache);
    }
    cache_bytes = cache.bytes();
  }

  struct Moved {
    int64_t to_device = 0, cache_to_device = 0, cache_to_host = 0;
  };
  std::vector<Moved> after;  ///< each forward, since the first
  int64_t cache_bytes = 0;

 private:
  void one(int64_t tokens, int64_t position, KeyValueCache* cache) {
    {
      const TracePhase forward(kStepPhase);
      meta_forward(engine_, tokens, position, cache);
    }
    const auto [in, out] = engine_.cache_moves();
    after.push_back({engine_.loaded().value_or(0), in, out});
  }

  Engine& engine_;
  const BatchSize& size_;
};

/// Of all forwards, from what it was after each of those that were made.
int64_t of_all(const std::vector<Forwards::Moved>& after, int64_t Forwards::Moved::*what,
               int64_t forwards) {
  const auto at = [&](size_t i) { return after[i].*what; };
  const auto made = static_cast<int64_t>(after.size());
  if (forwards <= made) return at(static_cast<size_t>(forwards) - 1);
  return after.back().*what + (forwards - made) * (after.back().*what - at(after.size() - 2));
}

/// When the last rank ended each forward.
std::vector<int64_t> ends(const std::vector<Trace>& traces, const ClusterPlan& cluster) {
  std::vector<std::vector<int64_t>> by_rank(traces.size());
  replay(traces, cluster, [&](const ReplaySpan& span) {
    if (span.kind != ReplaySpan::Kind::kMark) return;
    const auto r = static_cast<size_t>(span.rank);
    if (traces[r].names[static_cast<size_t>(span.name)] != kStepPhase) return;
    by_rank[r].push_back(span.end_ps);
  });
  std::vector<int64_t> out(by_rank[0].size());
  for (const std::vector<int64_t>& of : by_rank) {
    for (size_t i = 0; i < out.size(); ++i) out[i] = std::max(out[i], of.at(i));
  }
  return out;
}

}  // namespace

ForetoldGeneration foretell_generation(const Plan& plan, const Registries& registries,
                                       const BatchSize& size) {
  const auto ranks = static_cast<int>(num_ranks(plan));
  const bool has_tiers = plan.memory.has_tiers();
  ForetoldGeneration out;
  out.forwards = std::min(size.tokens, plan.model.sequence - size.longest);
  SimulatedWorld world(ranks);
  std::vector<Trace> traces;
  for (int rank = 0; rank < ranks; ++rank) {
    TraceRecorder recorder(TraceRecorder::Clock::kNone, TraceRecorder::Keeps::kWorkByPhase);
    on_meta_rank(plan, registries, world, rank, [&](Engine& engine, RankBook& book) {
      out.why_no_cache = engine.why_no_cache();
      foretell_forwards(engine, registries, rank, size);
      Forwards forwards(engine, size);
      {
        const TraceScope traced(&recorder);
        forwards.make();
      }
      out.cache_bytes = std::max(out.cache_bytes, forwards.cache_bytes);
      out.peak.push_back(book.peak());
      if (!has_tiers) return;
      out.host_peak.push_back(engine.moves().host_peak);
      const auto add = [&](std::vector<int64_t>& to, int64_t Forwards::Moved::*what) {
        to.push_back(of_all(forwards.after, what, out.forwards));
      };
      add(out.to_device, &Forwards::Moved::to_device);
      add(out.cache_to_device, &Forwards::Moved::cache_to_device);
      add(out.cache_to_host, &Forwards::Moved::cache_to_host);
    });
    traces.push_back(recorder.take());
  }
  const std::vector<int64_t> end = ends(traces, plan.cluster);
  out.prompts_s = static_cast<double>(end.front()) * kPicosecond;
  if (end.size() > 1) {
    out.token_s = static_cast<double>(end.back() - end[end.size() - 2]) * kPicosecond;
  }
  return out;
}

}  // namespace kuafu
