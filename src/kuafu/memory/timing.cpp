// SPDX-License-Identifier: Apache-2.0
#include "kuafu/memory/timing.h"

#include <algorithm>
#include <cmath>

#include "kuafu/base/errors.h"

namespace kuafu::memory {
namespace {

/// Rounds after which times that still change are taken as they are.
constexpr int kMostRounds = 64;

/// The two queues and the computing, in seconds since the first round.
class Clock {
 public:
  Clock(const UseTrace& trace, int64_t budget, const Played& played, const LinkRates& rates)
      : trace_(trace),
        budget_(budget),
        played_(played),
        rates_(rates),
        chunk_bytes_(device_bytes(trace, played.start)),
        ready_(trace.chunks.size()),
        home_(trace.chunks.size()) {}

  /// All steps once more, after what came before.
  MoveTimes round() {
    MoveTimes out;
    const double begin = now_;
    auto next = played_.moves.begin();
    for (int64_t t = 0; t < played_.steps * trace_.num_moments(); ++t) {
      const Moment& moment = trace_.moments[static_cast<size_t>(t % trace_.num_moments())];
      int64_t ahead = 0;  // bytes of loads that this moment need not wait for
      for (; next != played_.moves.end() && next->moment == t; ++next) {
        out.moves.push_back(give_out(*next, moment, out));
        if (next->kind == MoveKind::kLoad && use_of(moment, next->chunk) == nullptr) {
          ahead += bytes_of(next->chunk);
        }
      }
      double start = std::max(now_, when_free(chunk_bytes_ - ahead + moment.in_use));
      for (const ChunkUse& use : moment.uses) {
        const auto c = static_cast<size_t>(use.chunk);
        start = std::max(start, needs_device(use.access) ? ready_[c] : home_[c]);
      }
      now_ = start + moment.seconds;
      out.moments.push_back({start, now_});
      out.computing += moment.seconds;
    }
    out.seconds = now_ - begin;
    for (Interval& span : out.moves) span = {span.start - begin, span.end - begin};
    for (Interval& span : out.moments) span = {span.start - begin, span.end - begin};
    return out;
  }

  /// What a round leaves to the next: how far the copies are behind.
  std::vector<double> behind() const {
    std::vector<double> out{loads_free_, write_backs_free_};
    out.insert(out.end(), ready_.begin(), ready_.end());
    out.insert(out.end(), home_.begin(), home_.end());
    for (double& time : out) time = std::max(0.0, time - now_);
    return out;
  }

 private:
  int64_t bytes_of(int64_t chunk) const { return trace_.chunks[static_cast<size_t>(chunk)].bytes; }

  double seconds_of(int64_t chunk) const {
    const bool on_disk = trace_.chunks[static_cast<size_t>(chunk)].home == Tier::kDisk;
    return static_cast<double>(bytes_of(chunk)) / (on_disk ? rates_.disk : rates_.host);
  }

  Interval give_out(const Move& move, const Moment& moment, MoveTimes& out) {
    const auto c = static_cast<size_t>(move.chunk);
    switch (move.kind) {
      case MoveKind::kWriteBack:
        home_[c] = std::max({now_, write_backs_free_, ready_[c]}) + seconds_of(move.chunk);
        write_backs_free_ = home_[c];
        out.writing_back += seconds_of(move.chunk);
        return {home_[c] - seconds_of(move.chunk), home_[c]};
      case MoveKind::kDrop: {
        // Also what was loaded ahead for nothing is there before it leaves.
        const double end = std::max({now_, home_[c], ready_[c]});
        leaving_.push_back({end, bytes_of(move.chunk)});
        chunk_bytes_ -= bytes_of(move.chunk);
        return {end, end};
      }
      case MoveKind::kMake:
        chunk_bytes_ += bytes_of(move.chunk);
        ready_[c] = std::max(now_, when_free(chunk_bytes_ + moment.in_use));
        return {ready_[c], ready_[c]};
      case MoveKind::kLoad:
        break;
    }
    chunk_bytes_ += bytes_of(move.chunk);
    const double start =
        std::max({now_, loads_free_, home_[c], when_free(chunk_bytes_ + moment.in_use)});
    ready_[c] = loads_free_ = start + seconds_of(move.chunk);
    out.loading += seconds_of(move.chunk);
    return {start, ready_[c]};
  }

  /// From when on these bytes fit beside the chunks that are leaving.
  double when_free(int64_t bytes) {
    std::erase_if(leaving_, [&](const Leaving& leaving) { return leaving.end <= now_; });
    std::sort(leaving_.begin(), leaving_.end(),
              [](const Leaving& a, const Leaving& b) { return a.end > b.end; });
    // The last to leave first, as long as they fit too.
    for (const Leaving& leaving : leaving_) {
      bytes += leaving.bytes;
      if (bytes > budget_) return leaving.end;
    }
    return now_;
  }

  struct Leaving {
    double end = 0;
    int64_t bytes = 0;
  };

  const UseTrace& trace_;
  int64_t budget_;
  const Played& played_;
  const LinkRates& rates_;
  double now_ = 0, loads_free_ = 0, write_backs_free_ = 0;
  int64_t chunk_bytes_;  ///< of chunks on the device or on their way there; not of those leaving
  std::vector<double> ready_, home_;  ///< when each was last there
  std::vector<Leaving> leaving_;
};

bool nearly_equal(const std::vector<double>& a, const std::vector<double>& b, double scale) {
  // Times of a round are sums of its moments and copies, each within an eps of the round's length.
  for (size_t i = 0; i < a.size(); ++i) {
    if (std::abs(a[i] - b[i]) > 1e-12 * scale) return false;
  }
  return true;
}

}  // namespace

MoveTimes time_moves(const UseTrace& trace, int64_t budget, const Played& played,
                     const LinkRates& rates) {
  for (const Chunk& chunk : trace.chunks) {
    const double rate = chunk.home == Tier::kDisk ? rates.disk : rates.host;
    KUAFU_REQUIRE(rate > 0 && std::isfinite(rate), "chunks are at home on the ",
                  name_of(chunk.home), ", to which ", rate, " bytes a second move; choose a rate");
  }
  Clock clock(trace, budget, played, rates);
  std::vector<double> before = clock.behind();
  for (int round = 1;; ++round) {
    MoveTimes timing = clock.round();
    std::vector<double> after = clock.behind();
    if (nearly_equal(before, after, timing.seconds) || round == kMostRounds) return timing;
    before = std::move(after);
  }
}

}  // namespace kuafu::memory
