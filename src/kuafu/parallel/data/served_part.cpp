// SPDX-License-Identifier: Apache-2.0
#include "kuafu/parallel/data/served_part.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <limits>

#include "kuafu/base/errors.h"

namespace kuafu {

FlatBucket whole_model(const std::vector<Param*>& params, const Mesh& mesh) {
  Group all{"model", {}};
  for (Param* p : params) {
    const bool is_known = std::find(all.params.begin(), all.params.end(), p) != all.params.end();
    if (!is_known) all.params.push_back(p);
  }
  std::vector<FlatBucket> buckets =
      make_buckets(all, mesh, {.bucket_bytes = std::numeric_limits<int64_t>::max()});
  KUAFU_CHECK(buckets.size() == 1, "parameters of ", buckets.size(), " kinds");
  return std::move(buckets[0]);
}

Tensor in_part(const Tensor& flat, const ServedPart& part) {
  return flat.narrow(0, part.begin, part.size());
}

Tensor value_in(const FlatSlot& slot, const ServedPart& piece) {
  const Tensor whole = slot.param->value.detach().view({-1});
  return whole.narrow(0, piece.begin - slot.offset, piece.size());
}

void take_values(const FlatBucket& bucket, const Tensor& flat, const ServedPart& part) {
  const at::NoGradGuard no_grad;
  for (const FlatSlot& slot : bucket.slots) {
    const ServedPart piece = overlap(part, slot);
    if (piece.size() > 0) in_part(flat, piece).copy_(value_in(slot, piece));
  }
}

void give_values(const FlatBucket& bucket, const Tensor& flat, const ServedPart& part) {
  const at::NoGradGuard no_grad;
  for (const FlatSlot& slot : bucket.slots) {
    const ServedPart piece = overlap(part, slot);
    if (piece.size() > 0) value_in(slot, piece).copy_(in_part(flat, piece));
  }
}

}  // namespace kuafu
