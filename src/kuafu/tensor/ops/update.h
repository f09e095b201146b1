// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <type_traits>

#include "kuafu/base/errors.h"
#include "kuafu/kernels/updates.h"
#include "kuafu/tensor/tensor.h"

// What ops that update values share. Internal to tensor/.
namespace kuafu {

inline void check_dense(const Tensor& t) {
  KUAFU_CHECK(t.is_contiguous(), "updated in place: strides ", to_string(t.strides().vec()));
}

/// Calls f(gradients) with a pointer to elements that an update of `value` reads: f32 for f32 (bf16
/// and f16 as their bits), f64 for f64.
template <class T, class F>
void with_gradients(const Tensor& value, const Tensor& grad, F f) {
  if constexpr (std::is_same_v<T, float>) {
    if (grad.scalar_type() == at::kBFloat16 || grad.scalar_type() == at::kHalf) {
      const Tensor g = grad.contiguous();
      const void* bits = g.const_data_ptr();
      if (grad.scalar_type() == at::kHalf) return f(static_cast<const kernels::F16*>(bits));
      return f(static_cast<const kernels::BF16*>(bits));
    }
  }
  const Tensor g = grad.to(value.scalar_type()).contiguous();
  f(g.const_data_ptr<T>());
}

/// A gradient as a kernel of a card reads it beside `value`: half precision stays as it is for f32.
inline Tensor grad_for_card(const Tensor& value, const Tensor& grad) {
  const bool is_half = grad.scalar_type() == at::kBFloat16 || grad.scalar_type() == at::kHalf;
  const bool stays = value.scalar_type() == at::kFloat && is_half;
  return stays ? grad.contiguous() : grad.to(value.scalar_type()).contiguous();
}

/// Throws where an op may not update `value` in place.
inline void check_update(const Tensor& value, const Tensor& grad, const Tensor& state) {
  KUAFU_CHECK(value.sizes() == grad.sizes() && value.sizes() == state.sizes() &&
                  value.scalar_type() == state.scalar_type(),
              "an update of ", to_string(shape_of(value)), " by ", to_string(shape_of(grad)),
              " with state ", to_string(shape_of(state)));
  KUAFU_CHECK(value.scalar_type() == at::kFloat || value.scalar_type() == at::kDouble,
              "values are updated in f32 or f64, got ", value.scalar_type());
}

/// Whether an own loop, a kernel of a card, or what a meta device has instead, updates it; else the
/// formula of its rule does.
bool has_loop(const Tensor& value);

}  // namespace kuafu
