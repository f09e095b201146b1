// SPDX-License-Identifier: Apache-2.0
#include "kuafu/mesh/layout.h"

#include <algorithm>

#include "kuafu/base/errors.h"
#include "kuafu/mesh/parts.h"

namespace kuafu {
namespace {

bool contains(const Axes& axes, const std::string& name) {
  return std::find(axes.begin(), axes.end(), name) != axes.end();
}

/// True where the axis "sequence" alone shards a dim: then its parts may differ by one.
bool may_be_uneven(const Axes& axes, const Mesh& mesh) {
  return contains(axes, "sequence") && mesh.size(axes) == mesh.size("sequence");
}

}  // namespace

std::string to_string(const Shape& shape) {
  std::string out = "(";
  for (size_t i = 0; i < shape.size(); ++i) out += text(i == 0 ? "" : ", ", shape[i]);
  return out + ")";
}

Axes Layout::all_axes() const {
  Axes all;
  for (const Axes& axes : dims) all.insert(all.end(), axes.begin(), axes.end());
  return all;
}

std::string to_string(const Layout& layout, std::string_view letters) {
  KUAFU_CHECK(letters.size() == layout.dims.size(), letters, " for ", layout.dims.size(), " dims");
  std::string out = "(";
  for (size_t i = 0; i < layout.dims.size(); ++i) {
    if (i > 0) out += ", ";
    out += letters[i];
    if (!layout.dims[i].empty()) out += "/" + to_string(layout.dims[i]);
  }
  return out + ")";
}

Shape local_shape(const Layout& layout, const Shape& global, const Mesh& mesh,
                  std::string_view what) {
  return my_slice(layout, global, mesh, what).extent;
}

Slice my_slice(const Layout& layout, const Shape& global, const Mesh& mesh, std::string_view what) {
  KUAFU_CHECK(layout.dims.size() == global.size(), what, ": layout of ", layout.dims.size(),
              " dims for shape ", to_string(global));
  Slice slice;
  for (size_t d = 0; d < global.size(); ++d) {
    const Axes& axes = layout.dims[d];
    const int64_t parts = mesh.size(axes);
    if (global[d] % parts != 0 && !may_be_uneven(axes, mesh)) {
      const int64_t below = global[d] / parts * parts;
      throw NotDivisible(text(what, ": dim ", d, " of ", to_string(global), " has extent ",
                              global[d], ", which the ", parts, " ranks of ", to_string(axes),
                              " do not divide; nearest that do: ",
                              below > 0 ? text(below, " and ") : "", below + parts),
                         text(d), global[d], to_string(axes));
    }
    const Part mine = nth_part(global[d], parts, mesh.coord(axes));
    slice.extent.push_back(mine.extent);
    slice.offset.push_back(mine.offset);
  }
  return slice;
}

Axes grad_axes(const Layout& activation, const Layout& param) {
  const Axes own = param.all_axes();
  Axes partial;
  for (size_t d = 0; d < 2 && d < activation.dims.size(); ++d) {
    for (const std::string& axis : activation.dims[d]) {
      if (!contains(own, axis) && !contains(partial, axis)) partial.push_back(axis);
    }
  }
  return partial;
}

int64_t padded(int64_t extent, const Axes& axes, const Mesh& mesh) {
  const int64_t parts = mesh.size(axes);
  return (extent + parts - 1) / parts * parts;
}

}  // namespace kuafu
