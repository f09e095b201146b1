// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "kuafu/base/philox.h"

namespace kuafu {

/// A random order of 0 .. size-1 that needs no memory: position i holds operator()(i).
///
/// A balanced Feistel network on the smallest even number of bits that holds `size` is a bijection
/// whatever its round function; here that is Philox. Where it leaves the range it is applied again
/// (cycle walking): the walk along a cycle always comes back into the range, so what is left is a
/// bijection of 0 .. size-1. [Black and Rogaway, Ciphers with arbitrary finite domains, 2002]
class Permutation {
 public:
  /// @pre size > 0. The order is a pure function of (size, seed, site).
  Permutation(int64_t size, uint64_t seed, uint64_t site);

  /// @pre 0 <= position < size.
  int64_t operator()(int64_t position) const;

 private:
  int64_t size_;
  CounterRandom random_;
  int half_bits_;
};

}  // namespace kuafu
