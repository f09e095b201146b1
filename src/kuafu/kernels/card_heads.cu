// SPDX-License-Identifier: Apache-2.0
#include <limits>

#include "kuafu/kernels/card_types.cuh"

namespace kuafu::kernels::card {

namespace {

struct Parts {
  HeadPart of[kMostParts];
};

/// Index counts pieces of kWidth elements in the order of the whole. 32 bits where they suffice: four
/// quotients a piece of 64 bits take longer than its memory.
template <class T, int kWidth, class Index, bool kSplits>
__global__ void heads_kernel(const Heads shape, T* whole, const Parts parts, Index pieces) {
  using Piece = Some<T, kWidth>;
  const Index stride = static_cast<Index>(gridDim.x) * blockDim.x;
  const auto across = static_cast<Index>(shape.width / kWidth);
  for (Index i = static_cast<Index>(blockIdx.x) * blockDim.x + threadIdx.x; i < pieces;
       i += stride) {
    Index rest = i / across;
    const Index d = i % across;
    const Index p = rest % static_cast<Index>(shape.parts);
    rest /= static_cast<Index>(shape.parts);
    const Index n = rest % static_cast<Index>(shape.heads);
    rest /= static_cast<Index>(shape.heads);
    const Index s = rest % static_cast<Index>(shape.sequence);
    const Index b = rest / static_cast<Index>(shape.sequence);
    const HeadPart part = parts.of[p];
    T* const place = static_cast<T*>(part.data) + b * part.of_batch + s * part.of_position +
                     n * part.of_head + d * kWidth;
    Piece& one = reinterpret_cast<Piece*>(whole)[i];
    if constexpr (kSplits) {
      *reinterpret_cast<Piece*>(place) = one;
    } else {
      one = *reinterpret_cast<const Piece*>(place);
    }
  }
}

template <class T, int kWidth, bool kSplits>
int launch(const Heads& shape, T* whole, const Parts& parts, cudaStream_t stream) {
  const int64_t pieces =
      shape.batch * shape.sequence * shape.heads * shape.parts * shape.width / kWidth;
  if (pieces == 0) return 0;
  const unsigned blocks = blocks_for(pieces);
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max() - int64_t{132} * 16 * kThreads;
  if (pieces < kMost) {
    heads_kernel<T, kWidth, int32_t, kSplits>
        <<<blocks, kThreads, 0, stream>>>(shape, whole, parts, static_cast<int32_t>(pieces));
  } else {
    heads_kernel<T, kWidth, int64_t, kSplits>
        <<<blocks, kThreads, 0, stream>>>(shape, whole, parts, pieces);
  }
  return last_error();
}

template <bool kSplits>
int run(const Heads& shape, void* whole, const HeadPart* given, void* stream) {
  if (shape.parts > kMostParts) return static_cast<int>(cudaErrorInvalidValue);
  Parts parts;
  for (int64_t p = 0; p < shape.parts; ++p) parts.of[p] = given[p];
  return by_kind(shape.kind, [&](auto* null) {
    using T = std::remove_pointer_t<decltype(null)>;
    constexpr int kWide = 16 / sizeof(T);
    bool is_wide = shape.width % kWide == 0 && is_aligned(static_cast<T*>(whole), kWide);
    for (int64_t p = 0; p < shape.parts; ++p) {
      const HeadPart& of = given[p];
      is_wide = is_wide && is_aligned(static_cast<T*>(of.data), kWide) &&
                of.of_batch % kWide == 0 && of.of_position % kWide == 0 && of.of_head % kWide == 0;
    }
    const auto on = static_cast<cudaStream_t>(stream);
    return is_wide ? launch<T, kWide, kSplits>(shape, static_cast<T*>(whole), parts, on)
                   : launch<T, 1, kSplits>(shape, static_cast<T*>(whole), parts, on);
  });
}

}  // namespace

int split_heads(const Heads& shape, const void* whole, const HeadPart* parts, void* stream) {
  return run<true>(shape, const_cast<void*>(whole), parts, stream);
}

int join_heads(const Heads& shape, void* whole, const HeadPart* parts, void* stream) {
  return run<false>(shape, whole, parts, stream);
}

}  // namespace kuafu::kernels::card
