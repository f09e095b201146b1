// SPDX-License-Identifier: Apache-2.0
#include "kuafu/kernels/card_types.cuh"

namespace kuafu::kernels::card {

namespace {

/// The factors of one step in the type that it is taken in.
template <class T>
struct AdamFactors {
  T beta1, rest1, beta2, rest2, coupled, keep, rate, grad, spread, epsilon;
  explicit AdamFactors(const AdamWFactors& f)
      : beta1(static_cast<T>(f.beta1)),
        rest1(static_cast<T>(1 - f.beta1)),
        beta2(static_cast<T>(f.beta2)),
        rest2(static_cast<T>(1 - f.beta2)),
        coupled(static_cast<T>(f.coupled)),
        keep(static_cast<T>(f.keep)),
        rate(static_cast<T>(f.rate)),
        grad(static_cast<T>(f.grad)),
        spread(static_cast<T>(f.spread)),
        epsilon(static_cast<T>(f.epsilon)) {}
};

template <class T, class Grad>
struct AdamArrays {
  T* w;
  const Grad* grad;
  T *m, *v;
  int64_t count;
};

template <Decay kDecay, class T, class Grad, int kWidth>
__global__ void adam_kernel(const AdamArrays<T, Grad> a, const AdamFactors<T> f) {
  using Values = Some<T, kWidth>;
  using Grads = Some<Grad, kWidth>;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
       i < a.count / kWidth; i += stride) {
    const Grads grads = reinterpret_cast<const Grads*>(a.grad)[i];
    Values w = reinterpret_cast<Values*>(a.w)[i];
    Values m = reinterpret_cast<Values*>(a.m)[i];
    Values v = reinterpret_cast<Values*>(a.v)[i];
#pragma unroll
    for (int k = 0; k < kWidth; ++k) {
      T g = static_cast<T>(wide(grads.x[k])) * f.grad, kept = w.x[k];
      if constexpr (kDecay == Decay::kInGradient) {
        g += f.coupled * w.x[k];
      } else {
        kept *= f.keep;
      }
      m.x[k] = f.beta1 * m.x[k] + f.rest1 * g;
      v.x[k] = f.beta2 * v.x[k] + f.rest2 * (g * g);
      w.x[k] = kept - f.rate * (m.x[k] / (sqrt(v.x[k]) * f.spread + f.epsilon));
    }
    reinterpret_cast<Values*>(a.w)[i] = w;
    reinterpret_cast<Values*>(a.m)[i] = m;
    reinterpret_cast<Values*>(a.v)[i] = v;
  }
}

template <class T>
struct SgdRates {
  T lr, momentum, weight_decay, grad;
};

template <class T, class Grad>
struct SgdArrays {
  T* w;
  const Grad* grad;
  T* u;
  int64_t count;
};

template <Momentum kHow, class T, class Grad, int kWidth>
__global__ void sgd_kernel(const SgdArrays<T, Grad> a, const SgdRates<T> f) {
  using Values = Some<T, kWidth>;
  using Grads = Some<Grad, kWidth>;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
       i < a.count / kWidth; i += stride) {
    const Grads grads = reinterpret_cast<const Grads*>(a.grad)[i];
    Values w = reinterpret_cast<Values*>(a.w)[i];
    Values u = reinterpret_cast<Values*>(a.u)[i];
#pragma unroll
    for (int k = 0; k < kWidth; ++k) {
      const T g = static_cast<T>(wide(grads.x[k])) * f.grad + f.weight_decay * w.x[k];
      u.x[k] = f.momentum * u.x[k] + g;
      w.x[k] -= f.lr * (kHow == Momentum::kNesterov ? g + f.momentum * u.x[k] : u.x[k]);
    }
    reinterpret_cast<Values*>(a.w)[i] = w;
    reinterpret_cast<Values*>(a.u)[i] = u;
  }
}

template <class T, class Grad, int kWidth>
int launch_adam(Decay decay, const AdamArrays<T, Grad>& a, const AdamFactors<T>& f,
                cudaStream_t stream) {
  const unsigned blocks = blocks_for(a.count / kWidth);
  if (decay == Decay::kInGradient) {
    adam_kernel<Decay::kInGradient, T, Grad, kWidth><<<blocks, kThreads, 0, stream>>>(a, f);
  } else {
    adam_kernel<Decay::kOfWeight, T, Grad, kWidth><<<blocks, kThreads, 0, stream>>>(a, f);
  }
  return last_error();
}

template <class T, class Grad, int kWidth>
int launch_sgd(Momentum how, const SgdArrays<T, Grad>& a, const SgdRates<T>& f,
               cudaStream_t stream) {
  const unsigned blocks = blocks_for(a.count / kWidth);
  if (how == Momentum::kNesterov) {
    sgd_kernel<Momentum::kNesterov, T, Grad, kWidth><<<blocks, kThreads, 0, stream>>>(a, f);
  } else {
    sgd_kernel<Momentum::kPlain, T, Grad, kWidth><<<blocks, kThreads, 0, stream>>>(a, f);
  }
  return last_error();
}

}  // namespace

bool is_built() { return true; }

int adam(Decay decay, const AdamCall& call, const AdamWFactors& factors, void* stream) {
  if (call.count == 0) return 0;
  return by_types(call.kind, call.grad_kind, [&](auto zero, auto grad_zero) {
    using T = decltype(zero);
    using Grad = decltype(grad_zero);
    const AdamArrays<T, Grad> a{static_cast<T*>(call.w), static_cast<const Grad*>(call.grad),
                                static_cast<T*>(call.m), static_cast<T*>(call.v), call.count};
    const AdamFactors<T> f(factors);
    const auto on = static_cast<cudaStream_t>(stream);
    const bool is_wide = call.count % kUpdateWidth == 0 && is_aligned(a.w, kUpdateWidth) &&
                         is_aligned(a.grad, kUpdateWidth) && is_aligned(a.m, kUpdateWidth) &&
                         is_aligned(a.v, kUpdateWidth);
    return is_wide ? launch_adam<T, Grad, kUpdateWidth>(decay, a, f, on)
                   : launch_adam<T, Grad, 1>(decay, a, f, on);
  });
}

int sgd(Momentum how, const SgdCall& call, const SgdFactors& factors, void* stream) {
  if (call.count == 0) return 0;
  return by_types(call.kind, call.grad_kind, [&](auto zero, auto grad_zero) {
    using T = decltype(zero);
    using Grad = decltype(grad_zero);
    const SgdArrays<T, Grad> a{static_cast<T*>(call.w), static_cast<const Grad*>(call.grad),
                               static_cast<T*>(call.velocity), call.count};
    const SgdRates<T> f{static_cast<T>(factors.lr), static_cast<T>(factors.momentum),
                        static_cast<T>(factors.weight_decay), static_cast<T>(factors.grad)};
    const auto on = static_cast<cudaStream_t>(stream);
    const bool is_wide = call.count % kUpdateWidth == 0 && is_aligned(a.w, kUpdateWidth) &&
                         is_aligned(a.grad, kUpdateWidth) && is_aligned(a.u, kUpdateWidth);
    return is_wide ? launch_sgd<T, Grad, kUpdateWidth>(how, a, f, on)
                   : launch_sgd<T, Grad, 1>(how, a, f, on);
  });
}

}  // namespace kuafu::kernels::card
