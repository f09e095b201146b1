// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/impl/VirtualGuardImpl.h>

#include "kuafu/base/errors.h"
#include "kuafu/base/kernel_choice.h"
#include "kuafu/kernels/card.h"
#include "kuafu/tensor/tensor.h"

// How ops start the kernels of kernels/card.h. Internal to tensor/.
namespace kuafu {

/// Whether ops on t have kernels of their own: t is on a card, and KUAFU_KERNELS asks for no twins.
inline bool has_card_kernel(const Tensor& t) {
  static const bool is_own = kernel_choice() == KernelChoice::kOwn && kernels::card::is_built();
  return t.is_cuda() && is_own;
}

inline kernels::card::Element kind_of(const Tensor& t) {
  switch (dtype_of(t)) {
    case DType::kF64:
      return kernels::card::Element::kF64;
    case DType::kF32:
      return kernels::card::Element::kF32;
    case DType::kBF16:
      return kernels::card::Element::kBF16;
    default:
      KUAFU_CHECK(t.scalar_type() == at::kHalf, "no kernel of a card for ", t.scalar_type());
      return kernels::card::Element::kF16;
  }
}

/// The cudaStream_t that t's ops run on.
inline void* card_stream_of(const Tensor& t) {
  return c10::impl::VirtualGuardImpl(at::kCUDA).getStream(t.device()).native_handle();
}

/// t's rows along its last dim. @pre contiguous
inline kernels::card::RowMatrix matrix_of(const Tensor& t) {
  return {kind_of(t), t.numel() / t.size(-1), t.size(-1)};
}

inline void check_started(int code, const char* what) {
  if (code != 0) throw Error(text(what, " could not be started on the card: CUDA error ", code));
}

}  // namespace kuafu
