// SPDX-License-Identifier: Apache-2.0
#include "kuafu/tensor/update_kernels.h"

#include <cmath>

#include "kuafu/tensor/kernel_loops.h"

namespace kuafu::kernels {
namespace {

template <class T, class Grad>
inline __attribute__((always_inline)) void adamw_loop(const AdamWData<T, Grad>& data,
                                                      const AdamWFactors& f) {
  T* __restrict w = data.w;
  T* __restrict m = data.m;
  T* __restrict v = data.v;
  const Grad* __restrict grad = data.grad;
  const T beta1 = static_cast<T>(f.beta1), rest1 = static_cast<T>(1 - f.beta1);
  const T beta2 = static_cast<T>(f.beta2), rest2 = static_cast<T>(1 - f.beta2);
  const T keep = static_cast<T>(f.keep), rate = static_cast<T>(f.rate);
  const T spread = static_cast<T>(f.spread), epsilon = static_cast<T>(f.epsilon);
  const T factor = static_cast<T>(f.grad);
  for (int64_t i = 0; i < data.count; ++i) {
    const T g = widen(grad[i]) * factor;
    m[i] = beta1 * m[i] + rest1 * g;
    v[i] = beta2 * v[i] + rest2 * (g * g);
    w[i] = keep * w[i] - rate * (m[i] / (std::sqrt(v[i]) * spread + epsilon));
  }
}

template <class T, class Grad>
inline __attribute__((always_inline)) void adam_loop(const AdamWData<T, Grad>& data,
                                                     const AdamWFactors& f) {
  T* __restrict w = data.w;
  T* __restrict m = data.m;
  T* __restrict v = data.v;
  const Grad* __restrict grad = data.grad;
  const T beta1 = static_cast<T>(f.beta1), rest1 = static_cast<T>(1 - f.beta1);
  const T beta2 = static_cast<T>(f.beta2), rest2 = static_cast<T>(1 - f.beta2);
  const T coupled = static_cast<T>(f.coupled), rate = static_cast<T>(f.rate);
  const T spread = static_cast<T>(f.spread), epsilon = static_cast<T>(f.epsilon);
  const T factor = static_cast<T>(f.grad);
  for (int64_t i = 0; i < data.count; ++i) {
    const T g = widen(grad[i]) * factor + coupled * w[i];
    m[i] = beta1 * m[i] + rest1 * g;
    v[i] = beta2 * v[i] + rest2 * (g * g);
    w[i] = w[i] - rate * (m[i] / (std::sqrt(v[i]) * spread + epsilon));
  }
}

template <class T, class Grad>
inline __attribute__((always_inline)) void sgd_loop(const SgdData<T, Grad>& data,
                                                    const SgdFactors& f) {
  T* __restrict w = data.w;
  T* __restrict u = data.velocity;
  const Grad* __restrict grad = data.grad;
  const T lr = static_cast<T>(f.lr), momentum = static_cast<T>(f.momentum);
  const T decay = static_cast<T>(f.weight_decay), factor = static_cast<T>(f.grad);
  for (int64_t i = 0; i < data.count; ++i) {
    u[i] = momentum * u[i] + (widen(grad[i]) * factor + decay * w[i]);
    w[i] = w[i] - lr * u[i];
  }
}

template <class T, class Grad>
inline __attribute__((always_inline)) void nesterov_loop(const SgdData<T, Grad>& data,
                                                         const SgdFactors& f) {
  T* __restrict w = data.w;
  T* __restrict u = data.velocity;
  const Grad* __restrict grad = data.grad;
  const T lr = static_cast<T>(f.lr), momentum = static_cast<T>(f.momentum);
  const T decay = static_cast<T>(f.weight_decay), factor = static_cast<T>(f.grad);
  for (int64_t i = 0; i < data.count; ++i) {
    const T g = widen(grad[i]) * factor + decay * w[i];
    u[i] = momentum * u[i] + g;
    w[i] = w[i] - lr * (g + momentum * u[i]);
  }
}

}  // namespace

KUAFU_WIDE void adamw(const AdamWData<float, float>& data, const AdamWFactors& factors) {
  adamw_loop(data, factors);
}
KUAFU_WIDE void adamw(const AdamWData<float, BF16>& data, const AdamWFactors& factors) {
  adamw_loop(data, factors);
}
KUAFU_WIDE void adamw(const AdamWData<float, F16>& data, const AdamWFactors& factors) {
  adamw_loop(data, factors);
}
KUAFU_WIDE void adamw(const AdamWData<double, double>& data, const AdamWFactors& factors) {
  adamw_loop(data, factors);
}

KUAFU_WIDE void sgd(const SgdData<float, float>& data, const SgdFactors& factors) {
  sgd_loop(data, factors);
}
KUAFU_WIDE void sgd(const SgdData<float, BF16>& data, const SgdFactors& factors) {
  sgd_loop(data, factors);
}
KUAFU_WIDE void sgd(const SgdData<float, F16>& data, const SgdFactors& factors) {
  sgd_loop(data, factors);
}
KUAFU_WIDE void sgd(const SgdData<double, double>& data, const SgdFactors& factors) {
  sgd_loop(data, factors);
}

KUAFU_WIDE void adam(const AdamWData<float, float>& data, const AdamWFactors& factors) {
  adam_loop(data, factors);
}
KUAFU_WIDE void adam(const AdamWData<float, BF16>& data, const AdamWFactors& factors) {
  adam_loop(data, factors);
}
KUAFU_WIDE void adam(const AdamWData<float, F16>& data, const AdamWFactors& factors) {
  adam_loop(data, factors);
}
KUAFU_WIDE void adam(const AdamWData<double, double>& data, const AdamWFactors& factors) {
  adam_loop(data, factors);
}

KUAFU_WIDE void nesterov(const SgdData<float, float>& data, const SgdFactors& factors) {
  nesterov_loop(data, factors);
}
KUAFU_WIDE void nesterov(const SgdData<float, BF16>& data, const SgdFactors& factors) {
  nesterov_loop(data, factors);
}
KUAFU_WIDE void nesterov(const SgdData<float, F16>& data, const SgdFactors& factors) {
  nesterov_loop(data, factors);
}
KUAFU_WIDE void nesterov(const SgdData<double, double>& data, const SgdFactors& factors) {
  nesterov_loop(data, factors);
}

}  // namespace kuafu::kernels
