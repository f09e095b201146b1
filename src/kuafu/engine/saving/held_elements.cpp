// SPDX-License-Identifier: Apache-2.0
#include "kuafu/engine/saving/held_elements.h"

#include <ATen/ATen.h>

#include "kuafu/base/errors.h"
#include "kuafu/checkpoint/boxes.h"

namespace kuafu {

std::string HeldElements::key() const {
  std::string key = param->name;
  for (const Slice& s : inside) key += text(" ", to_string(s.offset), to_string(s.extent));
  return key;
}

HeldElements held_by(const ParamShard& shard, const Mesh& mesh) {
  HeldElements held;
  held.param = shard.param;
  const Slice mine = my_slice(shard.param->layout, shard.param->padded, mesh, shard.param->name);
  const int64_t first = shard.first_element, elements = shard.value.numel();
  KUAFU_CHECK(first + elements <= volume(mine.extent), shard.param->name, ": elements ", first,
              " to ", first + elements, " of a shard of ", volume(mine.extent));
  const Slice whole = {Shape(mine.extent.size(), 0), shard.param->global};
  for (Slice& box : boxes_of_run(mine.extent, first, first + elements)) {
    for (size_t d = 0; d < box.offset.size(); ++d) box.offset[d] += mine.offset[d];
    held.inside.push_back(overlap(box, whole));
    held.boxes.push_back(std::move(box));
  }
  return held;
}

Tensor box_of(const Tensor& piece, const HeldElements& held, size_t b) {
  int64_t first = 0;
  for (size_t i = 0; i < b; ++i) first += volume(held.boxes[i].extent);
  const Slice& box = held.boxes[b];
  Tensor t = piece.detach().view(-1).narrow(0, first, volume(box.extent)).view(box.extent);
  for (size_t d = 0; d < box.extent.size(); ++d) {
    const int64_t extent = std::max<int64_t>(held.inside[b].extent[d], 0);
    t = t.narrow(static_cast<int64_t>(d), 0, extent);
  }
  return t;
}

std::vector<SavedTensor> saved_tensors(const std::vector<ParamShard>& shards,
                                       const OptimizerState& state, const std::string& kind) {
  std::vector<SavedTensor> all;
  for (size_t i = 0; i < shards.size(); ++i) {
    all.push_back({shards[i].param->name, shards[i].value, i, ""});
  }
  for (const SlotTensor& t : state.tensors) {
    if (t.slot == "master") {
      all[t.shard].tensor = t.tensor;
      all[t.shard].slot = t.slot;
    } else {
      all.push_back({text(kind, ".", t.slot, ".", t.param), t.tensor, t.shard, t.slot});
    }
  }
  return all;
}

void fill(const Tensor& piece, const HeldElements& held, const Checkpoint& from,
          const std::string& name) {
  const auto saved = from.tensors().find(name);
  KUAFU_REQUIRE(saved != from.tensors().end(), "the checkpoint has no tensor ", name);
  KUAFU_REQUIRE(saved->second.global == held.param->global, name, " has the shape ",
                to_string(saved->second.global), " in the checkpoint, ",
                to_string(held.param->global), " in the plan");
  for (size_t b = 0; b < held.boxes.size(); ++b) {
    if (is_empty(held.inside[b])) continue;
    const Tensor read = at::empty(held.inside[b].extent, scalar_type(saved->second.dtype));
    from.read(name, held.inside[b], read.mutable_data_ptr());
    box_of(piece, held, b).copy_(read);
  }
}

}  // namespace kuafu
