// SPDX-License-Identifier: Apache-2.0
#include "tests/engine/kept.h"

#include <algorithm>
#include <cctype>
#include <set>
#include <utility>
#include <vector>

#include "kuafu/base/suggest.h"
#include "kuafu/engine/placing/placement.h"
#include "kuafu/engine/stepping/stage_map.h"
#include "kuafu/plan/arrange.h"

namespace kuafu::tests {
namespace {

using Kept = std::map<std::string, std::string>;

std::string words_of(const std::set<std::string>& all) {
  return join(std::vector<std::string>(all.begin(), all.end()));
}

/// Scheme of a layer and what its MLP is: "2.5d x 2 mixture".
std::string kind_of_layer(const Plan& plan, int64_t layer) {
  std::string mode = plan.parallel.tensor.mode;
  int64_t depth = plan.parallel.tensor.depth;
  for (const LayerPlan& range : plan.parallel.layers) {
    if (layer < range.from || layer > range.to) continue;
    mode = range.mode;
    depth = range.depth;
  }
  if (mode == "2.5d" && depth == 1) mode = "2d";  // its other name (plan/modes.cpp)
  const bool is_mixture = plan.model.kind == "moe_gpt" && (layer + 1) % plan.model.moe_every == 0;
  return text(mode, " x ", depth, is_mixture ? " mixture" : " dense");
}

/// Kinds of layers, and which follows which.
void tell_layers(const Plan& plan, Kept& kept) {
  std::set<std::string> kinds, neighbours;
  std::string last = "embedding";
  for (int64_t layer = 0; layer < plan.model.layers; ++layer) {
    const std::string kind = kind_of_layer(plan, layer);
    kinds.insert(kind);
    neighbours.insert(text(last, " - ", kind));
    last = kind;
  }
  neighbours.insert(last + " - head");
  kept["kinds of layers"] = words_of(kinds);
  kept["neighbours"] = words_of(neighbours);
}

void tell_model(const Plan& plan, Kept& kept) {
  const ModelPlan& m = plan.model;
  kept["model"] = text(m.kind, " ", to_string(m.dtype), " ", m.positions, " ", m.mlp, " ", m.norm,
                       m.bias ? " bias" : "", m.parallel_blocks ? " parallel" : "",
                       m.dropout > 0 ? " dropout" : "", m.tied ? "" : " untied",
                       m.post_norm ? " norms behind" : "",
                       m.embedding > 0 && m.embedding != m.hidden ? " projected" : "");
  kept["attention"] = text(m.heads, " heads, ", m.num_kv_heads(), " of keys, recompute ",
                           static_cast<int>(plan.memory.recompute),
                           plan.data.document_mask ? ", inside documents" : "");
  if (m.kind != "moe_gpt") return;
  kept["experts"] = text(m.experts, " by ", m.router, m.router == "topk" ? m.top_k : 0,
                         m.random_second ? " by chance" : "", ", ", m.shared_experts, " shared");
}

void tell_memory(const Plan& plan, Kept& kept) {
  const MemoryPlan& m = plan.memory;
  kept["memory"] =
      text(m.policy, ", prefetch ", m.prefetch, ", share ", m.static_share, ", margin ", m.margin,
           " in a ", m.horizon, m.has_disk() ? ", slots on a disk" : "",
           m.has_gradients_on_disk() ? ", gradients too" : "",
           m.has_activations_away() ? ", activations on the host" : "");
  const TrainPlan& t = plan.train;
  kept["loss scale"] =
      text(t.loss_scale, " from ", t.loss_scale_start, ", ", t.loss_scale_interval);
}

void tell_axes(const Plan& plan, const Registries& registries, Kept& kept) {
  const ParallelPlan& p = plan.parallel;
  std::vector<Axis> axes = {{"data", p.data.size},
                            {"expert", p.expert},
                            {"pipeline", p.pipeline.size},
                            {"sequence", p.sequence.size}};
  for (const Axis& axis : tensor_axes(plan, registries.tensor_modes())) axes.push_back(axis);
  for (const Axis& axis : axes) {
    if (axis.size > 1) kept["axis " + axis.name] = text(axis.size);
  }
  kept["sequence"] = p.sequence.mode;
}

void tell_replicas(const Plan& plan, Kept& kept) {
  const DataParallelPlan& d = plan.parallel.data;
  const OptimizerPlan& o = plan.optimizer;
  kept["replicas"] = text(d.mode, ", ", d.servers, " servers, staleness ", d.staleness, ", order ",
                          d.order, d.overlap ? ", overlap" : "", ", zero ", plan.parallel.zero);
  kept["optimizer"] =
      text(o.kind, o.kind == "sgd" && o.momentum > 0 ? ", momentum" : "",
           o.clip > 0 ? ", clip" : "", o.warmup > 0 ? ", warm-up, " : ", ", o.schedule);
}

/// Schedule, how micro-batches fill it, and whether stages are alike.
void tell_schedule(const Plan& plan, const Registries& registries, size_t blocks, Kept& kept) {
  const PipelinePlan& p = plan.parallel.pipeline;
  const int64_t all = plan.train.batch / plan.parallel.data.size / plan.train.micro_batch;
  kept["accumulates"] = all > 1 ? "yes" : "no";
  if (p.size == 1) return;
  kept["schedule"] = text(p.schedule, " x ", p.chunks);
  kept["micro-batches"] = all < p.size    ? "fewer than ranks"
                          : all == p.size ? "as many as ranks"
                                          : text("more, the last round has ", all % p.size);
  const StageMap map = map_stages(plan, registries, blocks, 0);
  std::set<size_t> lengths;
  for (size_t s = 0; s + 1 < map.first_block.size(); ++s) {
    lengths.insert(map.first_block[s + 1] - map.first_block[s]);
  }
  kept["stages"] = lengths.size() == 1 ? "of one length" : "of several lengths";
  kept["first and last block"] = map.rank_of(0) == map.rank_of(blocks - 1) ? "together" : "apart";
}

/// Whether ranks have equal parts of a sequence; in zig-zag order, equal early and late ones.
void tell_parts(const Plan& plan, Kept& kept) {
  const auto& [mode, size] = plan.parallel.sequence;
  if (size == 1) return;
  kept["parts of a sequence"] = plan.model.sequence % size == 0 ? "equal" : "unequal";
  if (mode != "ring-zigzag") return;
  kept["early and late"] = plan.model.sequence % (2 * size) == 0 ? "equal" : "unequal";
}

/// The name without the number of its layer.
std::string name_of(const Param& p) {
  std::string out;
  for (const char c : p.name) {
    if (std::isdigit(static_cast<unsigned char>(c)) == 0) out += c;
  }
  return out;
}

/// How rows of a table whose vocabulary several axes shard come to the tokens: the innermost axis
/// gathers them where it shards tokens too and that receives no more rows than sums of what was looked
/// up. `tokens`: samples, positions.
void tell_table(const Plan& plan, const Model& model, const Mesh& mesh, const Layout& tokens,
                Kept& kept) {
  kept["way of the table"] = "its rows are summed";
  if (plan.model.input() == ModelInput::kImages) return;
  for (const auto& block : model.blocks) {
    for (const Param* p : block->params()) {
      if (p->global.size() != 2 || p->global[0] != plan.model.vocab) continue;
      const Axes& vocabulary = p->layout.dims[0];
      if (vocabulary.size() < 2) continue;
      const auto shards = [](const Axes& axes, const std::string& axis) {
        return std::find(axes.begin(), axes.end(), axis) != axes.end();
      };
      int64_t looked_up = 1;
      bool is_token_axis = false;
      for (size_t dim = 0; dim < 2; ++dim) {
        int64_t parts = 1;
        for (const std::string& axis : tokens.dims[dim]) {
          if (!shards(vocabulary, axis)) parts *= mesh.size(axis);
          is_token_axis = is_token_axis || axis == vocabulary.back();
        }
        const int64_t all = dim == 0 ? plan.train.micro_batch : plan.model.sequence;
        looked_up *= (all + parts - 1) / parts;
      }
      const int64_t ranks = mesh.size(vocabulary.back());
      const int64_t rows = p->padded[0] / mesh.size(vocabulary);
      const bool is_less = (ranks - 1) * rows <= looked_up - looked_up / ranks;
      if (ranks > 1 && is_token_axis && is_less) kept["way of the table"] = "gathered";
    }
  }
}

/// Parameters that ranks do not divide, and whether a block's gradients of one sum are more bytes
/// than a bucket.
void tell_parameters(const Plan& plan, const Model& model, const Mesh& mesh, Kept& kept) {
  std::set<std::string> padded;
  bool has_several = false;
  for (const auto& block : model.blocks) {
    struct Sum {
      int64_t count = 0, bytes = 0;
    };
    std::map<std::string, Sum> sums;  // by type and the axes that gradients are summed over
    for (const Param* p : block->params()) {
      if (p->padded != p->global) padded.insert(name_of(*p));
      std::set<std::string> axes;
      for (const std::string& axis : p->grad_axes) {
        if (mesh.size(axis) > 1) axes.insert(axis);
      }
      for (const Axes& of_dim : p->layout.dims) {
        for (const std::string& axis : of_dim) {
          if (axis == "expert" && mesh.size(axis) > 1) axes.insert("but for expert");
        }
      }
      axes.insert(c10::toString(p->value.scalar_type()));
      Sum& sum = sums[words_of(axes)];
      ++sum.count;
      sum.bytes += p->value.numel() * static_cast<int64_t>(p->value.element_size());
    }
    const bool is_plain = plan.memory.policy == "plain";
    const int64_t most = is_plain ? plan.parallel.data.bucket : plan.memory.chunk_size;
    for (const auto& [axes, sum] : sums) {
      has_several = has_several || (sum.count > 1 && sum.bytes > most);
    }
  }
  kept["padded"] = words_of(padded);
  kept["buckets of a block and sum"] = has_several ? "several" : "one";
}

}  // namespace

Kept kept_of(const Plan& plan, const Registries& registries) {
  Placement placement(plan, registries, 0, at::kMeta);
  const Model model = placement.make_model();
  Kept kept;
  tell_model(plan, kept);
  tell_layers(plan, kept);
  tell_memory(plan, kept);
  tell_axes(plan, registries, kept);
  tell_replicas(plan, kept);
  tell_schedule(plan, registries, model.blocks.size(), kept);
  tell_parts(plan, kept);
  tell_parameters(plan, model, placement.mesh(), kept);
  tell_table(plan, model, placement.mesh(), placement.context().activation(Stream::kOuter), kept);
  return kept;
}

}  // namespace kuafu::tests
