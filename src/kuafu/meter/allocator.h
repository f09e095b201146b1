// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include "kuafu/meter/book.h"

namespace kuafu {

/// Replaces LibTorch's CPU and meta allocators by ones that book every allocation with the rank and
/// category of the allocating thread. Called first thing in main, once; idempotent.
void install_allocators();

/// The same for CUDA, over LibTorch's caching allocator. @pre LibTorch's CUDA libraries are loaded.
void install_cuda_allocator();

/// Books a tensor's storage under another category (a fresh gradient, an op's output).
/// No effect on storages that were not allocated through install_allocators().
void recategorise(const at::Tensor& t, Category to);

/// Frees a tensor's storage or allocates it anew (contents undefined), keeping every view of it;
/// works on every device, unlike resize_. The shard store of ZeRO and of memory tiers.
void free_storage(const at::Tensor& t);
void allocate_storage(const at::Tensor& t, int64_t bytes);

/// When the tensor's storage is freed, its pages leave the process. No effect but in an arena.
void let_pages_leave(const at::Tensor& t);

}  // namespace kuafu
