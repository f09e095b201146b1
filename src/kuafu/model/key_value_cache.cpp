// SPDX-License-Identifier: Apache-2.0
#include "kuafu/model/key_value_cache.h"

#include <ATen/ATen.h>

#include "kuafu/base/errors.h"
#include "kuafu/model/inference.h"

namespace kuafu {

int64_t KeyValueCache::bytes() const {
  int64_t sum = 0;
  for (const auto& [place, kept] : all_) {
    sum += static_cast<int64_t>(kept.keys.nbytes() + kept.values.nbytes());
  }
  return sum;
}

Tensor KeyValueCache::attend_first(const AttentionParallel& attention, Kept& kept,
                                   const Tensors& qkv) const {
  const Tensor& k = qkv[1];
  for (const auto& [to, from] : {std::pair{&kept.keys, &k}, {&kept.values, &qkv[2]}}) {
    *to = at::empty({k.size(0), k.size(1), capacity_, k.size(3)}, k.options());
    to->narrow(2, 0, k.size(2)).copy_(*from);
  }
  if (home_) kept.number = home_->add({kept.keys, kept.values});
  return attention.attend(qkv[0], k, qkv[2], Mask::kCausal);
}

Tensor KeyValueCache::attend(const AttentionParallel& attention, const CacheKey& place,
                             const Tensors& qkv, const std::vector<int64_t>& positions) {
  Kept& kept = all_[place];
  if (!is_filled_) return attend_first(attention, kept, qkv);
  KUAFU_CHECK(kept.keys.defined() && qkv[0].size(2) == 1 && std::ssize(positions) == qkv[0].size(0),
              "a query of ", qkv[0].size(2), " positions behind a cache");
  if (home_) home_->bring(kept.number);
  // Filled part by part, whatever the parts are: one of all samples needs the most memory.
  const Tensor out = at::empty(qkv[0].sizes(), qkv[0].options());
  for (int64_t b = 0, end = 0; b < std::ssize(positions); b = end) {
    // Samples beside each other with as many keys attend together.
    const int64_t position = positions[static_cast<size_t>(b)];
    while (end < std::ssize(positions) && positions[static_cast<size_t>(end)] == position) ++end;
    const auto samples = [&](const Tensor& t) { return t.narrow(0, b, end - b); };
    const Tensor keys = samples(kept.keys), values = samples(kept.values);
    keys.narrow(2, position, 1).copy_(samples(qkv[1]));
    values.narrow(2, position, 1).copy_(samples(qkv[2]));
    // The newest of all sees every other: nothing is masked.
    samples(out).copy_(attention.attend(samples(qkv[0]), keys.narrow(2, 0, position + 1),
                                        values.narrow(2, 0, position + 1), Mask::kNone));
  }
  if (home_) home_->leave(kept.number, {qkv[1], qkv[2]}, positions);
  return out;
}

bool is_behind_cache(const Side& side) {
  const Inference* inference = side.inference;
  return inference != nullptr && inference->cache != nullptr && inference->cache->is_filled();
}

std::vector<int64_t> positions_behind_cache(const Mesh& mesh, const TokenGrid& grid,
                                            const Side& side) {
  const Slice mine = local_slice(mesh, grid);
  const auto first = side.inference->positions.begin() + side.first_sample + mine.offset[0];
  return {first, first + mine.extent[0]};
}

Tensor add_positions_behind_cache(const Tensor& x, const Tensor& table,
                                  const std::vector<int64_t>& positions, int64_t first) {
  Tensors rows;
  for (const int64_t position : positions) rows.push_back(table.narrow(0, first + position, 1));
  return x + at::stack(rows);
}

}  // namespace kuafu
