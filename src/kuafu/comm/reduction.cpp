// SPDX-License-Identifier: Apache-2.0
#include "kuafu/comm/reduction.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <type_traits>

namespace kuafu {

namespace {

struct Bf16 {
  uint16_t bits;
};
struct F16 {
  uint16_t bits;
};

[[gnu::always_inline]] inline float widen(Bf16 v) {
  return std::bit_cast<float>(static_cast<uint32_t>(v.bits) << 16);
}

[[gnu::always_inline]] inline Bf16 narrow_bf16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  const bool is_nan = (bits & 0x7fffffff) > 0x7f800000;
  return {static_cast<uint16_t>(is_nan ? (bits >> 16) | 0x40 : rounded)};
}

// Conversion between what is stored and what is added. Integers are added unsigned, so they wrap.
template <class T>
struct Wide {
  using type = T;
  static T load(T v) { return v; }
  static T store(T v) { return v; }
};
template <>
struct Wide<Bf16> {
  using type = float;
  [[gnu::always_inline]] static inline float load(Bf16 v) { return widen(v); }
  [[gnu::always_inline]] static inline Bf16 store(float v) { return narrow_bf16(v); }
};
template <>
struct Wide<F16> {
  using type = float;
  static float load(F16 v) { return from_f16(v.bits); }
  static F16 store(float v) { return {to_f16(v)}; }
};

template <ReduceOp op, class A>
[[gnu::always_inline]] inline A apply(A a, A b) {
  if constexpr (op == ReduceOp::kMax) {
    return a < b ? b : a;
  } else if constexpr (op == ReduceOp::kMin) {
    return b < a ? b : a;
  } else if constexpr (std::is_integral_v<A>) {
    using U = std::make_unsigned_t<A>;
    return static_cast<A>(static_cast<U>(static_cast<U>(a) + static_cast<U>(b)));
  } else {
    return a + b;
  }
}

// Elements held between the passes over the sources: stays in the first-level cache.
constexpr int64_t kBlock = 1024;

// The first n <= 4 sources of a block, in registers, into `sum`.
template <class T, ReduceOp op, int n>
[[gnu::always_inline]] inline void combine_first(const void* const* from, int64_t at,
                                                 int64_t length,
                                                 typename Wide<T>::type* __restrict sum) {
  const T* const a = static_cast<const T*>(from[0]) + at;
  const T* const b = n > 1 ? static_cast<const T*>(from[1]) + at : nullptr;
  const T* const c = n > 2 ? static_cast<const T*>(from[2]) + at : nullptr;
  const T* const d = n > 3 ? static_cast<const T*>(from[3]) + at : nullptr;
  for (int64_t i = 0; i < length; ++i) {
    auto v = Wide<T>::load(a[i]);
    if constexpr (n > 1) v = apply<op>(v, Wide<T>::load(b[i]));
    if constexpr (n > 2) v = apply<op>(v, Wide<T>::load(c[i]));
    if constexpr (n > 3) v = apply<op>(v, Wide<T>::load(d[i]));
    sum[i] = v;
  }
}

// n <= 4 arrays, combined and each overwritten with the result in one pass.
template <class T, ReduceOp op, int n>
[[gnu::always_inline]] inline void combine_in_place(void* const* data, int64_t count) {
  T* const a = static_cast<T*>(data[0]);
  T* const b = static_cast<T*>(data[1]);
  T* const c = n > 2 ? static_cast<T*>(data[2]) : nullptr;
  T* const d = n > 3 ? static_cast<T*>(data[3]) : nullptr;
#pragma GCC ivdep
  for (int64_t i = 0; i < count; ++i) {
    auto v = apply<op>(Wide<T>::load(a[i]), Wide<T>::load(b[i]));
    if constexpr (n > 2) v = apply<op>(v, Wide<T>::load(c[i]));
    if constexpr (n > 3) v = apply<op>(v, Wide<T>::load(d[i]));
    const T result = Wide<T>::store(v);
    a[i] = result;
    b[i] = result;
    if constexpr (n > 2) c[i] = result;
    if constexpr (n > 3) d[i] = result;
  }
}

// n <= 4 arrays into one, which may be one of them, in one pass.
template <class T, ReduceOp op, int n>
[[gnu::always_inline]] inline void combine_into(const void* const* from, void* to, int64_t count) {
  const T* const a = static_cast<const T*>(from[0]);
  const T* const b = static_cast<const T*>(from[1]);
  const T* const c = n > 2 ? static_cast<const T*>(from[2]) : nullptr;
  const T* const d = n > 3 ? static_cast<const T*>(from[3]) : nullptr;
  T* const result = static_cast<T*>(to);
#pragma GCC ivdep
  for (int64_t i = 0; i < count; ++i) {
    auto v = apply<op>(Wide<T>::load(a[i]), Wide<T>::load(b[i]));
    if constexpr (n > 2) v = apply<op>(v, Wide<T>::load(c[i]));
    if constexpr (n > 3) v = apply<op>(v, Wide<T>::load(d[i]));
    result[i] = Wide<T>::store(v);
  }
}

template <class T, ReduceOp op>
[[gnu::always_inline]] inline void combine_blocks(const void* const* from, int64_t num_from,
                                                  void* const* to, int64_t num_to, int64_t count) {
  using A = typename Wide<T>::type;
  if (num_from >= 2 && num_from <= 4 && num_from == num_to &&
      std::equal(from, from + num_from, to)) {
    if (num_from == 2) return combine_in_place<T, op, 2>(to, count);
    if (num_from == 3) return combine_in_place<T, op, 3>(to, count);
    return combine_in_place<T, op, 4>(to, count);
  }
  if (num_from >= 2 && num_from <= 4 && num_to == 1) {
    if (num_from == 2) return combine_into<T, op, 2>(from, to[0], count);
    if (num_from == 3) return combine_into<T, op, 3>(from, to[0], count);
    return combine_into<T, op, 4>(from, to[0], count);
  }
  alignas(64) A sum[kBlock];
  alignas(64) T narrow[kBlock];
  for (int64_t at = 0; at < count; at += kBlock) {
    const int64_t length = std::min(kBlock, count - at);
    switch (std::min<int64_t>(num_from, 4)) {
      case 1:
        combine_first<T, op, 1>(from, at, length, sum);
        break;
      case 2:
        combine_first<T, op, 2>(from, at, length, sum);
        break;
      case 3:
        combine_first<T, op, 3>(from, at, length, sum);
        break;
      default:
        combine_first<T, op, 4>(from, at, length, sum);
        break;
    }
    for (int64_t k = 4; k < num_from; ++k) {
      const T* const next = static_cast<const T*>(from[k]) + at;
      for (int64_t i = 0; i < length; ++i) sum[i] = apply<op>(sum[i], Wide<T>::load(next[i]));
    }
    const void* result = sum;
    if constexpr (!std::is_same_v<A, T>) {
      for (int64_t i = 0; i < length; ++i) narrow[i] = Wide<T>::store(sum[i]);
      result = narrow;
    }
    for (int64_t k = 0; k < num_to; ++k) {
      std::memcpy(static_cast<T*>(to[k]) + at, result, static_cast<size_t>(length) * sizeof(T));
    }
  }
}

template <class T, ReduceOp op>
void combine_plain(const void* const* from, int64_t num_from, void* const* to, int64_t num_to,
                   int64_t count) {
  combine_blocks<T, op>(from, num_from, to, num_to, count);
}

#if defined(__x86_64__)
template <class T, ReduceOp op>
[[gnu::target("avx2")]] void combine_avx2(const void* const* from, int64_t num_from,
                                          void* const* to, int64_t num_to, int64_t count) {
  combine_blocks<T, op>(from, num_from, to, num_to, count);
}
bool has_avx2() { return __builtin_cpu_supports("avx2"); }
#else
template <class T, ReduceOp op>
void combine_avx2(const void* const* from, int64_t num_from, void* const* to, int64_t num_to,
                  int64_t count) {
  combine_plain<T, op>(from, num_from, to, num_to, count);
}
bool has_avx2() { return false; }
#endif

template <class T, ReduceOp op>
void combine_as(std::span<const void* const> sources, std::span<void* const> targets,
                int64_t count) {
  const auto from = sources.data();
  const auto to = targets.data();
  const auto num_from = static_cast<int64_t>(sources.size());
  const auto num_to = static_cast<int64_t>(targets.size());
  if (has_avx2()) {
    combine_avx2<T, op>(from, num_from, to, num_to, count);
  } else {
    combine_plain<T, op>(from, num_from, to, num_to, count);
  }
}

template <class T>
void combine_of(ReduceOp op, std::span<const void* const> sources, std::span<void* const> targets,
                int64_t count) {
  switch (op) {
    case ReduceOp::kSum:
      return combine_as<T, ReduceOp::kSum>(sources, targets, count);
    case ReduceOp::kMax:
      return combine_as<T, ReduceOp::kMax>(sources, targets, count);
    case ReduceOp::kMin:
      return combine_as<T, ReduceOp::kMin>(sources, targets, count);
  }
}

}  // namespace

float from_bf16(uint16_t bits) { return widen(Bf16{bits}); }

uint16_t to_bf16(float value) { return narrow_bf16(value).bits; }

float from_f16(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000) << 16;
  const uint32_t exponent = (bits >> 10) & 0x1f;
  const uint32_t fraction = bits & 0x3ff;
  if (exponent == 0) {  // zero or subnormal: fraction x 2^-24 is exact in f32
    const float magnitude = static_cast<float>(fraction) * 0x1p-24F;
    return std::bit_cast<float>(std::bit_cast<uint32_t>(magnitude) | sign);
  }
  const uint32_t wide = exponent == 31 ? 0xff : exponent + 112;
  return std::bit_cast<float>(sign | (wide << 23) | (fraction << 13));
}

uint16_t to_f16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 16) & 0x8000;
  const uint32_t magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return static_cast<uint16_t>(sign | 0x7e00);
  if (magnitude >= 0x477ff000) return static_cast<uint16_t>(sign | 0x7c00);  // 65520 and up
  if (magnitude < 0x38800000) {  // below 2^-14: adding 0.5 leaves the rounded multiple of 2^-24
    const float shifted = std::bit_cast<float>(magnitude) + 0.5F;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3f000000));
  }
  const uint32_t rounded = magnitude + 0xfff + ((magnitude >> 13) & 1) - (112U << 23);
  return static_cast<uint16_t>(sign | (rounded >> 13));
}

void combine(DType dtype, ReduceOp op, std::span<const void* const> sources,
             std::span<void* const> targets, int64_t count) {
  switch (dtype) {
    case DType::kF64:
      return combine_of<double>(op, sources, targets, count);
    case DType::kF32:
      return combine_of<float>(op, sources, targets, count);
    case DType::kBF16:
      return combine_of<Bf16>(op, sources, targets, count);
    case DType::kF16:
      return combine_of<F16>(op, sources, targets, count);
    case DType::kI64:
      return combine_of<int64_t>(op, sources, targets, count);
    case DType::kI32:
      return combine_of<int32_t>(op, sources, targets, count);
    case DType::kU8:
      return combine_of<uint8_t>(op, sources, targets, count);
  }
}

void accumulate(DType dtype, ReduceOp op, void* into, const void* from, int64_t count) {
  const std::array<const void*, 2> sources = {into, from};
  const std::array<void*, 1> targets = {into};
  combine(dtype, op, sources, targets, count);
}

}  // namespace kuafu
