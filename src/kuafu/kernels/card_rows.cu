// SPDX-License-Identifier: Apache-2.0
//
// Rows of a matrix: a bias for each, sums over them, and layer norm. Threads own columns where rows are
// summed, and rows where columns are, so that what is read together lies together.

#include "kuafu/kernels/card_types.cuh"

namespace kuafu::kernels::card {

namespace {

/// A thread's columns [first, first + kWidth) and every gridDim.y-th row.
struct Place {
  int64_t first, row, step;
};

template <int kWidth>
__device__ Place my_place() {
  const int64_t piece = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  return {piece * kWidth, blockIdx.y, gridDim.y};
}

template <class T, int kWidth>
__device__ const Some<T, kWidth>& piece_at(const T* p) {
  return *reinterpret_cast<const Some<T, kWidth>*>(p);
}
template <class T, int kWidth>
__device__ Some<T, kWidth>& piece_at(T* p) {
  return *reinterpret_cast<Some<T, kWidth>*>(p);
}

template <class T, int kWidth>
__global__ void add_bias_kernel(int64_t rows, int64_t width, T* y, const T* bias) {
  using A = typename Accumulator<T>::Type;
  const Place my = my_place<kWidth>();
  if (my.first >= width) return;
  const Some<T, kWidth> b = piece_at<T, kWidth>(bias + my.first);
  for (int64_t r = my.row; r < rows; r += my.step) {
    Some<T, kWidth>& place = piece_at<T, kWidth>(y + r * width + my.first);
    Some<T, kWidth> piece = place;
#pragma unroll
    for (int k = 0; k < kWidth; ++k) {
      piece.x[k] = narrow<T>(static_cast<A>(wide(piece.x[k])) + static_cast<A>(wide(b.x[k])));
    }
    place = piece;
  }
}

/// partial[part][c]: the sum of every gridDim.y-th row.
template <class T, int kWidth>
__global__ void sum_parts_kernel(int64_t rows, int64_t width, const T* x,
                                 typename Accumulator<T>::Type* partial) {
  using A = typename Accumulator<T>::Type;
  const Place my = my_place<kWidth>();
  if (my.first >= width) return;
  A sums[kWidth] = {};
  for (int64_t r = my.row; r < rows; r += my.step) {
    const Some<T, kWidth> piece = piece_at<T, kWidth>(x + r * width + my.first);
#pragma unroll
    for (int k = 0; k < kWidth; ++k) sums[k] += wide(piece.x[k]);
  }
#pragma unroll
  for (int k = 0; k < kWidth; ++k) partial[blockIdx.y * width + my.first + k] = sums[k];
}

/// The same of dy and of dy (x - mean) rstd.
template <class T, int kWidth>
__global__ void norm_parts_kernel(int64_t rows, int64_t width, const T* dy, const T* x,
                                  const typename Accumulator<T>::Type* mean,
                                  const typename Accumulator<T>::Type* rstd,
                                  typename Accumulator<T>::Type* of_weight,
                                  typename Accumulator<T>::Type* of_bias) {
  using A = typename Accumulator<T>::Type;
  const Place my = my_place<kWidth>();
  if (my.first >= width) return;
  A weights[kWidth] = {}, biases[kWidth] = {};
  for (int64_t r = my.row; r < rows; r += my.step) {
    const Some<T, kWidth> g = piece_at<T, kWidth>(dy + r * width + my.first);
    const Some<T, kWidth> in = piece_at<T, kWidth>(x + r * width + my.first);
    const A m = mean[r], s = rstd[r];
#pragma unroll
    for (int k = 0; k < kWidth; ++k) {
      const A d = wide(g.x[k]);
      biases[k] += d;
      weights[k] += d * (static_cast<A>(wide(in.x[k])) - m) * s;
    }
  }
#pragma unroll
  for (int k = 0; k < kWidth; ++k) {
    of_weight[blockIdx.y * width + my.first + k] = weights[k];
    of_bias[blockIdx.y * width + my.first + k] = biases[k];
  }
}

constexpr int kColumns = 32, kGroups = 16;

/// sums[c] of the parts; blockIdx.y is the matrix. A block has kColumns columns, each with kGroups
/// threads, whose sums are added in their order.
template <class T>
__global__ void sum_of_parts_kernel(int64_t parts, int64_t width,
                                    const typename Accumulator<T>::Type* partial, T* first,
                                    T* second) {
  using A = typename Accumulator<T>::Type;
  __shared__ A of_groups[kGroups][kColumns];
  const int64_t c = static_cast<int64_t>(blockIdx.x) * kColumns + threadIdx.x;
  const A* const mine = partial + blockIdx.y * kRowParts * width;
  A sum = 0;
  if (c < width) {
#pragma unroll 4
    for (int64_t p = threadIdx.y; p < parts; p += kGroups) sum += mine[p * width + c];
  }
  of_groups[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || c >= width) return;
  for (int g = 1; g < kGroups; ++g) sum += of_groups[g][threadIdx.x];
  (blockIdx.y == 0 ? first : second)[c] = narrow<T>(sum);
}

template <class T>
struct NormRows {
  using A = typename Accumulator<T>::Type;
  const T *x, *weight, *bias;
  A epsilon;
  T* y;
  A *mean, *rstd;
};

/// A block a row; the second and third reading of the row come out of the cache.
template <class T, int kWidth>
__global__ void layer_norm_kernel(int64_t width, const NormRows<T> n) {
  using A = typename Accumulator<T>::Type;
  const int64_t row = blockIdx.x;
  const T* const x = n.x + row * width;
  T* const y = n.y + row * width;
  A sum = 0;
  for (int64_t c = threadIdx.x * kWidth; c < width; c += blockDim.x * kWidth) {
    const Some<T, kWidth> piece = piece_at<T, kWidth>(x + c);
#pragma unroll
    for (int k = 0; k < kWidth; ++k) sum += wide(piece.x[k]);
  }
  const A mean = over_block(sum, A{0}, plus<A>) / static_cast<A>(width);
  A squares = 0;
  for (int64_t c = threadIdx.x * kWidth; c < width; c += blockDim.x * kWidth) {
    const Some<T, kWidth> piece = piece_at<T, kWidth>(x + c);
#pragma unroll
    for (int k = 0; k < kWidth; ++k) {
      const A far = static_cast<A>(wide(piece.x[k])) - mean;
      squares += far * far;
    }
  }
  const A variance = over_block(squares, A{0}, plus<A>) / static_cast<A>(width);
  const A rstd = A{1} / sqrt(variance + n.epsilon);
  for (int64_t c = threadIdx.x * kWidth; c < width; c += blockDim.x * kWidth) {
    Some<T, kWidth> piece = piece_at<T, kWidth>(x + c);
    const Some<T, kWidth> w = piece_at<T, kWidth>(n.weight + c),
                          b = piece_at<T, kWidth>(n.bias + c);
#pragma unroll
    for (int k = 0; k < kWidth; ++k) {
      const A normal = (static_cast<A>(wide(piece.x[k])) - mean) * rstd;
      piece.x[k] = narrow<T>(normal * static_cast<A>(wide(w.x[k])) + static_cast<A>(wide(b.x[k])));
    }
    piece_at<T, kWidth>(y + c) = piece;
  }
  if (threadIdx.x != 0) return;
  n.mean[row] = mean;
  n.rstd[row] = rstd;
}

template <class T>
struct GradRows {
  using A = typename Accumulator<T>::Type;
  const T *dy, *x, *weight, *residual;
  const A *mean, *rstd;
  T* dx;
};

/// dx = rstd (g - mean(g) - xhat mean(g xhat)) with g = dy weight; a block a row.
template <class T, int kWidth>
__global__ void norm_dx_kernel(int64_t width, const GradRows<T> n) {
  using A = typename Accumulator<T>::Type;
  const int64_t row = blockIdx.x, at = row * width;
  const A mean = n.mean[row], rstd = n.rstd[row];
  A sum = 0, along = 0;
  for (int64_t c = threadIdx.x * kWidth; c < width; c += blockDim.x * kWidth) {
    const Some<T, kWidth> d = piece_at<T, kWidth>(n.dy + at + c);
    const Some<T, kWidth> x = piece_at<T, kWidth>(n.x + at + c);
    const Some<T, kWidth> w = piece_at<T, kWidth>(n.weight + c);
#pragma unroll
    for (int k = 0; k < kWidth; ++k) {
      const A g = static_cast<A>(wide(d.x[k])) * static_cast<A>(wide(w.x[k]));
      sum += g;
      along += g * (static_cast<A>(wide(x.x[k])) - mean) * rstd;
    }
  }
  const A each = A{1} / static_cast<A>(width);
  const A mean_g = over_block(sum, A{0}, plus<A>) * each;
  const A mean_along = over_block(along, A{0}, plus<A>) * each;
  for (int64_t c = threadIdx.x * kWidth; c < width; c += blockDim.x * kWidth) {
    const Some<T, kWidth> d = piece_at<T, kWidth>(n.dy + at + c);
    const Some<T, kWidth> x = piece_at<T, kWidth>(n.x + at + c);
    const Some<T, kWidth> w = piece_at<T, kWidth>(n.weight + c);
    Some<T, kWidth> out = {};
    if (n.residual != nullptr) out = piece_at<T, kWidth>(n.residual + at + c);
#pragma unroll
    for (int k = 0; k < kWidth; ++k) {
      const A g = static_cast<A>(wide(d.x[k])) * static_cast<A>(wide(w.x[k]));
      const A normal = (static_cast<A>(wide(x.x[k])) - mean) * rstd;
      A dx = rstd * (g - mean_g - normal * mean_along);
      if (n.residual != nullptr) dx += static_cast<A>(wide(out.x[k]));
      out.x[k] = narrow<T>(dx);
    }
    piece_at<T, kWidth>(n.dx + at + c) = out;
  }
}

/// Blocks of columns, and so many rows apart that the card is full.
dim3 grid_of(int64_t rows, int64_t pieces) {
  const int64_t across = (pieces + kThreads - 1) / kThreads;
  const int64_t most = rows < kRowParts ? rows : kRowParts;
  return {static_cast<unsigned>(across), static_cast<unsigned>(most), 1};
}

template <class T, class A>
int sum_parts(unsigned matrices, int64_t parts, int64_t width, const A* partial, T* first,
              T* second, cudaStream_t stream) {
  const dim3 blocks(static_cast<unsigned>((width + kColumns - 1) / kColumns), matrices);
  sum_of_parts_kernel<T>
      <<<blocks, dim3(kColumns, kGroups), 0, stream>>>(parts, width, partial, first, second);
  return last_error();
}

/// Calls f with the type of the shape, and with 16 bytes of elements at a time where the width and
/// all pointers allow it, else with one.
template <class F>
int by_shape(const RowMatrix& shape, std::initializer_list<const void*> arrays, F f) {
  if (shape.rows == 0 || shape.width == 0) return 0;
  return by_kind(shape.kind, [&](auto* null) {
    using T = std::remove_pointer_t<decltype(null)>;
    constexpr int kWide = 16 / sizeof(T);
    bool is_wide = shape.width % kWide == 0;
    for (const void* p : arrays) is_wide = is_wide && reinterpret_cast<uintptr_t>(p) % 16 == 0;
    return is_wide ? f(null, std::integral_constant<int, kWide>{})
                   : f(null, std::integral_constant<int, 1>{});
  });
}

}  // namespace

int add_bias(const RowMatrix& shape, void* y, const void* bias, void* stream) {
  return by_shape(shape, {y, bias}, [&](auto* null, auto w) {
    using T = std::remove_pointer_t<decltype(null)>;
    constexpr int kWidth = decltype(w)::value;
    add_bias_kernel<T, kWidth><<<grid_of(shape.rows, shape.width / kWidth), kThreads, 0,
                                 static_cast<cudaStream_t>(stream)>>>(
        shape.rows, shape.width, static_cast<T*>(y), static_cast<const T*>(bias));
    return last_error();
  });
}

int sum_rows(const RowMatrix& shape, const void* x, void* partial, void* sums, void* stream) {
  return by_shape(shape, {x}, [&](auto* null, auto w) {
    using T = std::remove_pointer_t<decltype(null)>;
    using A = typename Accumulator<T>::Type;
    constexpr int kWidth = decltype(w)::value;
    const auto on = static_cast<cudaStream_t>(stream);
    const dim3 grid = grid_of(shape.rows, shape.width / kWidth);
    auto* const parts = static_cast<A*>(partial);
    sum_parts_kernel<T, kWidth>
        <<<grid, kThreads, 0, on>>>(shape.rows, shape.width, static_cast<const T*>(x), parts);
    return sum_parts<T, A>(1, grid.y, shape.width, parts, static_cast<T*>(sums), nullptr, on);
  });
}

int layer_norm(const RowMatrix& shape, const LayerNorm& n, void* stream) {
  return by_shape(shape, {n.x, n.weight, n.bias, n.y}, [&](auto* null, auto w) {
    using T = std::remove_pointer_t<decltype(null)>;
    using A = typename Accumulator<T>::Type;
    layer_norm_kernel<T, decltype(w)::value>
        <<<static_cast<unsigned>(shape.rows), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
            shape.width, {static_cast<const T*>(n.x), static_cast<const T*>(n.weight),
                          static_cast<const T*>(n.bias), static_cast<A>(n.epsilon),
                          static_cast<T*>(n.y), static_cast<A*>(n.mean), static_cast<A*>(n.rstd)});
    return last_error();
  });
}

int layer_norm_backward(const RowMatrix& shape, const LayerNormBackward& n, void* stream) {
  return by_shape(shape, {n.dy, n.x, n.weight, n.residual, n.dx}, [&](auto* null, auto w) {
    using T = std::remove_pointer_t<decltype(null)>;
    using A = typename Accumulator<T>::Type;
    constexpr int kWidth = decltype(w)::value;
    const auto on = static_cast<cudaStream_t>(stream);
    const auto *const dy = static_cast<const T*>(n.dy), *const x = static_cast<const T*>(n.x);
    const auto *const mean = static_cast<const A*>(n.mean), *const rstd =
                                                                static_cast<const A*>(n.rstd);
    norm_dx_kernel<T, kWidth><<<static_cast<unsigned>(shape.rows), kThreads, 0, on>>>(
        shape.width, {dy, x, static_cast<const T*>(n.weight), static_cast<const T*>(n.residual),
                      mean, rstd, static_cast<T*>(n.dx)});
    const dim3 grid = grid_of(shape.rows, shape.width / kWidth);
    auto* const parts = static_cast<A*>(n.partial);
    norm_parts_kernel<T, kWidth><<<grid, kThreads, 0, on>>>(
        shape.rows, shape.width, dy, x, mean, rstd, parts, parts + kRowParts * shape.width);
    return sum_parts<T, A>(2, grid.y, shape.width, parts, static_cast<T*>(n.dweight),
                           static_cast<T*>(n.dbias), on);
  });
}

}  // namespace kuafu::kernels::card
