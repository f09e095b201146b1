// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "kuafu/mesh/mesh.h"
#include "kuafu/parallel/data/interface.h"

// Flat buffers: what is reduced, gathered and sharded as one. Internal to parallel/data.
namespace kuafu {

/// A parameter's place in a flat buffer, in elements.
struct FlatSlot {
  Param* param = nullptr;
  int64_t offset = 0, extent = 0;
};

/// Parameters of one group and one type whose gradients are summed over the same axes, end to end
/// in one flat buffer, which `parts` replicas share equally:
///
///   | weight ............ | bias .. - | scale .. - - |     - padding
///   | part 0       | part 1       | part 2           |     may begin anywhere in a parameter
///
/// Padding is zero, and takes part in every sum and gather.
struct FlatBucket {
  Axes scheme_axes;  ///< of a scheme's own (norms, biases), in mesh order: summed first
  Axes replicas;     ///< summed last: "data", or for experts what of it does not shard them
  int64_t parts = 1, part = 0;
  std::vector<FlatSlot> slots = {};

  int64_t elements() const { return parts * part; }
};

/// How buckets are cut.
struct FlatRules {
  int64_t bucket_bytes = 0;  ///< a parameter that does not fit has a bucket of its own
  /// Parameters start at multiples of 64 bytes, as tensors of their own would, and the buffer
  /// divides by its replicas. Without: end to end, in one part.
  bool is_sharded = false;
  /// Parameters with buckets of their own: what another group uses too.
  std::vector<const Param*> apart = {};
};

/// Every parameter of the group in one bucket, in the group's order.
std::vector<FlatBucket> make_buckets(const Group& group, const Mesh& mesh, const FlatRules& rules);

/// What a part of a buffer has of a parameter, in elements of the buffer.
struct Overlap {
  int64_t begin = 0, length = 0;
};
/// Of [first, first + extent); nothing begins at `first`.
Overlap overlap(const FlatSlot& slot, int64_t first, int64_t extent);

/// Where in the parameter the parts of a buffer begin that end at `ends`, in order, and the last one
/// ends: ParamShard::bounds.
std::vector<int64_t> bounds_in(const FlatSlot& slot, const std::vector<int64_t>& ends);

/// The parameter's part of a flat buffer, in its shape; shares the buffer's storage.
Tensor in_shape(const FlatSlot& slot, const Tensor& flat);

/// Moves gradients into one flat buffer (elements()) of the caller's category, zero where there is
/// none, and leaves every .grad undefined. Sets used[i] where slot i had one.
Tensor take_gradients(const FlatBucket& bucket, std::vector<bool>& used);

/// Shows the watch, if there is one, what `flat` holds before it is summed over the replicas.
void show_own(LayerWatch* watch, const FlatBucket& bucket, const Tensor& flat, const Mesh& mesh);

/// Throws InternalError where an unused parameter has a gradient after all: replicas run the same
/// program, so a parameter is used on all of them or on none. `sum` are elements of that parameter.
void check_unused(const Param& p, const Tensor& sum);

}  // namespace kuafu
