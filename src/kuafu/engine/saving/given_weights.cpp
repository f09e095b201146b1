// SPDX-License-Identifier: Apache-2.0
#include "kuafu/engine/saving/given_weights.h"

#include <algorithm>
#include <map>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "kuafu/base/errors.h"
#include "kuafu/checkpoint/boxes.h"
#include "kuafu/comm/gather.h"
#include "kuafu/engine/saving/held_elements.h"
#include "kuafu/meter/book.h"

namespace kuafu {
namespace {

/// Where the tensors of a model's parameters come from.
class Source {
 public:
  explicit Source(const NamedWeights& from) : from_(from) {
    for (const TensorBytes& t : from.tensors) by_name_[t.name] = &t;
  }

  bool has(const Param& param) const { return std::ranges::count(from_.absent, param.name) == 0; }

  /// Says what is read, for room that all of it shares: memory that is new is slower than the disk.
  void expect(const std::vector<ParamShard>& shards, const Mesh& mesh) {
    int64_t most = 0;
    for (const ParamShard& s : shards) {
      const auto found = by_name_.find(s.param->name);
      const Slice around = box_around(held_by(s, mesh).inside);
      if (found == by_name_.end() || around.extent.empty()) continue;
      most = std::max(most, volume(around.extent) * size_of(found->second->dtype));
    }
    most_ = static_cast<size_t>(most);
  }

  void free() { buffer_ = {}; }

  /// The elements that `held` says, into the piece that has them.
  void fill(const Tensor& piece, const HeldElements& held) {
    const Param& param = *held.param;
    const auto found = by_name_.find(param.name);
    KUAFU_REQUIRE(found != by_name_.end() && found->second->shape == param.global, from_.path,
                  " has no tensor ", param.name, " of ", to_string(param.global));
    const Slice around = box_around(held.inside);
    if (around.extent.size() != param.global.size()) return;  // padding alone
    const DType type = found->second->dtype;
    const Tensor first = box_of(piece, held, 0);
    const bool lies_alike = held.boxes.size() == 1 && first.is_cpu() && first.is_contiguous() &&
                            first.scalar_type() == scalar_type(type);
    if (lies_alike) {
      from_.read(param.name, around, static_cast<char*>(first.mutable_data_ptr()));
      return;
    }
    const auto bytes = static_cast<size_t>(volume(around.extent) * size_of(type));
    if (buffer_.empty()) buffer_.resize(most_);
    KUAFU_CHECK(bytes <= most_, param.name, " of ", bytes, " bytes, room for ", most_);
    from_.read(param.name, around, buffer_.data());
    const Tensor read = at::from_blob(buffer_.data(), around.extent, scalar_type(type));
    for (size_t b = 0; b < held.boxes.size(); ++b) {
      if (is_empty(held.inside[b])) continue;
      Tensor part = read;
      for (size_t d = 0; d < around.extent.size(); ++d) {
        part = part.narrow(static_cast<int64_t>(d), held.inside[b].offset[d] - around.offset[d],
                           held.inside[b].extent[d]);
      }
      box_of(piece, held, b).copy_(part);
    }
    if (read.element_size() > piece.element_size()) require_in_range(param, piece);
  }

 private:
  /// What is read is finite, and may be beyond the range of a narrower type.
  void require_in_range(const Param& param, const Tensor& piece) const {
    if (piece.is_meta() || at::isfinite(piece).all().item<bool>()) return;
    throw ConfigError(text(from_.path, ": tensor ", param.name,
                           " has elements beyond the range of ", to_string(dtype_of(piece)),
                           "; allowed: up to ", piece.scalar_type() == at::kHalf ? 65504.0 : 3.4e38,
                           " of either sign; nearest: model.dtype = bf16, or f32"));
  }

  /// The least box that has all that are not empty: a run of elements is read once.
  static Slice box_around(const std::vector<Slice>& boxes) {
    Slice all;
    for (const Slice& box : boxes) {
      if (is_empty(box)) continue;
      if (all.offset.empty()) all = box;
      for (size_t d = 0; d < box.offset.size(); ++d) {
        const int64_t end = std::max(all.offset[d] + all.extent[d], box.offset[d] + box.extent[d]);
        all.offset[d] = std::min(all.offset[d], box.offset[d]);
        all.extent[d] = end - all.offset[d];
      }
    }
    return all;
  }

  const NamedWeights& from_;
  std::map<std::string, const TensorBytes*> by_name_;
  size_t most_ = 0;
  std::vector<char> buffer_;
};

void load(const NamedWeights& weights, Engine& engine) {
  const CategoryScope scope(Category::kTemporary);
  const at::NoGradGuard no_grad;
  Source source(weights);
  const std::vector<ParamShard> shards = engine.shards();
  source.expect(shards, engine.mesh());
  for (const ParamShard& s : shards) {
    if (!source.has(*s.param)) continue;
    engine.bring_value(*s.param);
    source.fill(s.value, held_by(s, engine.mesh()));
  }
  source.free();
  if (!engine.trains()) return;
  engine.optimizer().begin(shards, 0);
  const OptimizerState state = engine.optimizer().state();
  // Of half precision, whose masters are finer than what they are masters of.
  for (const SavedTensor& t : saved_tensors(shards, state, engine.plan().optimizer.kind)) {
    if (t.slot != "master" || !source.has(*shards[t.shard].param)) continue;
    engine.optimizer().bring(t.shard, RuleSlots::Use::kChange);
    source.fill(t.tensor, held_by(shards[t.shard], engine.mesh()));
  }
  engine.optimizer().rest();
}

}  // namespace

void begin_with(const NamedWeights& weights, Engine& engine, Communicator& world) {
  std::string why;
  try {
    load(weights, engine);
  } catch (const ConfigError& e) {
    why = e.what();
  }
  for (const std::string& words : gather_texts(world, why)) {
    if (!words.empty()) throw ConfigError(words);
  }
  engine.go_on_from(0);
}

}  // namespace kuafu
