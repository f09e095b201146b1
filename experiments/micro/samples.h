// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <stdexcept>
#include <string>

namespace kuafu::micro {

/// Sizes of the all-reduce benchmarks, bytes.
inline constexpr int64_t kSizes[] = {1 << 10, 64 << 10, 256 << 10, 1 << 20,
                                     4 << 20, 16 << 20, 64 << 20};

struct Free {
  void operator()(void* p) const { std::free(p); }
};

/// f32 elements on 2 MiB boundaries: the same pages for every implementation.
using Floats = std::unique_ptr<float[], Free>;

inline Floats make_floats(int64_t count) {
  void* p = nullptr;
  if (posix_memalign(&p, 2 << 20, static_cast<size_t>(count) * sizeof(float)) != 0) {
    throw std::bad_alloc();
  }
  return Floats(static_cast<float*>(p));
}

/// What rank `rank` contributes: small integers, so that any order of adding gives the same bits.
inline void fill(float* values, int64_t count, int rank) {
  for (int64_t i = 0; i < count; ++i) values[i] = static_cast<float>((i + 3 * rank) % 1021);
}

/// Throws where `values` is not the sum of fill() over `ranks`. Nothing is timed that is not
/// checked.
inline void check_sum(const float* values, int64_t count, int ranks) {
  for (int64_t i = 0; i < count; ++i) {
    int64_t sum = 0;
    for (int r = 0; r < ranks; ++r) sum += (i + 3 * r) % 1021;
    if (values[i] != static_cast<float>(sum)) {
      throw std::runtime_error("all_reduce is wrong at element " + std::to_string(i) + " of " +
                               std::to_string(count));
    }
  }
}

/// Iterations that take some 0.1 to 0.3 s at a size: every rank must know the number beforehand.
inline int64_t iterations(int64_t bytes) {
  constexpr int64_t kVolume = int64_t{512} << 20;
  const int64_t n = kVolume / bytes;
  return n < 6 ? 6 : n > 20000 ? 20000 : n;
}

}  // namespace kuafu::micro
