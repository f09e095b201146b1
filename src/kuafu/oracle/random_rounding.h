// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>

namespace kuafu::oracle {

/// While it lives, every result y of an ATen operation of this thread, forward or backward, is moved
/// by a rounding error drawn at random, y (1 + u xi), xi uniform in [-1, 1), the same for equal
/// elements of a result. Of f64, by seed in turns, all are moved up, all down, those of each operation to
/// one side, or each by itself. Two runs of one
/// formula then differ as two codes do that round in other places; where two large terms cancel,
/// what is left differs by rounding of the terms, as it does in a run, and never by chance not at
/// all.           [Monte Carlo arithmetic: Parker, UCLA CSD-970002, 1997, sections 4.2 and 6.4]
///
/// u is the unit roundoff of the result's own type; of results in f64 it is `u_of_f64`, so that f64
/// stands for a type of fewer bits; for itself it takes 2^-52, its spacing. Copies, views, and what is written in place are not moved.
class RandomRounding {
 public:
  RandomRounding(double u_of_f64, uint64_t seed);
  ~RandomRounding();
  RandomRounding(const RandomRounding&) = delete;
  RandomRounding& operator=(const RandomRounding&) = delete;

  struct State;

 private:
  std::unique_ptr<State> state_;
};

}  // namespace kuafu::oracle
