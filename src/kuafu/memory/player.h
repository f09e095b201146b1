// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "kuafu/memory/policy.h"

namespace kuafu::memory {

/// A policy on its way through steps, moment by moment, from an empty device: its choices as moves,
/// each held to the rules.
class Player {
 public:
  /// Throws ConfigError for knobs out of range. @pre trace is checked and fits; it, policy and knobs
  /// live longer
  Player(const UseTrace& trace, int64_t budget, const Policy& policy, const Knobs& knobs);

  struct Moment {
    std::vector<Move> moves = {};  ///< in order, numbered within the step
    int64_t live = 0;              ///< bytes while it computes, of chunks and what else is in use
  };
  /// The moves before the next moment, which then computes. Throws ConfigError where the policy
  /// breaks a rule.
  Moment next();

  const OnDevice& on_device() const { return rules_.on_device(); }
  int64_t prefetches() const { return prefetches_; }  ///< loads ahead of their use
  /// Of these, chunks that were used before they left again.
  int64_t prefetch_hits() const { return prefetch_hits_; }

 private:
  void move(int64_t chunk, MoveKind kind, Moment& out);
  void check_chunk(int64_t chunk) const;
  void evict(int64_t chunk, Moment& out);
  void take(const ChunkUse& use, Moment& out);
  void fetch(int64_t chunk, Moment& out);

  const UseTrace& trace_;
  const Policy& policy_;
  Rules rules_;
  Known known_;
  int64_t prefetches_ = 0, prefetch_hits_ = 0;
  std::vector<bool> is_ahead_;  // loaded ahead, not used yet
};

}  // namespace kuafu::memory
