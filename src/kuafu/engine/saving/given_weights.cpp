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

/// Whole tensors, of which the last one read is kept: parts of it may follow.
class Whole {
 public:
  explicit Whole(const NamedWeights& from) : from_(from) {
    for (const TensorBytes& t : from.tensors) by_name_[t.name] = &t;
  }

  bool has(const Param& param) const { return std::ranges::count(from_.absent, param.name) == 0; }

  Tensor operator()(const Param& param) {
    const auto found = by_name_.find(param.name);
    KUAFU_REQUIRE(found != by_name_.end() && found->second->shape == param.global, from_.path,
                  " has no tensor ", param.name, " of ", to_string(param.global));
    if (found->second != last_) {
      last_ = nullptr;
      bytes_ = {};
      bytes_ = from_.read(param.name);
      last_ = found->second;
    }
    return at::from_blob(bytes_.data(), param.global, scalar_type(last_->dtype));
  }

 private:
  const NamedWeights& from_;
  std::map<std::string, const TensorBytes*> by_name_;
  const TensorBytes* last_ = nullptr;
  std::vector<char> bytes_;
};

void fill_part(const Tensor& piece, const HeldElements& held, const Tensor& whole) {
  for (size_t b = 0; b < held.boxes.size(); ++b) {
    if (is_empty(held.inside[b])) continue;
    Tensor part = whole;
    for (size_t d = 0; d < held.inside[b].extent.size(); ++d) {
      part =
          part.narrow(static_cast<int64_t>(d), held.inside[b].offset[d], held.inside[b].extent[d]);
    }
    box_of(piece, held, b).copy_(part);
  }
}

void load(const NamedWeights& weights, Engine& engine) {
  const CategoryScope scope(Category::kTemporary);
  const at::NoGradGuard no_grad;
  Whole whole(weights);
  const std::vector<ParamShard> shards = engine.shards();
  for (const ParamShard& s : shards) {
    if (!whole.has(*s.param)) continue;
    fill_part(s.value, held_by(s, engine.mesh()), whole(*s.param));
  }
  engine.optimizer().begin(shards, 0);
  const OptimizerState state = engine.optimizer().state();
  // Of half precision, whose masters are finer than what they are masters of.
  for (const SavedTensor& t : saved_tensors(shards, state, engine.plan().optimizer.kind)) {
    if (t.slot != "master" || !whole.has(*shards[t.shard].param)) continue;
    engine.optimizer().bring(t.shard, RuleSlots::Use::kChange);
    fill_part(t.tensor, held_by(shards[t.shard], engine.mesh()), whole(*shards[t.shard].param));
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
