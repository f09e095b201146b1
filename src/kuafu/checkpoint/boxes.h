// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "kuafu/mesh/layout.h"

namespace kuafu {

// Boxes inside global tensors: what layouts cut, what flat shards are made of, and copies between
// two that meet. Pure arithmetic.

/// Product of the extents; 1 of no dims.
int64_t volume(const Shape& extent);

/// True where some extent is 0 or less.
bool is_empty(const Slice& box);

/// The common part of two boxes of one tensor; empty where they do not meet.
Slice overlap(const Slice& a, const Slice& b);

/// The elements [begin, end) of a tensor in row-major order as boxes, in that order: at most
/// 2 dims - 1 of them, each a run of memory by itself. A flat shard of ZeRO is such a run.
///
///   boxes_of_run({4, 3}, 2, 10)      . . 0     row 0, column 2
///                                    1 1 1     rows 1 and 2
///                                    1 1 1
///                                    2 . .     row 3, column 0
std::vector<Slice> boxes_of_run(const Shape& extent, int64_t begin, int64_t end);

/// Copies the part of box `from` that lies in box `to`, element by element rows of `size` bytes.
/// Both are contiguous in their own extents.
void copy_overlap(const Slice& from, const void* source, const Slice& to, void* target,
                  int64_t size);

}  // namespace kuafu
