// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <limits>
#include <map>

#include "kuafu/engine/placing/placement.h"
#include "kuafu/engine/proof/miniature.h"
#include "kuafu/engine/stepping/stage_map.h"
#include "kuafu/parallel/tensor/embedding.h"
#include "kuafu/plan/kind_names.h"
#include "kuafu/states/bucket.h"

namespace kuafu {
namespace {

/// The parameters of a block, how they lie and along what their gradients are summed: blocks of one
/// kind run the same code.
std::string kind_of(ModelBlock& block) {
  std::string kind;
  for (const Param* p : block.params()) {
    const bool is_own = p->name.starts_with(block.name() + ".");
    kind += is_own ? p->name.substr(block.name().size()) : p->name;
    for (const Axes& axes : p->layout.dims) kind += "/" + to_string(axes);
    kind += "+" + to_string(p->grad_axes) + " ";
  }
  return kind;
}

void add_blocks(Features& f, Model& model) {
  std::string last;
  for (const auto& block : model.blocks) {
    const std::string kind = kind_of(*block);
    if (std::find(f.blocks.begin(), f.blocks.end(), kind) == f.blocks.end()) {
      f.blocks.push_back(kind);
    }
    f.neighbours.insert({last, kind});
    last = kind;
  }
  f.neighbours.insert({last, ""});
}

PipelineLoad micro_batches_of(const Plan& plan) {
  const int64_t all = plan.num_micro_batches(), ranks = plan.parallel.pipeline.size;
  PipelineLoad m{.compared = all < ranks ? -1 : all > ranks ? 1 : 0, .is_one = all == 1};
  if (m.compared > 0) m.rest = all % ranks;
  return m;
}

bool has_ties(const Model& model, const StageMap& map) {
  std::map<const Param*, int> owner;
  for (size_t b = 0; b < model.blocks.size(); ++b) {
    for (const Param* p : model.blocks[b]->params()) owner[p] = map.rank_of(b);
  }
  for (size_t b = 0; b < model.blocks.size(); ++b) {
    for (const Param* p : model.blocks[b]->borrowed()) {
      if (owner.at(p) != map.rank_of(b)) return true;
    }
  }
  return false;
}

void add_stages(Features& f, const Model& model, const StageMap& map) {
  f.has_ties_between_stages = has_ties(model, map);
  const std::vector<size_t>& first = map.first_block;
  for (size_t s = 1; s + 1 < first.size(); ++s) {
    const bool is_same = first[s + 1] - first[s] == first[1] - first[0];
    f.has_uneven_stages = f.has_uneven_stages || !is_same;
  }
}

void add_parameters(Features& f, const Plan& plan, Model& model, const Context& context) {
  const TokenGrid grid{context.activation(Stream::kOuter), plan.train.micro_batch,
                       plan.model.sequence};
  for (const auto& block : model.blocks) {
    for (const Param* p : block->params()) {
      f.has_padded_parameters = f.has_padded_parameters || p->padded != p->global;
      const bool is_table = p->global.size() == 2 && p->global[0] == plan.model.vocab;
      if (!is_table || plan.model.input() == ModelInput::kImages) continue;
      f.is_table_gathered =
          f.is_table_gathered || is_table_gathered(context.mesh, p->global, p->layout, grid);
    }
  }
}

/// The values of a plan without its sizes.
Plan without_sizes(Plan plan) {
  ModelPlan& m = plan.model;
  m.layers = m.hidden = m.sequence = m.vocab = m.image = m.patch = m.classes = 1;
  m.ffn = m.ffn == 0 ? 0 : 1;
  m.embedding = m.embedding == 0 ? 0 : 1;
  m.moe_every = std::min<int64_t>(m.moe_every, 2);
  plan.parallel.layers.clear();
  plan.parallel.pipeline.blocks.clear();
  plan.parallel.data.bucket = plan.memory.chunk_size = 1;
  plan.train.batch = plan.train.micro_batch = 1;
  return plan;
}

/// Bytes of parameters whose gradients are summed as one, at most.
int64_t& bucket_bytes(Plan& plan) {
  return plan.memory.has_tiers() ? plan.memory.chunk_size : plan.parallel.data.bucket;
}

/// True where gradients of one block that are summed alike are cut into several buckets.
bool has_several_buckets(Model& model, const Mesh& mesh, int64_t bucket) {
  const auto count = [&](ModelBlock& block, int64_t bytes) {
    return make_buckets({block.name(), block.params()}, mesh, {.bucket_bytes = bytes}).size();
  };
  return std::any_of(model.blocks.begin(), model.blocks.end(), [&](const auto& block) {
    return count(*block, bucket) > count(*block, std::numeric_limits<int64_t>::max());
  });
}

}  // namespace

Features features_of(const Plan& plan, const Registries& registries) {
  Plan same = plan;
  return features_with_buckets(same, registries, false);
}

Features features_with_buckets(Plan& plan, const Registries& registries, bool wants_several) {
  Placement placement(plan, registries, 0, at::kMeta);
  Model model = placement.make_model();
  const StageMap map = map_stages(plan, registries, model.blocks.size(), 0);
  Features f;
  f.axes = placement.mesh().axes();
  add_blocks(f, model);
  f.micro_batches = micro_batches_of(plan);
  add_stages(f, model, map);
  const auto& [mode, size] = plan.parallel.sequence;
  f.has_uneven_sequence = plan.model.sequence % size != 0;
  f.has_uneven_chunks =
      mode == sequence_modes::kRingZigzag && plan.model.sequence % (2 * size) != 0;
  add_parameters(f, plan, model, placement.context());
  int64_t& bucket = bucket_bytes(plan);
  while (wants_several && bucket > 1 && !has_several_buckets(model, placement.mesh(), bucket)) {
    bucket /= 2;
  }
  f.has_several_buckets = has_several_buckets(model, placement.mesh(), bucket);
  f.values = without_sizes(plan);
  return f;
}

}  // namespace kuafu
