// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "kuafu/kernels/updates.h"

// Loops of optimizers that take steps by the norms of layers: one pass for moments and squares, one
// for the update, which makes again what the first has not kept.
namespace kuafu::kernels {

/// Where the elements of a run lie among the layers of their parameter (LayerSplit).
struct LayerRun {
  int64_t count = 0;    ///< elements
  int64_t first = 0;    ///< element of the shard, row-major, where the run begins
  int64_t columns = 1;  ///< of a row of the shard
  int64_t stacked =
      0;  ///< elements of the shard in one index of dim 0, where that is a layer; or 0
  int64_t parts = 1, width = 1;
  int64_t column = 0;  ///< of the parameter, where the shard's first column is
};

/// r = rate m / (sqrt(v) spread + epsilon) + decay w of moments that went on by g = grad x gradient.
struct LambFactors {
  double beta1, beta2, epsilon, decay;
  double rate;    ///< 1 / (1 - beta1^t), or 1
  double spread;  ///< 1 / sqrt(1 - beta2^t), or 1
  double grad;
};

/// Overloads for f32 with gradients in f32, bf16 and f16, and for f64.
///
/// lamb_norms  m = beta1 m + (1 - beta1) g, v = beta2 v + (1 - beta2) g^2; adds w^2 and r^2 of each
///             element to sums (layers, 2). `kept`: null, or the gradients themselves, in whose place
///             r is left
/// lamb        w = w - rates[layer] r
/// layer_step  the same, of r that was kept
/// lars_norms  adds w^2 and (g + weight_decay w)^2 of each element to sums (layers, 2)
/// lars        u = momentum u + rates[layer] x; w = w - lr u, x = g + weight_decay w, each element
///             kept in -most .. most. With two rates a layer, (layers, 2), the second stands beside lr
#define KUAFU_LAYER_KERNELS(T, Grad)                                                               \
  void lamb_norms(const LayerRun& run, const AdamWData<T, Grad>& data, const LambFactors& factors, \
                  double* sums, T* kept = nullptr);                                                \
  void lars_norms(const LayerRun& run, const SgdData<T, Grad>& data, const SgdFactors& factors,    \
                  double* sums);                                                                   \
  void lars(const LayerRun& run, const SgdData<T, Grad>& data, const SgdFactors& factors,          \
            const double* rates);
KUAFU_LAYER_KERNELS(float, float)
KUAFU_LAYER_KERNELS(float, BF16)
KUAFU_LAYER_KERNELS(float, F16)
KUAFU_LAYER_KERNELS(double, double)
#undef KUAFU_LAYER_KERNELS
void lamb(const LayerRun& run, const AdamWData<float, float>& data, const LambFactors& factors,
          const double* rates);
void lamb(const LayerRun& run, const AdamWData<double, double>& data, const LambFactors& factors,
          const double* rates);
void layer_step(const LayerRun& run, float* w, const float* r, const double* rates);
void layer_step(const LayerRun& run, double* w, const double* r, const double* rates);

}  // namespace kuafu::kernels
