// SPDX-License-Identifier: Apache-2.0
//
// Each forward is a "step" of the trace, whose end the replay tells. Behind it all ranks are told the
// tokens, so that the next one begins when the last stage is done. Of more forwards than are made the
// later half of these is what the rest is like.

#include "kuafu/generation/foretold.h"

#include <algorithm>

#include "kuafu/base/trace.h"
#include "kuafu/generation/meta_rank.h"
#include "kuafu/meter/book.h"
#include "kuafu/simulate/priced_events.h"
#include "kuafu/simulate/replay.h"

namespace kuafu {
namespace {

constexpr double kPicosecond = 1e-12;
/// Forwards that are made at most.
constexpr int64_t kMost = 512;

/// What one rank has moved after each of its forwards.
class Forwards {
 public:
  Forwards(const MetaRank& rank, const BatchSize& size) : rank_(rank), size_(size) {}

  void make(int64_t forwards) {
    const Plan& plan = rank_.engine.plan();
    const bool has_cache = size_.cache != Cache::kOff && rank_.engine.why_no_cache().empty();
    KeyValueCache cache(cache_capacity(plan, size_),
                        size_.cache == Cache::kHost ? rank_.engine.make_cache_home() : nullptr);
    for (int64_t i = 0; i < std::min(forwards, kMost); ++i) {
      const int64_t tokens = !has_cache ? plan.model.sequence : i == 0 ? size_.longest : 1;
      one(tokens, size_.longest - 1 + i, has_cache ? &cache : nullptr);
    }
    cache_bytes = cache.bytes();
  }

  struct Moved {
    int64_t to_device = 0, cache_to_device = 0, cache_to_host = 0, from_disk = 0;
  };
  std::vector<Moved> after;  ///< each forward, since the first
  int64_t cache_bytes = 0;

 private:
  void one(int64_t tokens, int64_t position, KeyValueCache* cache) {
    const TracePhase forward(kStepPhase);
    meta_forward(rank_.engine, tokens, position, cache);
    // A token and its ending of each sample, and why all ends.
    std::vector<int64_t> told(static_cast<size_t>(2 * rank_.engine.plan().train.batch + 1));
    rank_.world.all_reduce({told.data(), std::ssize(told), DType::kI64}, ReduceOp::kMax)
        .wait_host();
    const auto [in, out] = rank_.engine.cache_moves();
    after.push_back({rank_.engine.loaded().value_or(0), in, out, rank_.engine.moves().disk.read});
  }

  const MetaRank& rank_;
  const BatchSize& size_;
};

/// What it is after `all` times, from what it was after each of those that were made.
template <class T>
T after_all(const std::vector<T>& after, int64_t all) {
  const auto made = static_cast<int64_t>(after.size());
  if (all <= made) return after.back();
  const int64_t half = made / 2;
  return after.back() +
         (all - made) * (after.back() - after[static_cast<size_t>(made - half - 1)]) / half;
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
    on_meta_rank(plan, registries, world, rank, size.has_weights_on_disk,
                 [&](const MetaRank& mine) {
                   Engine& engine = mine.engine;
                   out.why_no_cache = engine.why_no_cache();
                   foretell_forwards(engine, registries, rank, size);
                   Forwards forwards(mine, size);
                   {
                     const TraceScope traced(&recorder);
                     forwards.make(out.forwards);
                   }
                   out.cache_bytes = std::max(out.cache_bytes, forwards.cache_bytes);
                   out.peak.push_back(mine.book.peak());
                   if (!has_tiers) return;
                   out.host_peak.push_back(engine.moves().host_peak);
                   const auto add = [&](std::vector<int64_t>& to, int64_t Forwards::Moved::*what) {
                     std::vector<int64_t> after;
                     for (const Forwards::Moved& moved : forwards.after)
                       after.push_back(moved.*what);
                     to.push_back(after_all(after, out.forwards));
                   };
                   add(out.to_device, &Forwards::Moved::to_device);
                   if (size.has_weights_on_disk) add(out.from_disk, &Forwards::Moved::from_disk);
                   if (size.cache != Cache::kHost) return;
                   add(out.cache_to_device, &Forwards::Moved::cache_to_device);
                   add(out.cache_to_host, &Forwards::Moved::cache_to_host);
                 });
    traces.push_back(recorder.take());
  }
  const std::vector<int64_t> end = ends(traces, plan.cluster);
  out.prompts_s = static_cast<double>(end.front()) * kPicosecond;
  out.seconds = static_cast<double>(after_all(end, out.forwards)) * kPicosecond;
  return out;
}

}  // namespace kuafu
