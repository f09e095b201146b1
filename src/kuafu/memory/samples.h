// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "kuafu/base/philox.h"
#include "kuafu/memory/uses.h"

namespace kuafu::memory {

// Random traces: what tests and the conformance kit hold policies to.

/// A trace and a budget that it fits.
struct Sample {
  UseTrace trace;
  int64_t budget = 0;
};

/// What a sample may have.
struct SampleShape {
  int64_t least_chunks = 2, most_chunks = 5;
  int64_t least_moments = 2, most_moments = 10;
  bool are_equal = false;  ///< all chunks of one size, and budgets and what is in use whole ones
  bool are_clean = false;  ///< nothing is written
};

/// Whole numbers below others, by seed and index of a sample.
class Dice {
 public:
  Dice(uint64_t seed, uint64_t sample) : random_(seed, sample) {}
  /// From `low` to `high`, both included.
  int64_t from_to(int64_t low, int64_t high) {
    return low +
           static_cast<int64_t>(random_.bits(next_++) % static_cast<uint64_t>(high - low + 1));
  }
  bool happens(int64_t in_hundred) { return from_to(1, 100) <= in_hundred; }

 private:
  CounterRandom random_;
  uint64_t next_ = 0;
};

/// Sample `index` of a seed: uses at random, or those of a training step (read forwards, read
/// backwards, gradients overwritten, slots updated), under what is in use at random or in a heap.
Sample sample(uint64_t seed, uint64_t index, const SampleShape& shape);

/// The shape of sample `index` of the campaign: nine of ten small enough for every state to be tried.
SampleShape shape_of(uint64_t index);

/// The sample of shape_of(index), with some chunks changed at home at moments that did not use them.
Sample sample_at_home(uint64_t seed, uint64_t index);

}  // namespace kuafu::memory
