// SPDX-License-Identifier: Apache-2.0
//
// Normals by Box-Muller:  z = sqrt(-2 log u) cos(2 pi v),  u in (0, 1], v in [0, 1) of 53 bits
// each.
//
// The numbers are those of the C library's log and cos, which take most of the time and cannot be
// called on vectors. Rounded to f32 they are known without: series on vectors give z within
// kError sqrt(-2 log u), and where both ends of that interval round to the same f32, so does z.
// About one of some millions does not, and is computed again with the C library.

#include <algorithm>
#include <cmath>
#include <numbers>

#include "kuafu/kernels/kernels.h"
#include "kuafu/kernels/philox_lanes.h"

namespace kuafu::kernels {
namespace {

/// Bound on the difference of both ways of computing z, in units of its radius: a dozen roundings
/// of series and reduction, 2^-53 each, are below 2e-15.
constexpr double kError = 8e-15;

typedef double Reals __attribute__((vector_size(8 * kLanes)));
typedef int64_t Bits __attribute__((vector_size(8 * kLanes)));

#define KUAFU_INLINE inline __attribute__((always_inline))

/// Integers below 2^52 as doubles, exactly: their bits behind those of 2^52.
KUAFU_INLINE void to_reals(const Wide& n, Reals& x) {
  x = (Reals)(n | uint64_t{0x4330000000000000}) - 0x1.0p52;
}

/// 53 bits of two words as CounterRandom makes a double in [0, 1) of them.
KUAFU_INLINE void to_units(const std::array<uint32_t, kLanes>& a,
                           const std::array<uint32_t, kLanes>& b, Reals& x) {
  Wide wide_a, wide_b;
  for (int j = 0; j < kLanes; ++j) {
    wide_a[j] = a[static_cast<size_t>(j)];
    wide_b[j] = b[static_cast<size_t>(j)];
  }
  Reals high, low;
  to_reals(wide_a, high);
  to_reals(wide_b >> 11, low);
  x = (high * 0x1.0p21 + low) * 0x1.0p-53;
}

/// y = -2 log u. u = m 2^e with m in [sqrt(1/2), sqrt(2)); log m = 2 artanh f, f = (m-1) / (m+1),
/// |f| < 0.172: the first term left out, f^20 / 21, is below 3e-17.
KUAFU_INLINE void minus_two_logs(const Reals& u, Reals& y) {
  constexpr int64_t kRootHalf = 0x3fe6a09e667f3bcd, kShift = 1024;
  const Bits e = ((Bits)u - kRootHalf) >> 52;  // -53 to 0
  const Reals m = (Reals)((Bits)u - (e << 52));
  Reals power;
  to_reals((Wide)(e + kShift), power);
  const Reals f = (m - 1) / (m + 1), f2 = f * f;
  Reals series = f2 * (1.0 / 19) + 1.0 / 17;
  for (const double c : {1.0 / 15, 1.0 / 13, 1.0 / 11, 1.0 / 9, 1.0 / 7, 1.0 / 5, 1.0 / 3}) {
    series = series * f2 + c;
  }
  y = -2 * ((power - kShift) * std::numbers::ln2 + 2 * f * (1 + f2 * series));
}

/// y = cos x for 0 <= x <= 2 pi: r = x - n pi/2 with |r| <= pi/4, in three parts of pi/2, the first
/// two of 33 bits, so that their products with n are exact; then cos r or sin r by Taylor, to
/// r^16 and r^17: what is left out is below 1e-17.
KUAFU_INLINE void cosines(const Reals& x, Reals& y) {
  constexpr double kPart1 = 0x1.921fb544p0, kPart2 = 0x1.0b4611a6p-34,
                   kPart3 = 0x1.3198a2e037073p-69;
  constexpr double kRound = 0x1.8p52;  // adding it leaves the nearest integer in the last bits
  const Reals shifted = x * (2 / std::numbers::pi) + kRound, n = shifted - kRound;
  const Reals r = ((x - n * kPart1) - n * kPart2) - n * kPart3, r2 = r * r;
  Reals sine = r2 * (1 / 355687428096000.0) - 1 / 1307674368000.0;
  for (const double c :
       {1 / 6227020800.0, -1 / 39916800.0, 1 / 362880.0, -1 / 5040.0, 1 / 120.0, -1 / 6.0}) {
    sine = sine * r2 + c;
  }
  sine = r + r * r2 * sine;
  Reals cosine = r2 * (1 / 20922789888000.0) - 1 / 87178291200.0;
  for (const double c :
       {1 / 479001600.0, -1 / 3628800.0, 1 / 40320.0, -1 / 720.0, 1 / 24.0, -1 / 2.0}) {
    cosine = cosine * r2 + c;
  }
  cosine = 1 + r2 * cosine;
  // n = 0: cos r, 1: -sin r, 2: -cos r, 3: sin r, 4: cos r
  const Bits quarter = (Bits)shifted;
  const Bits is_odd = (quarter & 1) != 0, is_negative = ((quarter + 1) & 2) != 0;
  const Reals value = is_odd ? sine : cosine;
  y = is_negative ? -value : value;
}

/// std * normal of one counter, rounded as a caller with the C library rounds it.
float exact(double u, double v, double std) {
  const double z = std::sqrt(-2.0 * std::log(u)) * std::cos(2.0 * std::numbers::pi * v);
  return static_cast<float>(std * z);
}

}  // namespace

KUAFU_WIDE void normals(uint64_t seed, uint64_t site, uint64_t first, int64_t count, double* out) {
  Words c;
  std::array<double, kLanes> radius, angle;
  for (int64_t done = 0; done < count; done += kLanes) {
    philox_lanes(first + static_cast<uint64_t>(done), seed, site, c);
    for (int j = 0; j < kLanes; ++j) radius[j] = -2.0 * std::log(1.0 - unit(c[0][j], c[1][j]));
    for (int j = 0; j < kLanes; ++j) radius[j] = std::sqrt(radius[j]);
    for (int j = 0; j < kLanes; ++j) {
      angle[j] = std::cos(2.0 * std::numbers::pi * unit(c[2][j], c[3][j]));
    }
    const int n = static_cast<int>(std::min<int64_t>(kLanes, count - done));
    for (int j = 0; j < n; ++j) out[done + j] = radius[j] * angle[j];
  }
}

KUAFU_WIDE void scaled_normals(uint64_t seed, uint64_t site, uint64_t first, int64_t count,
                               double std, float* out) {
  Words c;
  std::array<float, kLanes> below, above;
  for (int64_t done = 0; done < count; done += kLanes) {
    philox_lanes(first + static_cast<uint64_t>(done), seed, site, c);
    Reals u, v, radius, cosine;
    to_units(c[0], c[1], u);
    to_units(c[2], c[3], v);
    u = 1.0 - u;
    minus_two_logs(u, radius);
    for (int j = 0; j < kLanes; ++j) radius[j] = std::sqrt(radius[j]);
    cosines(2.0 * std::numbers::pi * v, cosine);
    const Reals z = std * (radius * cosine), error = (std * kError) * radius;
    const Reals low = z - error, high = z + error;
    for (int j = 0; j < kLanes; ++j) below[j] = static_cast<float>(low[j]);
    for (int j = 0; j < kLanes; ++j) above[j] = static_cast<float>(high[j]);
    int unclear = 0;
    for (int j = 0; j < kLanes; ++j) unclear += below[j] != above[j];
    if (unclear > 0) {
      for (int j = 0; j < kLanes; ++j) {
        if (below[j] != above[j]) below[j] = exact(u[j], v[j], std);
      }
    }
    std::copy_n(below.data(), std::min<int64_t>(kLanes, count - done), out + done);
  }
}

}  // namespace kuafu::kernels
