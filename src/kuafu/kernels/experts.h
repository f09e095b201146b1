// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

// The CPU loops of expert_ops.h, without LibTorch. Pointers are to contiguous arrays.
namespace kuafu::kernels {

struct RouteShape {
  int64_t samples, tokens, experts, slots;  ///< B, S, E, C
  int64_t top_k, capacity;
};
/// Inputs and outputs by the names of ops::RouteOut; coin may be null.
template <class T>
struct RouteArrays {
  const T* logits;
  const double* coin;
  T *gates, *losses, *probs, *lse, *norm, *share;
  int64_t *token, *chosen, *counts;
};
template <class T>
void route(const RouteShape& n, const RouteArrays<T>& a);

struct SlotShape {
  int64_t samples, experts, slots;  ///< B, E, C of `rows`
  int64_t num_rows, hidden;         ///< R, H
};
/// Rows of `bytes` bytes each, zeros for empty slots.
void take_slots(const SlotShape& n, const int64_t* rows, const void* x, void* slots, int64_t bytes);
/// y (B, R, H), zeroed: adds slots, times their gates where those are not null.
template <class T>
void sum_slots(const SlotShape& n, const int64_t* rows, const T* slots, const T* gates, T* y);
template <class T>
struct CombineArrays {
  const T *dy, *slots, *gates;
  T *dslots, *dgates;
};
template <class T>
void combine_backward(const SlotShape& n, const int64_t* rows, const CombineArrays<T>& a);

}  // namespace kuafu::kernels
