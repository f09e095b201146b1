// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "kuafu/parallel/tensor/layers.h"
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

}  // namespace

Tensor embedding(const Mesh& mesh, const Tensor& ids, const Tensor& table,
                 const Layout& table_layout, const TokenGrid& grid) {
  Axes vocabulary = table_layout.dims[0];
  const std::string gathered = gathered_axis(mesh, vocabulary, grid, table.size(0));
  if (!gathered.empty()) vocabulary.pop_back();
  const Axes batch_axes = common(grid.activation.dims[0], vocabulary);
  const Axes sequence_axes = common(grid.activation.dims[1], vocabulary);
  Axes replicated;
  for (const std::string& axis : vocabulary) {
    if (!contains(batch_axes, axis) && !contains(sequence_axes, axis)) replicated.push_back(axis);
  }
  const Tensor mine = local_tokens(mesh, ids, without(grid, vocabulary));
  const int64_t size = table.size(0) * mesh.size(gathered);
  const int64_t first = mesh.coord(vocabulary) * size;

  const Forward forward = [&](const Tensors& in) -> ForwardResult {
    Tensor rows = in[0];
    if (!gathered.empty()) rows = raw::all_gather(rows, mesh.comm(gathered), 0);
    Tensor y = ops::embedding(mine, rows, first);
    rows = Tensor();  // the gathered table is gone before the sums
    for (const std::string& axis : batch_axes) y = raw::reduce_scatter(y, mesh.comm(axis), 0);
    for (const std::string& axis : sequence_axes) y = raw::reduce_scatter(y, mesh.comm(axis), 1);
    for (const std::string& axis : replicated) {
      raw::all_reduce(y, mesh.comm(axis), ReduceOp::kSum);
    }
    return {{y}, {}};
  };
  const Backward backward = [&mesh, batch_axes, sequence_axes, gathered, mine, first, size](
                                const Tensors&, const Tensors& grads,
                                const std::vector<bool>&) -> Tensors {
    Tensor dy = grads[0].contiguous();
    for (size_t i = sequence_axes.size(); i-- > 0;) {
      dy = raw::all_gather(dy, mesh.comm(sequence_axes[i]), 1);
    }
    for (size_t i = batch_axes.size(); i-- > 0;) {
      dy = raw::all_gather(dy, mesh.comm(batch_axes[i]), 0);
    }
    const Tensor drows = ops::embedding_backward(dy, mine, first, size);
    return {gathered.empty() ? drows : raw::reduce_scatter(drows, mesh.comm(gathered), 0)};
  };
  return differentiable({table}, forward, backward)[0];
}

}  // namespace kuafu
