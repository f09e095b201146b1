// SPDX-License-Identifier: Apache-2.0
//
// A vocabulary-parallel embedding: rows of a sharded table for tokens that may be sharded by the
// same axes.
//
// Picture (3D, q = 2): rank (x, y, z) has rows y.x of the table and wants tokens x.y.
//
//   table (V/y.x, H/z)  --gather over x-->  (V/y, H/z)
//   tokens of x (B/x, S): look up, rows of others are 0  (B/x, S, H/z)  --sum over y-->  (B/x.y, S,
//   H/z)
//
// Math, E the table, 1[t, v] = 1 where token t is v; [.]_a gathers over a, (sum_a .)_a sums over a
// and keeps my part of the tokens:
//   (1) Y  = (sum_y 1 [E]_x)_y
//   (2) dE = (sum_x 1^T [dY]_y)_x        parts of the rows
//   Without the gather all of the vocabulary's axes sum: Y = (sum_y (sum_x 1 E)_x)_y,
//   dE = 1^T [[dY]_y]_x.
//
// Cost, elements received per rank of a cube of q, T = B S tokens, in each direction:
//   gathered over x, summed over y   (q-1) (T + V) H / q^3      as P^(-2/3)
//   summed over x and y              (q^2-1) T H / q^3          as P^(-1/3)
//   The first is no more where V <= q T; so it is taken as ranks grow, whatever the vocabulary.
//   An axis that shards rows and not the tokens (1D) all-reduces forward, and nothing backward.

#include "kuafu/parallel/tensor/embedding.h"

#include <algorithm>
#include <utility>
#include <vector>

#include <ATen/ATen.h>

#include "kuafu/parallel/tensor/products.h"
#include "kuafu/tensor/collectives.h"
#include "kuafu/tensor/differentiable.h"
#include "kuafu/tensor/ops.h"

namespace kuafu {
namespace {

bool contains(const Axes& axes, const std::string& name) {
  return std::find(axes.begin(), axes.end(), name) != axes.end();
}

/// Axes of `axes` in which the vocabulary is sharded too, in order.
Axes common(const Axes& axes, const Axes& vocabulary) {
  Axes both;
  for (const std::string& axis : axes) {
    if (contains(vocabulary, axis)) both.push_back(axis);
  }
  return both;
}

/// The grid of the tokens that this rank looks up: `axes` do not shard them.
TokenGrid without(TokenGrid grid, const Axes& axes) {
  for (Axes& sharding : grid.activation.dims) {
    std::erase_if(sharding, [&](const std::string& axis) { return contains(axes, axis); });
  }
  return grid;
}

int64_t num_tokens(const Mesh& mesh, const TokenGrid& grid) {
  const Slice s = local_slice(mesh, grid);
  return s.extent[0] * s.extent[1];
}

/// The ids of my tokens and of those that differ from them in the coordinates of `summed` alone. In
/// each dim they stand in the order of these coordinates, the outer axis first, so that a
/// reduce-scatter over one axis after the other leaves every rank its own tokens, and gathers in
/// reverse bring them back. Axes that are not summed may stand outside, between and inside:
///   S/t0.t1 on 2 x 2 of 8 places, summed over t0: ranks of t1 = 0 look up places 0 1 4 5.
Tensor ids_to_look_up(const Mesh& mesh, const Tensor& ids, const TokenGrid& grid,
                      const Axes& summed) {
  const Slice own = local_slice(mesh, grid);
  Tensor wanted = ids;
  std::vector<int64_t> split, extents;  // (B, S) as coordinates of axes and what lies inside them
  std::vector<std::pair<size_t, int64_t>> mine;  // which of those dims are one coordinate: mine
  for (size_t d = 0; d < 2; ++d) {
    const Axes& axes = grid.activation.dims[d];
    extents.push_back(own.extent[d] * mesh.size(common(axes, summed)));
    if (mesh.size(common(axes, summed)) == 1) {  // parts may be uneven
      wanted = wanted.narrow(static_cast<int64_t>(d), own.offset[d], own.extent[d]);
      split.push_back(own.extent[d]);
      continue;
    }
    for (const std::string& axis : axes) {
      if (!contains(summed, axis)) mine.emplace_back(split.size(), mesh.coord(axis));
      split.push_back(mesh.size(axis));
    }
    split.push_back(own.extent[d]);
  }
  wanted = wanted.view(split);
  for (size_t i = mine.size(); i-- > 0;) {
    wanted = wanted.select(static_cast<int64_t>(mine[i].first), mine[i].second);
  }
  return wanted.reshape(extents).contiguous();
}

/// The axis over which a table of so many local `rows` is gathered; none: "". Only the innermost
/// one may be, since its ranks hold rows side by side, and only if others still shard the table.
/// A gather over p ranks receives (p-1) rows; looking up n tokens for all of them and keeping 1/p
/// of the sums n - n/p. Rows are as wide in both, and as many go back: the smaller number wins.
std::string gathered_axis(const Mesh& mesh, const Axes& vocabulary, const TokenGrid& grid,
                          int64_t rows) {
  if (vocabulary.size() < 2) return {};
  const std::string& axis = vocabulary.back();
  if (common(grid.activation.all_axes(), {axis}).empty()) return {};
  const int64_t p = mesh.size(axis), tokens = num_tokens(mesh, without(grid, vocabulary));
  return p > 1 && (p - 1) * rows <= tokens - tokens / p ? axis : std::string();
}

/// How rows come to the tokens.
struct Route {
  std::string gathered = {};  ///< the table is gathered over this axis first; none: ""
  Axes vocabulary = {};       ///< axes that shard the table then
  /// Of those: what shards samples, positions, no tokens.
  Axes samples = {}, positions = {}, copies = {};
};

Route route_of(const Mesh& mesh, const Axes& vocabulary, const TokenGrid& grid, int64_t rows) {
  Route r{.gathered = gathered_axis(mesh, vocabulary, grid, rows), .vocabulary = vocabulary};
  if (!r.gathered.empty()) r.vocabulary.pop_back();
  r.samples = common(grid.activation.dims[0], r.vocabulary);
  r.positions = common(grid.activation.dims[1], r.vocabulary);
  for (const std::string& axis : r.vocabulary) {
    if (!contains(r.samples, axis) && !contains(r.positions, axis)) r.copies.push_back(axis);
  }
  return r;
}

}  // namespace

Tensor embedding(const Mesh& mesh, const Tensor& ids, const Tensor& table,
                 const Layout& table_layout, const TokenGrid& grid) {
  const Route route = route_of(mesh, table_layout.dims[0], grid, table.size(0));
  const Axes summed = common(grid.activation.all_axes(), route.vocabulary);
  const Tensor mine =
      summed.empty() ? local_tokens(mesh, ids, grid) : ids_to_look_up(mesh, ids, grid, summed);
  const int64_t size = table.size(0) * mesh.size(route.gathered);
  const int64_t first = mesh.coord(route.vocabulary) * size;

  const Forward forward = [&](const Tensors& in) -> ForwardResult {  // (1)
    Tensor rows = in[0];
    if (!route.gathered.empty()) rows = raw::all_gather(rows, mesh.comm(route.gathered), 0);
    Tensor y = ops::embedding(mine, rows, first);
    rows = Tensor();  // the gathered table is gone before the sums
    for (const std::string& axis : route.samples) y = raw::reduce_scatter(y, mesh.comm(axis), 0);
    for (const std::string& axis : route.positions) y = raw::reduce_scatter(y, mesh.comm(axis), 1);
    for (const std::string& axis : route.copies) y = raw::all_reduce(y, mesh.comm(axis));
    return {{y}, {}};
  };
  const Backward backward = [&mesh, route, mine, first, size](
                                const Tensors&, const Tensors& grads,
                                const std::vector<bool>&) -> Tensors {  // (2)
    Tensor dy = grads[0].contiguous();
    for (size_t i = route.positions.size(); i-- > 0;) {
      dy = raw::all_gather(dy, mesh.comm(route.positions[i]), 1);
    }
    for (size_t i = route.samples.size(); i-- > 0;) {
      dy = raw::all_gather(dy, mesh.comm(route.samples[i]), 0);
    }
    const Tensor rows = ops::embedding_backward(dy, mine, first, size);
    if (route.gathered.empty()) return {rows};
    return {raw::reduce_scatter(rows, mesh.comm(route.gathered), 0)};
  };
  return differentiable({table}, forward, backward)[0];
}

Cost embedding_cost(const Mesh& mesh, const Shape& table, const Layout& table_layout,
                    const TokenGrid& grid) {
  const Axes& vocabulary = table_layout.dims[0];
  const int64_t rows = padded(table[0], vocabulary, mesh) / mesh.size(vocabulary);
  const int64_t width = local_shape(Layout{{table_layout.dims[1]}}, {table[1]}, mesh, "table")[0];
  const Route route = route_of(mesh, vocabulary, grid, rows);
  const int64_t mine = num_tokens(mesh, grid);
  const int64_t others = num_tokens(mesh, without(grid, route.vocabulary)) - mine;
  const int64_t each = ((mesh.size(route.gathered) - 1) * rows + others) * width;
  int64_t copied = 0;
  for (const std::string& axis : route.copies) copied += all_reduced(mesh, axis, mine * width);
  return {.forward = each + copied, .backward = each, .weight_grad = each};
}

bool is_table_gathered(const Mesh& mesh, const Shape& table, const Layout& table_layout,
                       const TokenGrid& grid) {
  const Axes& vocabulary = table_layout.dims[0];
  const int64_t rows = padded(table[0], vocabulary, mesh) / mesh.size(vocabulary);
  return !gathered_axis(mesh, vocabulary, grid, rows).empty();
}

}  // namespace kuafu
