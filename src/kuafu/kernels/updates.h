// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstdint>
#include <limits>

// Loops of optimizers on the CPU: one pass over everything. An element's bits depend on nothing but
// itself, so that a flat piece of a parameter is updated as the whole would be.
namespace kuafu::kernels {

/// Bits of half-precision gradients.
struct BF16 {
  uint16_t bits;
};
struct F16 {
  uint16_t bits;
};

inline float widen(float x) { return x; }
inline double widen(double x) { return x; }
inline float widen(BF16 x) { return std::bit_cast<float>(static_cast<uint32_t>(x.bits) << 16); }
/// Exact. Exponent and mantissa move to f32's places and the bias grows by 112; a subnormal number
/// gets the smallest exponent's leading one and loses it again; infinity and NaN keep all ones.
inline float widen(F16 x) {
  constexpr uint32_t kExponent = 1u << 23, kBias = 112 * kExponent;
  const uint32_t sign = static_cast<uint32_t>(x.bits & 0x8000u) << 16;
  const uint32_t magnitude = static_cast<uint32_t>(x.bits & 0x7fffu) << 13;
  const float small = std::bit_cast<float>(magnitude + kBias + kExponent) - 0x1.0p-14F;
  const uint32_t normal = magnitude + (magnitude >= 31 * kExponent ? 2 * kBias : kBias);
  const uint32_t wide = magnitude < kExponent ? std::bit_cast<uint32_t>(small) : normal;
  return std::bit_cast<float>(sign | wide);
}

/// Where weight decay stands: added to the gradient (Adam), or taken of the weight (AdamW).
enum class Decay : uint8_t { kInGradient, kOfWeight };

/// Factors of one step of Adam or AdamW, of optim/adam.cpp's formula with t as b^t:
///   g = grad x gradient (+ coupled w: kInGradient)
///   m = beta1 m + (1 - beta1) g    v = beta2 v + (1 - beta2) g^2
///   w = w (x keep: kOfWeight) - rate m / (sqrt(v) spread + epsilon)
struct AdamWFactors {
  double beta1, beta2, epsilon;
  double rate;     ///< lr / (1 - beta1^t)
  double spread;   ///< 1 / sqrt(1 - beta2^t)
  double grad;     ///< 1 unless the loss was scaled
  double coupled;  ///< weight_decay
  double keep;     ///< 1 - lr weight_decay
};

/// Elements of one update, `count` of each.
template <class T, class Grad>
struct AdamWData {
  T* w;
  const Grad* grad;
  T *m, *v;
  int64_t count;
};

/// How the velocity moves a weight: by itself, or with the gradient once more before it (Nesterov).
enum class Momentum : uint8_t { kPlain, kNesterov };

/// Factors of one step of SGD:
///   g = grad x gradient + weight_decay w    u = momentum u + g
///   w = w - lr u (kPlain)    w = w - lr (g + momentum u) (kNesterov)
struct SgdFactors {
  double lr, momentum, weight_decay;
  double grad;
  double most = std::numeric_limits<double>::infinity();  ///< of an element of g, with lars
  int rates_of_layer = 1;                                 ///< with lars: 1 or 2
};

template <class T, class Grad>
struct SgdData {
  T* w;
  const Grad* grad;
  T* velocity;
  int64_t count;
};

#define KUAFU_UPDATES(T, Grad)                                                         \
  void adam(Decay decay, const AdamWData<T, Grad>& data, const AdamWFactors& factors); \
  void sgd(Momentum kind, const SgdData<T, Grad>& data, const SgdFactors& factors)
KUAFU_UPDATES(float, float);
KUAFU_UPDATES(float, BF16);
KUAFU_UPDATES(float, F16);
KUAFU_UPDATES(double, double);
#undef KUAFU_UPDATES

}  // namespace kuafu::kernels
