// SPDX-License-Identifier: Apache-2.0
//
// Sums over many elements: of squares, and the two passes of cross entropy.

#include "kuafu/kernels/card_types.cuh"

namespace kuafu::kernels::card {

namespace {

template <class T, int kWidth>
__global__ void squares_kernel(const T* x, int64_t count, double* partial) {
  using Piece = Some<T, kWidth>;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * blockDim.x;
  double sum = 0;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count / kWidth;
       i += stride) {
    const Piece piece = reinterpret_cast<const Piece*>(x)[i];
#pragma unroll
    for (int k = 0; k < kWidth; ++k) {
      const auto wider = static_cast<double>(wide(piece.x[k]));
      sum += wider * wider;
    }
  }
  sum = over_block(sum, 0.0, plus<double>);
  if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

__global__ void sum_kernel(const double* partial, int count, double* sum) {
  double mine = 0;
  for (int i = threadIdx.x; i < count; i += blockDim.x) mine += partial[i];
  mine = over_block(mine, 0.0, plus<double>);
  if (threadIdx.x == 0) *sum = mine;
}

template <class T>
struct LogitRows {
  const T* x;
  const int64_t* targets;
  int64_t width, columns, first, vocab;
};

/// A block a row. Each thread keeps the largest of what it saw and the sum of exponentials beside it.
template <class T>
__global__ void stats_kernel(const LogitRows<T> all, typename Accumulator<T>::Type* max,
                             typename Accumulator<T>::Type* sumexp,
                             typename Accumulator<T>::Type* target) {
  using A = typename Accumulator<T>::Type;
  const int64_t row = blockIdx.x;
  const T* const x = all.x + row * all.width;
  const A lowest = -static_cast<A>(INFINITY);
  A top = lowest, sum = 0;
  for (int64_t c = threadIdx.x; c < all.columns; c += blockDim.x) {
    const A value = wide(x[c]);
    if (value > top) {
      sum = sum * exp(top - value) + 1;
      top = value;
    } else if (value > lowest) {
      sum += exp(value - top);
    } else if (value != value) {  // NaN: the row has no sum
      top = value;
      sum = value;
    }
  }
  const A highest =
      over_block(top, lowest, [](A a, A b) { return a != a ? a : (b != b ? b : larger(a, b)); });
  if (top == lowest) {
    sum = 0;
  } else {
    sum *= exp(top - highest);
  }
  sum = over_block(sum, A{0}, plus<A>);
  if (threadIdx.x != 0) return;
  const int64_t wanted = all.targets[row];
  const bool is_ignored = wanted == -1;
  const int64_t column = wanted - all.first;
  const bool is_here = !is_ignored && column >= 0 && column < all.columns;
  max[row] = is_ignored ? A{0} : highest;
  sumexp[row] = is_ignored ? static_cast<A>(all.first == 0 ? 1 : 0) : sum;
  const bool is_token = is_ignored || (wanted >= 0 && wanted < all.vocab);
  if (!is_token)
    sumexp[row] = target[row] = static_cast<A>(NAN);
  else
    target[row] = is_here ? static_cast<A>(wide(x[column])) : A{0};
}

template <class T>
__global__ void backward_kernel(const LogitRows<T> all, const typename Accumulator<T>::Type* max,
                                const typename Accumulator<T>::Type* sumexp,
                                typename Accumulator<T>::Type scale, T* dx) {
  using A = typename Accumulator<T>::Type;
  const int64_t row = blockIdx.x;
  const T* const x = all.x + row * all.width;
  T* const out = dx + row * all.width;
  const int64_t wanted = all.targets[row];
  const bool is_ignored = wanted == -1;
  const int64_t column = is_ignored ? -1 : wanted - all.first;
  const A top = max[row], factor = scale / sumexp[row];
  for (int64_t c = threadIdx.x; c < all.width; c += blockDim.x) {
    A g = 0;
    if (!is_ignored && c < all.columns) {
      g = exp(static_cast<A>(wide(x[c])) - top) * factor;
      if (c == column) g -= scale;
    }
    out[c] = narrow<T>(g);
  }
}

template <class T>
LogitRows<T> rows_of(const Logits& l) {
  return {static_cast<const T*>(l.x), l.targets, l.width, l.columns, l.first, l.vocab};
}

}  // namespace

int sum_of_squares(Element kind, const void* x, int64_t count, double* partial, double* sum,
                   void* stream) {
  const auto on = static_cast<cudaStream_t>(stream);
  const int64_t wanted = (count + kThreads - 1) / kThreads;
  const auto blocks =
      static_cast<unsigned>(wanted < 1 ? 1 : (wanted < kPartials ? wanted : kPartials));
  const int code = by_kind(kind, [&](auto* null) {
    using T = std::remove_pointer_t<decltype(null)>;
    constexpr int kWidth = 16 / sizeof(T);
    const auto* const data = static_cast<const T*>(x);
    if (count % kWidth == 0 && is_aligned(data, kWidth)) {
      squares_kernel<T, kWidth><<<blocks, kThreads, 0, on>>>(data, count, partial);
    } else {
      squares_kernel<T, 1><<<blocks, kThreads, 0, on>>>(data, count, partial);
    }
    return last_error();
  });
  if (code != 0) return code;
  sum_kernel<<<1, kThreads, 0, on>>>(partial, static_cast<int>(blocks), sum);
  return last_error();
}

int cross_entropy_stats(const Logits& logits, void* max, void* sumexp, void* target, void* stream) {
  if (logits.rows == 0) return 0;
  return by_kind(logits.kind, [&](auto* null) {
    using T = std::remove_pointer_t<decltype(null)>;
    using A = typename Accumulator<T>::Type;
    stats_kernel<T>
        <<<static_cast<unsigned>(logits.rows), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
            rows_of<T>(logits), static_cast<A*>(max), static_cast<A*>(sumexp),
            static_cast<A*>(target));
    return last_error();
  });
}

int cross_entropy_backward(const Logits& logits, const void* max, const void* sumexp, double scale,
                           void* dx, void* stream) {
  if (logits.rows == 0 || logits.width == 0) return 0;
  return by_kind(logits.kind, [&](auto* null) {
    using T = std::remove_pointer_t<decltype(null)>;
    using A = typename Accumulator<T>::Type;
    backward_kernel<T>
        <<<static_cast<unsigned>(logits.rows), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
            rows_of<T>(logits), static_cast<const A*>(max), static_cast<const A*>(sumexp),
            static_cast<A>(scale), static_cast<T*>(dx));
    return last_error();
  });
}

}  // namespace kuafu::kernels::card
