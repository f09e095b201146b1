// SPDX-License-Identifier: Apache-2.0
//
// LAMB and LARS on a card: a pass for moments and squares by layer, one for the update.

#include "kuafu/kernels/card_types.cuh"

namespace kuafu::kernels::card {

namespace {

/// The layer of an element of a run.
__device__ int layer_of(const LayerRun& run, int64_t i) {
  const int64_t at = run.first + i;
  int64_t layer = run.stacked > 0 ? at / run.stacked * run.parts : 0;
  if (run.parts > 1) layer += (at % run.columns + run.column) / run.width % run.parts;
  return static_cast<int>(layer);
}

/// Sums of squares of two things by layer.
template <int kLayers>
struct Squares {
  double sums[2 * kLayers] = {};

  template <class T>
  __device__ void add(int layer, T x, T y) {
    const auto x2 = static_cast<double>(x) * static_cast<double>(x);
    const auto y2 = static_cast<double>(y) * static_cast<double>(y);
#pragma unroll
    for (int l = 0; l < kLayers; ++l) {
      if (kLayers > 1 && l != layer) continue;
      sums[2 * l] += x2;
      sums[2 * l + 1] += y2;
    }
  }
  /// This block's, to its place.
  __device__ void write(double* partial) {
#pragma unroll
    for (int k = 0; k < 2 * kLayers; ++k) {
      const double all = over_block(sums[k], 0.0, plus<double>);
      if (threadIdx.x == 0) partial[blockIdx.x * 2 * kLayers + k] = all;
    }
  }
};

/// Sums over the blocks, in their order; a block a number.
__global__ void sum_blocks_kernel(int blocks, int numbers, const double* partial, double* sums) {
  double mine = 0;
  for (int b = threadIdx.x; b < blocks; b += blockDim.x) mine += partial[b * numbers + blockIdx.x];
  mine = over_block(mine, 0.0, plus<double>);
  if (threadIdx.x == 0) sums[blockIdx.x] = mine;
}

template <class T>
struct LambRates {
  T beta1, rest1, beta2, rest2, grad, rate, spread, epsilon, decay;
  explicit LambRates(const LambFactors& f)
      : beta1(static_cast<T>(f.beta1)),
        rest1(static_cast<T>(1 - f.beta1)),
        beta2(static_cast<T>(f.beta2)),
        rest2(static_cast<T>(1 - f.beta2)),
        grad(static_cast<T>(f.grad)),
        rate(static_cast<T>(f.rate)),
        spread(static_cast<T>(f.spread)),
        epsilon(static_cast<T>(f.epsilon)),
        decay(static_cast<T>(f.decay)) {}
  __device__ T direction(T m, T v, T w) const {
    return m * rate / (sqrt(v) * spread + epsilon) + decay * w;
  }
};

template <class T, class Grad>
struct Arrays {
  T* w;
  const Grad* grad;
  T *m, *v;
  int64_t count;
};

template <class T, class Grad, int kLayers, int kWidth>
__global__ void lamb_norms_kernel(const LayerRun run, const Arrays<T, Grad> a, const LambRates<T> f,
                                  double* partial) {
  using Values = Some<T, kWidth>;
  using Grads = Some<Grad, kWidth>;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * blockDim.x;
  Squares<kLayers> squares;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
       i < a.count / kWidth; i += stride) {
    const Grads grads = reinterpret_cast<const Grads*>(a.grad)[i];
    const Values w = reinterpret_cast<const Values*>(a.w)[i];
    Values m = reinterpret_cast<Values*>(a.m)[i];
    Values v = reinterpret_cast<Values*>(a.v)[i];
    const int layer = kLayers == 1 ? 0 : layer_of(run, i * kWidth);
#pragma unroll
    for (int k = 0; k < kWidth; ++k) {
      const T g = static_cast<T>(wide(grads.x[k])) * f.grad;
      m.x[k] = f.beta1 * m.x[k] + f.rest1 * g;
      v.x[k] = f.beta2 * v.x[k] + f.rest2 * (g * g);
      squares.add(layer, w.x[k], f.direction(m.x[k], v.x[k], w.x[k]));
    }
    reinterpret_cast<Values*>(a.m)[i] = m;
    reinterpret_cast<Values*>(a.v)[i] = v;
  }
  squares.write(partial);
}

template <class T, int kWidth, bool kOneLayer>
__global__ void lamb_kernel(const LayerRun run, const Arrays<T, T> a, const LambRates<T> f,
                            const double* rates) {
  using Values = Some<T, kWidth>;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
       i < a.count / kWidth; i += stride) {
    Values w = reinterpret_cast<Values*>(a.w)[i];
    const Values m = reinterpret_cast<const Values*>(a.m)[i];
    const Values v = reinterpret_cast<const Values*>(a.v)[i];
    const T rate = static_cast<T>(rates[kOneLayer ? 0 : layer_of(run, i * kWidth)]);
#pragma unroll
    for (int k = 0; k < kWidth; ++k) w.x[k] -= rate * f.direction(m.x[k], v.x[k], w.x[k]);
    reinterpret_cast<Values*>(a.w)[i] = w;
  }
}

template <class T>
struct LarsRates {
  T momentum, decay, grad, most;
  double lr;
  int rates_of_layer;
  explicit LarsRates(const SgdFactors& f)
      : momentum(static_cast<T>(f.momentum)),
        decay(static_cast<T>(f.weight_decay)),
        grad(static_cast<T>(f.grad)),
        most(static_cast<T>(f.most)),
        lr(f.lr),
        rates_of_layer(f.rates_of_layer) {}
};

template <class T, class Grad, int kLayers, int kWidth>
__global__ void lars_norms_kernel(const LayerRun run, const Arrays<T, Grad> a, const LarsRates<T> f,
                                  double* partial) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * blockDim.x;
  Squares<kLayers> squares;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
       i < a.count / kWidth; i += stride) {
    const auto grads = reinterpret_cast<const Some<Grad, kWidth>*>(a.grad)[i];
    const auto w = reinterpret_cast<const Some<T, kWidth>*>(a.w)[i];
    const int layer = kLayers == 1 ? 0 : layer_of(run, i * kWidth);
#pragma unroll
    for (int k = 0; k < kWidth; ++k) {
      squares.add(layer, w.x[k], static_cast<T>(wide(grads.x[k])) * f.grad + f.decay * w.x[k]);
    }
  }
  squares.write(partial);
}

template <class T, class Grad, int kWidth, bool kOneLayer>
__global__ void lars_kernel(const LayerRun run, const Arrays<T, Grad> a, const LarsRates<T> f,
                            const double* rates) {
  using Values = Some<T, kWidth>;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
       i < a.count / kWidth; i += stride) {
    const auto grads = reinterpret_cast<const Some<Grad, kWidth>*>(a.grad)[i];
    Values w = reinterpret_cast<Values*>(a.w)[i];
    Values u = reinterpret_cast<Values*>(a.m)[i];
    const double* of_layer = rates + (kOneLayer ? 0 : f.rates_of_layer * layer_of(run, i * kWidth));
    const T rate = static_cast<T>(of_layer[0]);
    const T lr = static_cast<T>(f.rates_of_layer == 2 ? f.lr * of_layer[1] : f.lr);
#pragma unroll
    for (int k = 0; k < kWidth; ++k) {
      T g = static_cast<T>(wide(grads.x[k])) * f.grad + f.decay * w.x[k];
      g = g < -f.most ? -f.most : (f.most < g ? f.most : g);
      u.x[k] = f.momentum * u.x[k] + rate * g;
      w.x[k] -= lr * u.x[k];
    }
    reinterpret_cast<Values*>(a.w)[i] = w;
    reinterpret_cast<Values*>(a.m)[i] = u;
  }
}

/// Whether four elements that lie together are always of one layer, and may be read at once.
bool is_wide(const LayerRun& run, int64_t count) {
  if (count % kUpdateWidth != 0) return false;
  if (run.stacked > 0 && (run.stacked % kUpdateWidth != 0 || run.first % kUpdateWidth != 0))
    return false;
  return run.parts == 1 || (run.first % kUpdateWidth == 0 && run.columns % kUpdateWidth == 0 &&
                            run.width % kUpdateWidth == 0 && run.column % kUpdateWidth == 0);
}

bool is_one_layer(const LayerRun& run) { return run.parts == 1 && run.stacked == 0; }

/// Calls f with the width of a piece, and whether the run is of one layer.
template <class F>
int by_run(const LayerRun& run, bool is_aligned, int64_t count, F f) {
  const bool wide = is_aligned && is_wide(run, count);
  using One = std::integral_constant<int, 1>;
  using Wide = std::integral_constant<int, kUpdateWidth>;
  if (is_one_layer(run)) return wide ? f(Wide{}, std::true_type{}) : f(One{}, std::true_type{});
  return wide ? f(Wide{}, std::false_type{}) : f(One{}, std::false_type{});
}

/// Blocks of a pass that sums: their partial sums have room.
unsigned summing_blocks(int64_t pieces) {
  const unsigned blocks = blocks_for(pieces);
  return blocks < kPartials ? blocks : static_cast<unsigned>(kPartials);
}

int sum_blocks(unsigned blocks, int64_t kept, int64_t layers, const double* partial, double* sums,
               cudaStream_t on) {
  sum_blocks_kernel<<<static_cast<unsigned>(2 * layers), kThreads, 0, on>>>(
      static_cast<int>(blocks), static_cast<int>(2 * kept), partial, sums);
  return last_error();
}

}  // namespace

int lamb_norms(const LayerRun& run, int64_t layers, const AdamCall& call,
               const LambFactors& factors, double* partial, double* sums, void* stream) {
  const auto on = static_cast<cudaStream_t>(stream);
  return by_types(call.kind, call.grad_kind, [&](auto zero, auto grad_zero) {
    using T = decltype(zero);
    using Grad = decltype(grad_zero);
    const Arrays<T, Grad> a{static_cast<T*>(call.w), static_cast<const Grad*>(call.grad),
                            static_cast<T*>(call.m), static_cast<T*>(call.v), call.count};
    const bool aligned = is_aligned(a.w, kUpdateWidth) && is_aligned(a.grad, kUpdateWidth) &&
                         is_aligned(a.m, kUpdateWidth) && is_aligned(a.v, kUpdateWidth);
    return by_run(run, aligned, call.count, [&](auto width, auto one) {
      constexpr int kWidth = decltype(width)::value;
      constexpr int kLayers = decltype(one)::value ? 1 : static_cast<int>(kMostLayers);
      const unsigned blocks = summing_blocks(call.count / kWidth);
      lamb_norms_kernel<T, Grad, kLayers, kWidth>
          <<<blocks, kThreads, 0, on>>>(run, a, LambRates<T>(factors), partial);
      if (const int code = last_error(); code != 0) return code;
      return sum_blocks(blocks, kLayers, layers, partial, sums, on);
    });
  });
}

int lamb(const LayerRun& run, const AdamCall& call, const LambFactors& factors, const double* rates,
         void* stream) {
  if (call.count == 0) return 0;
  const auto on = static_cast<cudaStream_t>(stream);
  return by_types(call.kind, call.kind, [&](auto zero, auto) {
    using T = decltype(zero);
    const Arrays<T, T> a{static_cast<T*>(call.w), nullptr, static_cast<T*>(call.m),
                         static_cast<T*>(call.v), call.count};
    const bool aligned = is_aligned(a.w, kUpdateWidth) && is_aligned(a.m, kUpdateWidth) &&
                         is_aligned(a.v, kUpdateWidth);
    return by_run(run, aligned, call.count, [&](auto width, auto one) {
      constexpr int kWidth = decltype(width)::value;
      lamb_kernel<T, kWidth, decltype(one)::value>
          <<<blocks_for(call.count / kWidth), kThreads, 0, on>>>(run, a, LambRates<T>(factors),
                                                                 rates);
      return last_error();
    });
  });
}

int lars_norms(const LayerRun& run, int64_t layers, const SgdCall& call, const SgdFactors& factors,
               double* partial, double* sums, void* stream) {
  const auto on = static_cast<cudaStream_t>(stream);
  return by_types(call.kind, call.grad_kind, [&](auto zero, auto grad_zero) {
    using T = decltype(zero);
    using Grad = decltype(grad_zero);
    const Arrays<T, Grad> a{static_cast<T*>(call.w), static_cast<const Grad*>(call.grad), nullptr,
                            nullptr, call.count};
    const bool aligned = is_aligned(a.w, kUpdateWidth) && is_aligned(a.grad, kUpdateWidth);
    return by_run(run, aligned, call.count, [&](auto width, auto one) {
      constexpr int kWidth = decltype(width)::value;
      constexpr int kLayers = decltype(one)::value ? 1 : static_cast<int>(kMostLayers);
      const unsigned blocks = summing_blocks(call.count / kWidth);
      lars_norms_kernel<T, Grad, kLayers, kWidth>
          <<<blocks, kThreads, 0, on>>>(run, a, LarsRates<T>(factors), partial);
      if (const int code = last_error(); code != 0) return code;
      return sum_blocks(blocks, kLayers, layers, partial, sums, on);
    });
  });
}

int lars(const LayerRun& run, const SgdCall& call, const SgdFactors& factors, const double* rates,
         void* stream) {
  if (call.count == 0) return 0;
  const auto on = static_cast<cudaStream_t>(stream);
  return by_types(call.kind, call.grad_kind, [&](auto zero, auto grad_zero) {
    using T = decltype(zero);
    using Grad = decltype(grad_zero);
    const Arrays<T, Grad> a{static_cast<T*>(call.w), static_cast<const Grad*>(call.grad),
                            static_cast<T*>(call.velocity), nullptr, call.count};
    const bool aligned = is_aligned(a.w, kUpdateWidth) && is_aligned(a.grad, kUpdateWidth) &&
                         is_aligned(a.m, kUpdateWidth);
    return by_run(run, aligned, call.count, [&](auto width, auto one) {
      constexpr int kWidth = decltype(width)::value;
      lars_kernel<T, Grad, kWidth, decltype(one)::value>
          <<<blocks_for(call.count / kWidth), kThreads, 0, on>>>(run, a, LarsRates<T>(factors),
                                                                 rates);
      return last_error();
    });
  });
}

}  // namespace kuafu::kernels::card
