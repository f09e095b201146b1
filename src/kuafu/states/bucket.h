// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "kuafu/mesh/mesh.h"
#include "kuafu/states/piece.h"

// Flat buffers: what is reduced, gathered and sharded as one.
namespace kuafu {

bool contains(const Axes& axes, const std::string& name);

/// A parameter's place in a flat buffer, in elements.
struct FlatSlot {
  Param* param = nullptr;
  int64_t offset = 0, extent = 0;
};

/// Elements [begin, end) of a flat buffer.
struct FlatPart {
  int64_t begin = 0, end = 0;
  int64_t size() const { return end - begin; }
};

/// Parameters of one group and one type whose gradients are summed over the same axes, end to end
/// in one flat buffer, which replicas may share:
///
///   | weight ............ | bias .. - | scale .. - - |     - padding
///   | part 0       | part 1       | part 2           |     may begin anywhere in a parameter
///
/// Padding is zero, and takes part in every sum and gather.
struct FlatBucket {
  Axes scheme_axes;  ///< of a scheme's own (norms, biases), in mesh order: summed first
  Axes replicas;     ///< summed last: "data", or for experts what of it does not shard them
  std::vector<FlatSlot> slots = {};
  std::vector<int64_t> ends = {};  ///< of the replicas' parts; one of all elements: of nobody's
  int64_t me = 0;                  ///< whose part is mine
  int tag = 0;                     ///< no other bucket of a store has it

  int64_t elements() const { return ends.back(); }
  bool is_split() const { return ends.size() > 1; }
  FlatPart part(int64_t replica) const {
    const auto r = static_cast<size_t>(replica);
    return {r == 0 ? 0 : ends[r - 1], ends[r]};
  }
  FlatPart mine() const { return part(me); }
  at::TensorOptions options() const;  ///< of a flat buffer of its values
};

/// How buckets are cut.
struct FlatRules {
  int64_t bucket_bytes = 0;  ///< a parameter that does not fit has a bucket of its own
  /// Replicas have equal parts: the buffer divides by them, and parameters start at multiples of
  /// 64 bytes, as tensors of their own would. Without: end to end.
  bool is_sharded = false;
  /// Parameters start at multiples of 64 bytes though nothing is sharded.
  bool is_aligned = false;
  /// The first replicas have parts that differ by one element at most, others none; 0: nobody has.
  int64_t servers = 0;
};

/// Every parameter of the group in one bucket, in the group's order.
std::vector<FlatBucket> make_buckets(const Group& group, const Mesh& mesh, const FlatRules& rules);

/// A part of a bucket's flat buffer; shares its storage.
Tensor in_part(const Tensor& flat, const FlatPart& part);

/// What of a parameter lies in a part; where nothing does, empty at its begin.
FlatPart overlap(const FlatPart& part, const FlatSlot& slot);

/// Where in the parameter the parts of a buffer begin that end at `ends`, in order, and the last
/// one ends: ParamShard::bounds.
std::vector<int64_t> bounds_in(const FlatSlot& slot, const std::vector<int64_t>& ends);

/// The parameter's part of a flat buffer, in its shape; shares the buffer's storage.
Tensor in_shape(const FlatSlot& slot, const Tensor& flat);

/// The elements of the parameter itself that lie in `piece`, which it overlaps; shares its storage.
Tensor value_in(const FlatSlot& slot, const FlatPart& piece);

/// Copies the values of the parameters that lie in `part` into the bucket's flat buffer.
void take_values(const FlatBucket& bucket, const Tensor& flat, const FlatPart& part);
/// Copies them back.
void give_values(const FlatBucket& bucket, const Tensor& flat, const FlatPart& part);

/// Moves gradients into one flat buffer (elements()) of the caller's category, zero where there is
/// none, and leaves every .grad undefined. Sets used[i] where slot i had one.
Tensor take_gradients(const FlatBucket& bucket, std::vector<bool>& used);

/// Throws InternalError where an unused parameter has a gradient after all: replicas run the same
/// program, so a parameter is used on all of them or on none. `sum` are elements of that parameter.
void check_unused(const Param& p, const Tensor& sum);

}  // namespace kuafu
