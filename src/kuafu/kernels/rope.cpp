// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <cmath>
#include <vector>

#include "kuafu/kernels/kernels.h"
#include "kuafu/kernels/loops.h"

namespace kuafu::kernels {
namespace {

/// Positions whose angles come from one pair of sines: position = kStep coarse + fine.
constexpr int kStepBits = 6;
constexpr int64_t kStep = 1 << kStepBits;

/// cos and sin of t f[d] for every d.
struct Turns {
  std::vector<double> cosines, sines;
  void compute(int64_t t, const std::vector<double>& f) {
    cosines.resize(f.size());
    sines.resize(f.size());
    for (size_t d = 0; d < f.size(); ++d) {
      const double angle = static_cast<double>(t) * f[d];
      cosines[d] = std::cos(angle);
      sines[d] = std::sin(angle);
    }
  }
};

KUAFU_WIDE void add_angles(const double* c1, const double* s1, const double* c2, const double* s2,
                           int64_t half, double* __restrict__ cosines, double* __restrict__ sines) {
  for (int64_t d = 0; d < half; ++d) {
    cosines[d] = c1[d] * c2[d] - s1[d] * s2[d];
    sines[d] = s1[d] * c2[d] + c1[d] * s2[d];
  }
}

template <class T>
inline __attribute__((always_inline)) void turn_row(const T* x, const T* c, const T* s, T sign,
                                                    int64_t half, T* __restrict__ y) {
  for (int64_t d = 0; d < half; ++d) {
    const T a = x[d], b = x[d + half], sine = sign * s[d];
    y[d] = a * c[d] - b * sine;
    y[d + half] = b * c[d] + a * sine;
  }
}

template <class T>
inline __attribute__((always_inline)) void turn_rows(const HeadExtents& n, const Rope<T>& r) {
  const int64_t half = n.dim / 2;
  const auto turn = [&](int64_t b, int64_t h, int64_t s) {
    turn_row(r.x.at(b, h, s), r.cosines + s * half, r.sines + s * half, r.sign, half,
             r.y.at(b, h, s));
  };
  const bool heads_inside = r.x.head_stride < r.x.sequence_stride;
  for (int64_t b = 0; b < n.batch; ++b) {
    if (heads_inside) {
      for (int64_t s = 0; s < n.sequence; ++s) {
        for (int64_t h = 0; h < n.heads; ++h) turn(b, h, s);
      }
    } else {
      for (int64_t h = 0; h < n.heads; ++h) {
        for (int64_t s = 0; s < n.sequence; ++s) turn(b, h, s);
      }
    }
  }
}

}  // namespace

// Sines cost more than all the turning they are for: one of each 64 positions is computed, and one
// of each distance below 64; the rest follow from those two by the sum of angles.
void rope_table(const int64_t* positions, int64_t count, int64_t half, double base, double* cosines,
                double* sines) {
  std::vector<double> frequency(static_cast<size_t>(half));
  for (int64_t d = 0; d < half; ++d) {
    frequency[static_cast<size_t>(d)] =
        std::pow(base, -static_cast<double>(d) / static_cast<double>(half));
  }
  std::array<Turns, kStep> fine;
  Turns coarse;
  int64_t start = 0;
  for (int64_t s = 0; s < count; ++s) {
    const int64_t first = positions[s] >> kStepBits << kStepBits, distance = positions[s] - first;
    Turns& f = fine[static_cast<size_t>(distance)];
    if (f.cosines.empty()) f.compute(distance, frequency);
    if (s == 0 || first != start) coarse.compute(first, frequency);
    start = first;
    add_angles(coarse.cosines.data(), coarse.sines.data(), f.cosines.data(), f.sines.data(), half,
               cosines + s * half, sines + s * half);
  }
}

KUAFU_WIDE void rope(const HeadExtents& n, const Rope<float>& r) { turn_rows(n, r); }
KUAFU_WIDE void rope(const HeadExtents& n, const Rope<double>& r) { turn_rows(n, r); }

}  // namespace kuafu::kernels
