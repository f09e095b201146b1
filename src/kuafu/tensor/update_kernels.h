// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstdint>

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

/// Factors of one AdamW step, of optim/adam.cpp's formula with t as b^t and g = grad x gradient:
///   m = beta1 m + (1 - beta1) g    v = beta2 v + (1 - beta2) g^2
///   w = keep w - rate m / (sqrt(v) spread + epsilon)
/// Adam's g has coupled x w added, and its keep is 1.
struct AdamWFactors {
  double beta1, beta2, epsilon;
  double keep;    ///< 1 - lr weight_decay
  double rate;    ///< lr / (1 - beta1^t)
  double spread;  ///< 1 / sqrt(1 - beta2^t)
  double grad;    ///< 1 unless the loss was scaled
  double coupled = 0;
};

/// Elements of one update, `count` of each.
template <class T, class Grad>
struct AdamWData {
  T* w;
  const Grad* grad;
  T *m, *v;
  int64_t count;
};

void adamw(const AdamWData<float, float>& data, const AdamWFactors& factors);
void adamw(const AdamWData<float, BF16>& data, const AdamWFactors& factors);
void adamw(const AdamWData<float, F16>& data, const AdamWFactors& factors);
void adamw(const AdamWData<double, double>& data, const AdamWFactors& factors);
void adam(const AdamWData<float, float>& data, const AdamWFactors& factors);
void adam(const AdamWData<float, BF16>& data, const AdamWFactors& factors);
void adam(const AdamWData<float, F16>& data, const AdamWFactors& factors);
void adam(const AdamWData<double, double>& data, const AdamWFactors& factors);

/// u = momentum u + (g + weight_decay w); w = w - lr u; g = grad x gradient
struct SgdFactors {
  double lr, momentum, weight_decay;
  double grad;
};

template <class T, class Grad>
struct SgdData {
  T* w;
  const Grad* grad;
  T* velocity;
  int64_t count;
};

void sgd(const SgdData<float, float>& data, const SgdFactors& factors);
void sgd(const SgdData<float, BF16>& data, const SgdFactors& factors);
void sgd(const SgdData<float, F16>& data, const SgdFactors& factors);
void sgd(const SgdData<double, double>& data, const SgdFactors& factors);
/// The same velocity, and w = w - lr (g + weight_decay w + momentum u).
void nesterov(const SgdData<float, float>& data, const SgdFactors& factors);
void nesterov(const SgdData<float, BF16>& data, const SgdFactors& factors);
void nesterov(const SgdData<float, F16>& data, const SgdFactors& factors);
void nesterov(const SgdData<double, double>& data, const SgdFactors& factors);

}  // namespace kuafu::kernels
