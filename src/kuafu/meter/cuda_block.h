// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>

namespace kuafu {

/// A block on a card: whose it is, and what LibTorch's allocator gave.
struct CudaBlock {
  void* booking;  ///< of book_block()
  c10::DataPtr data;
};

/// Books bytes with the rank and category of this thread, as blocks of the CPU are; throws
/// OutOfMemory where the budget refuses.
void* book_block(size_t bytes);
void unbook_block(void* booking);

/// The deleter of every CudaBlock.
void free_cuda_block(void* context);

}  // namespace kuafu
