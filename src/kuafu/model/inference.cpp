// SPDX-License-Identifier: Apache-2.0
#include "kuafu/model/inference.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "kuafu/model/key_value_cache.h"

namespace kuafu {

void keep_logits(const Mesh& mesh, const Tensor& logits, const TokenGrid& grid, const Side& side) {
  Inference& inference = *side.inference;
  const Axes& axes = grid.activation.dims[2];
  const int64_t columns = logits.size(2), width = columns * mesh.size(axes);
  const std::vector<int64_t> mine = local_positions(mesh, grid);
  const int64_t first_sample = side.first_sample + local_slice(mesh, grid).offset[0];
  const bool is_one_each = is_behind_cache(side);  // the token given is the one
  for (int64_t b = 0; b < logits.size(0); ++b) {
    const int64_t sample = first_sample + b;
    const int64_t wanted = is_one_each ? 0 : inference.positions.at(static_cast<size_t>(sample));
    const auto found = std::find(mine.begin(), mine.end(), wanted);
    if (found == mine.end()) continue;  // another rank of the sequence has it
    inference.rows.push_back(
        {sample, mesh.coord(axes) * columns, width, logits[b][found - mine.begin()].clone()});
  }
}

}  // namespace kuafu
