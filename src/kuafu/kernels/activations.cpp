// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <bit>

#include "kuafu/kernels/kernels.h"
#include "kuafu/kernels/loops.h"

// gelu with the tanh approximation. [Hendrycks & Gimpel, arXiv 1606.08415, section 2]
//
//   u(x)     = sqrt(2/pi) (x + 0.044715 x^3)
//   gelu(x)  = x/2 (1 + tanh u) = x s,           s = 1 / (1 + e^-2u)
//   gelu'(x) = s + x s (1 - s) 2 u'(x),          1 - s = e^-2u s
//
// Why own loops: a GPT step at hidden 256 spends 8 % of its time in ATen's gelu and its gradient,
// nearly all of it in tanh. One exponential and one division cost less than half of that.
//
// gelu by the error function, P the normal distribution: P(x) = (1 + erf(x / sqrt(2))) / 2.
//
//   gelu(x)  = x P(x) = max(x, 0) - |x| P(-|x|)
//   gelu'(x) = P(x) + x e^(-x^2/2) / sqrt(2 pi)
//   P(-a)    = e^(-a^2/2) r(1 / (1 + a/4)), a >= 0: r a polynomial without a constant, so that
//              what is left of P far below 0 is as exact as its exponential
//
// swiglu of pairs (g, u).    [Shazeer, arXiv 2002.05202, equation 6, without bias]
//   y = silu(g) u,   silu(g) = g s,   s = 1 / (1 + e^-g),   silu'(g) = s + g s (1 - s)

namespace kuafu::kernels {
namespace {

/// e^t for |t| <= 87, to 2 units in the last place: t = n ln 2 + r, e^t = 2^n e^r with a polynomial
/// for e^r on |r| <= ln(2)/2.
inline __attribute__((always_inline)) float exponential(float t) {
  constexpr float kRound = 12582912.0F;  // 1.5 * 2^23: adding it leaves an integer in the low bits
  const float shifted = t * 1.44269504F + kRound;
  const float n = shifted - kRound;
  const float r = (t - n * 0.693359375F) + n * 2.12194440e-4F;
  float p = 1.0F / 5040;  // Taylor: the remainder r^8 / 8! stays below 6e-9
  p = p * r + 1.0F / 720;
  p = p * r + 1.0F / 120;
  p = p * r + 1.0F / 24;
  p = p * r + 1.0F / 6;
  p = p * r + 0.5F;
  p = p * r * r + r + 1.0F;
  const auto power = (std::bit_cast<uint32_t>(shifted) + 127U) << 23;
  return p * std::bit_cast<float>(power);
}

constexpr float kCubic = 0.044715F;
constexpr float kTwoRoot = 1.59576912F;  // 2 sqrt(2/pi)

/// x between -limit and limit. By integers, which compilers vectorise without being told to forget
/// about NaN; a NaN becomes the limit.
inline __attribute__((always_inline)) float limited(float x, float limit) {
  const auto bits = std::bit_cast<int32_t>(x);
  const int32_t size = std::min(bits & 0x7fffffff, std::bit_cast<int32_t>(limit));
  return std::bit_cast<float>(size | (bits & std::bit_cast<int32_t>(-0.0F)));
}

/// Beyond, gelu's s is 0 or 1 to all digits; up to here 2u stays below 87.4.
constexpr float kGeluLimit = 10;
/// The same of silu's s.
constexpr float kSiluLimit = 64;

/// e^-2u
inline __attribute__((always_inline)) float decay(float x) {
  return exponential(-kTwoRoot * (x + kCubic * (x * x * x)));
}

/// Beyond, P of gelu_exact is 0 or 1 to all digits; up to here x^2 / 2 stays below 84.6.
constexpr float kExactLimit = 13;

/// P(-a) e^(a^2/2) for 0 <= a <= 13, to 5e-8 of it: least squares that were weighted anew until the
/// largest errors were alike.
inline __attribute__((always_inline)) float tail(float a) {
  const float k = 1.0F / (1.0F + 0.25F * a);
  float p = 0.0268920332F;
  p = p * k - 0.158600457F;
  p = p * k + 0.308355647F;
  p = p * k - 0.220142858F;
  p = p * k + 0.211980214F;
  p = p * k + 0.0284180618F;
  p = p * k + 0.104948768F;
  p = p * k + 0.0983401294F;
  p = p * k + 0.0998084395F;
  return p * k;
}

inline __attribute__((always_inline)) float magnitude(float x) {
  return std::bit_cast<float>(std::bit_cast<int32_t>(x) & 0x7fffffff);
}

/// 1 where no sign is set, else 0.
inline __attribute__((always_inline)) float step(float x) {
  return std::bit_cast<float>(~(std::bit_cast<int32_t>(x) >> 31) & std::bit_cast<int32_t>(1.0F));
}

}  // namespace

KUAFU_WIDE void gelu(const float* x, float* y, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const float v = limited(x[i], kGeluLimit);
    const float beyond = (x[i] - v) * (0.5F + 0.05F * v);  // x - 10 above 10, else 0; NaN for NaN
    y[i] = v / (1.0F + decay(v)) + beyond;
  }
}

KUAFU_WIDE void gelu_backward(const float* dy, const float* x, float* dx, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const float v = limited(x[i], kGeluLimit);
    const float e = decay(v), s = 1.0F / (1.0F + e);
    const float slope = kTwoRoot * (1.0F + 3 * kCubic * (v * v));  // 2 u'
    dx[i] = dy[i] * (s + v * s * (e * s) * slope);
  }
}

KUAFU_WIDE void gelu_exact(const float* x, float* y, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const float v = limited(x[i], kExactLimit), a = magnitude(v);
    const float beyond = (x[i] - v) * (0.5F + v / (2 * kExactLimit));  // as in gelu
    y[i] = (0.5F * (v + a) - a * (exponential(-0.5F * (a * a)) * tail(a))) + beyond;
  }
}

KUAFU_WIDE void gelu_exact_backward(const float* dy, const float* x, float* dx, int64_t count) {
  constexpr float kPerRoot = 0.398942280F;  // 1 / sqrt(2 pi)
  for (int64_t i = 0; i < count; ++i) {
    const float v = limited(x[i], kExactLimit), a = magnitude(v), above = step(v);
    const float e = exponential(-0.5F * (a * a)), below = e * tail(a);
    dx[i] = dy[i] * ((above - (2 * above - 1) * below) + v * (e * kPerRoot));
  }
}

KUAFU_WIDE void swiglu(const float* x, float* y, int64_t pairs) {
  for (int64_t i = 0; i < pairs; ++i) {
    const float g = x[2 * i], v = limited(g, kSiluLimit);
    const float beyond = (g - v) * (0.5F + v / (2 * kSiluLimit));  // as in gelu
    y[i] = (v / (1.0F + exponential(-v)) + beyond) * x[2 * i + 1];
  }
}

KUAFU_WIDE void swiglu_backward(const float* dy, const float* x, float* dx, int64_t pairs) {
  for (int64_t i = 0; i < pairs; ++i) {
    const float g = x[2 * i], u = x[2 * i + 1], v = limited(g, kSiluLimit);
    const float e = exponential(-v), s = 1.0F / (1.0F + e);
    const float beyond = (g - v) * (0.5F + v / (2 * kSiluLimit));
    dx[2 * i] = dy[i] * u * (s + v * s * (e * s));
    dx[2 * i + 1] = dy[i] * (v * s + beyond);
  }
}

}  // namespace kuafu::kernels
