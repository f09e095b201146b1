// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "kuafu/model/context.h"

namespace kuafu {

class KeyValueCache;

/// Columns [first, first + |values|) of the logits of one sample, of `width` with padding.
struct LogitRow {
  int64_t sample = 0;  ///< of the batch
  int64_t first = 0, width = 0;
  Tensor values;  // (V/axes)
};

/// A forward for its logits, without a loss: what is wanted, and what this rank has of it.
struct Inference {
  std::vector<int64_t> positions;  ///< of each sample of the batch, the one whose logits are wanted
  std::vector<LogitRow> rows = {};
  KeyValueCache* cache = nullptr;  ///< null: whole sequences go forward
  /// Where it is set, the last block is not computed: what it would take is given to this instead.
  std::function<void(const ModelBlock& last, const Flow& in, const Side& side)> take_last_input =
      {};
};

/// The rows of x (B, S, H), laid out as the outer stream, whose logits are wanted, (B, 1, H): the head need
/// not multiply the others. x itself where ranks share the positions of a sequence in either stream.
Tensor wanted_rows(const Context& context, const Tensor& x, const Side& side);

/// Keeps the rows of `logits` that are wanted in side.inference. logits (B, S, V) laid out as `grid`
/// says, or (B, 1, V) of wanted_rows().
void keep_logits(const Mesh& mesh, const Tensor& logits, const TokenGrid& grid, const Side& side);

}  // namespace kuafu
