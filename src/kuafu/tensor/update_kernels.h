// SPDX-License-Identifier: Apache-2.0
#pragma once

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

/// Factors of one AdamW step, of optim/adamw.cpp's formula with t as b^t and g = grad x gradient:
///   m = beta1 m + (1 - beta1) g    v = beta2 v + (1 - beta2) g^2
///   w = keep w - rate m / (sqrt(v) spread + epsilon)
struct AdamWFactors {
  double beta1, beta2, epsilon;
  double keep;    ///< 1 - lr weight_decay
  double rate;    ///< lr / (1 - beta1^t)
  double spread;  ///< 1 / sqrt(1 - beta2^t)
  double grad;    ///< 1 unless the loss was scaled
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

}  // namespace kuafu::kernels
