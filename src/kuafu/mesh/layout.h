// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kuafu/mesh/mesh.h"

namespace kuafu {

/// Extents of a tensor, outermost dim first.
using Shape = std::vector<int64_t>;

/// "(2, 3, 4)"
std::string to_string(const Shape& shape);

/// For each tensor dim, the mesh axes that shard it, major first. Printed (B/dep.row, S, H/col).
/// A rank on an axis not named anywhere holds a replica.
struct Layout {
  std::vector<Axes> dims;
  bool operator==(const Layout&) const = default;

  /// Nothing sharded.
  static Layout replicated(size_t num_dims) { return {std::vector<Axes>(num_dims)}; }
  /// Every axis that shards some dim, in dim order.
  Axes all_axes() const;
};

/// "(B/dep.row, S, H/col)" with the letters given, one a dim.
std::string to_string(const Layout& layout, std::string_view letters);

/// A box inside a global tensor.
struct Slice {
  Shape offset;
  Shape extent;
  bool operator==(const Slice&) const = default;
};

/// Extents of my shard. Throws NotDivisible{dim, extent, axes}; `what` names the tensor.
Shape local_shape(const Layout& layout, const Shape& global, const Mesh& mesh,
                  std::string_view what = "tensor");

/// Offsets and extents of my shard. Same errors as local_shape.
Slice my_slice(const Layout& layout, const Shape& global, const Mesh& mesh,
               std::string_view what = "tensor");

/// Axes a parameter's gradient is partial over: exactly those that shard the tokens (dims 0 and 1)
/// of the activation it meets, but not the parameter itself.
Axes grad_axes(const Layout& activation, const Layout& param);

/// The smallest multiple of the ranks sharding a dim that is not below `extent`.
int64_t padded(int64_t extent, const Axes& axes, const Mesh& mesh);

}  // namespace kuafu
