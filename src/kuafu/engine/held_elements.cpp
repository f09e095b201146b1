// SPDX-License-Identifier: Apache-2.0
#include "kuafu/engine/held_elements.h"

#include <ATen/ATen.h>

#include "kuafu/base/errors.h"
#include "kuafu/checkpoint/boxes.h"

namespace kuafu {
namespace {

/// "m" of "blocks.0.norm1.weight.m"; the parameter's name may have dots, the state's own has none.
std::string own_name(const NamedTensor& state) {
  return state.name.substr(state.name.rfind('.') + 1);
}

/// For each state tensor the index of its shard among all shards, of which steps used a part.
std::vector<size_t> shards_of(const std::vector<ParamShard>& shards, const OptimizerState& state) {
  std::vector<size_t> found;
  size_t at = 0;
  for (size_t i = 0; i < state.tensors.size(); ++i) {
    const NamedTensor& t = state.tensors[i];
    const std::string param = t.name.substr(0, t.name.rfind('.'));
    if (i > 0 && t.shard != state.tensors[i - 1].shard) ++at;
    while (at < shards.size() && shards[at].param->name != param) ++at;
    KUAFU_CHECK(at < shards.size(), "the optimizer keeps ", t.name, ", which is no shard's");
    found.push_back(at);
  }
  return found;
}

}  // namespace

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
    all.push_back({shards[i].param->name, shards[i].value, i});
  }
  const std::vector<size_t> owners = shards_of(shards, state);
  for (size_t i = 0; i < owners.size(); ++i) {
    const std::string& param = shards[owners[i]].param->name;
    const std::string own = own_name(state.tensors[i]);
    if (own == "master") {
      all[owners[i]].tensor = state.tensors[i].tensor;
    } else {
      all.push_back({text(kind, ".", own, ".", param), state.tensors[i].tensor, owners[i]});
    }
  }
  return all;
}

bool has_state(const Checkpoint& from, const std::string& kind, const std::string& param) {
  const std::string first = kind + ".", last = "." + param;
  for (auto at = from.tensors().lower_bound(first); at != from.tensors().end(); ++at) {
    const std::string& name = at->first;
    if (name.compare(0, first.size(), first) != 0) return false;
    const size_t dot = name.find('.', first.size());
    if (dot != std::string::npos && name.compare(dot, std::string::npos, last) == 0) return true;
  }
  return false;
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
