// SPDX-License-Identifier: Apache-2.0
#include "kuafu/model/inference.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "kuafu/base/errors.h"
#include "kuafu/model/key_value_cache.h"

namespace kuafu {

namespace {

bool has_whole_sequences(const Context& context) {
  for (const Stream stream : {Stream::kOuter, Stream::kInner}) {
    if (context.mesh.size(context.activation(stream).dims[1]) > 1) return false;
  }
  return true;
}

/// A loss would refuse other shapes; without one a plug-in's block that loses tokens would go unseen.
void require_tokens(const Mesh& mesh, const Tensor& x, const TokenGrid& grid, const Side& side) {
  const int64_t b = local_slice(mesh, grid).extent[0];
  const int64_t s = is_behind_cache(side) ? 1 : std::ssize(local_positions(mesh, grid));
  KUAFU_CHECK(x.dim() == 3 && x.size(0) == b && x.size(1) == s, "tokens of shape ",
              to_string(shape_of(x)), "; allowed: (", b, ", ", s, ", hidden), all tokens of ", b,
              " samples");
}

}  // namespace

Tensor wanted_rows(const Context& context, const Tensor& x, const Side& side) {
  const TokenGrid grid = side.grid(context.activation(Stream::kOuter));
  require_tokens(context.mesh, x, grid, side);
  if (!has_whole_sequences(context) || x.size(1) == 1) return x;
  const int64_t first = side.first_sample + local_slice(context.mesh, grid).offset[0];
  Tensors rows;
  for (int64_t b = 0; b < x.size(0); ++b) {
    rows.push_back(x[b].narrow(0, side.inference->positions.at(static_cast<size_t>(first + b)), 1));
  }
  return at::stack(rows);
}

void keep_logits(const Mesh& mesh, const Tensor& logits, const TokenGrid& grid, const Side& side) {
  Inference& inference = *side.inference;
  const Axes& axes = grid.activation.dims[2];
  const int64_t columns = logits.size(2), width = columns * mesh.size(axes);
  const std::vector<int64_t> mine = local_positions(mesh, grid);
  const int64_t first_sample = side.first_sample + local_slice(mesh, grid).offset[0];
  // The token given is the one, or the row was taken before.
  const bool is_one_each = is_behind_cache(side) || logits.size(1) < std::ssize(mine);
  for (int64_t b = 0; b < logits.size(0); ++b) {
    const int64_t sample = first_sample + b;
    const int64_t wanted = is_one_each ? 0 : inference.positions.at(static_cast<size_t>(sample));
    const auto found = is_one_each ? mine.begin() : std::find(mine.begin(), mine.end(), wanted);
    if (found == mine.end()) continue;  // another rank of the sequence has it
    inference.rows.push_back(
        {sample, mesh.coord(axes) * columns, width, logits[b][found - mine.begin()].clone()});
  }
}

}  // namespace kuafu
