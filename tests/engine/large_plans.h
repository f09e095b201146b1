// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <random>
#include <string>

#include "kuafu/engine/placing/placement.h"
#include "tests/support/plans.h"

namespace kuafu::tests {

/// Draws plans of models that are far larger than what a test can train, of every model, scheme,
/// schedule, way to agree, memory policy but "optimal", loss scale and optimizer; most can be placed.
class LargePlans {
 public:
  explicit LargePlans(uint64_t seed) : engine_(seed), registries_(builtin_registries()) {}

  /// The next that can be placed.
  Plan next() {
    for (;;) {
      try {
        Plan plan = resolve(draw(), 0, registries_.tensor_modes());
        check_placement(plan, registries_);
        return plan;
      } catch (const ConfigError&) {  // Refused is one too: draw another
      }
    }
  }

 private:
  int64_t from(int64_t least, int64_t most) {
    return least + static_cast<int64_t>(engine_() % static_cast<uint64_t>(most - least + 1));
  }
  bool once_in(int64_t n) { return from(1, n) == 1; }
  template <class T>
  T one_of(std::initializer_list<T> choices) {
    return *(choices.begin() + from(0, static_cast<int64_t>(choices.size()) - 1));
  }

  void draw_model(ModelPlan& m) {
    m.kind = one_of<std::string>({"gpt", "bert", "vit", "moe_gpt", "opt"});
    m.layers = from(4, 24);
    m.heads = one_of<int64_t>({6, 8, 12, 16, 18, 24});
    m.hidden = m.heads * one_of<int64_t>({24, 32, 48, 64});
    if (m.kind == "vit") {
      m.patch = one_of<int64_t>({4, 8, 16});
      m.image = m.patch * from(4, 24);
      m.sequence = (m.image / m.patch) * (m.image / m.patch) + 1;
      m.classes = one_of<int64_t>({10, 1000, 1001});
    } else {
      m.vocab = one_of<int64_t>({4096, 8191, 16384, 32003, 50257});
      m.sequence = one_of<int64_t>({96, 192, 250, 256, 384, 512, 1024});
    }
    m.dtype = one_of({DType::kF64, DType::kF32, DType::kBF16, DType::kF16});
    if (once_in(3)) m.kv_heads = one_of<int64_t>({1, 2, m.heads / 2});
    if (once_in(3)) m.ffn = one_of<int64_t>({3 * m.hidden, 8 * m.hidden / 3, 5 * m.heads * 12});
    if (m.kind == "gpt" || m.kind == "moe_gpt") {
      m.positions = one_of<std::string>({"learned", "rotary"});
      m.mlp = one_of<std::string>({"gelu", "swiglu", "gelu_exact", "relu"});
      m.norm = one_of<std::string>({"layer", "rms"});
    }
    if (once_in(3)) m.dropout = 0.1;
    if (once_in(4)) m.bias = false;
    if (once_in(4)) m.parallel_blocks = true;
    if (m.kind == "opt") {
      if (once_in(2)) m.embedding = m.hidden / 2;
      m.post_norm = !m.parallel_blocks && once_in(2);
    }
    if (m.input() == ModelInput::kTokens && once_in(3)) m.tied = false;
    if (m.kind == "moe_gpt") draw_experts(m);
  }

  void draw_experts(ModelPlan& m) {
    m.experts = one_of<int64_t>({4, 8, 16});
    m.router = one_of<std::string>({"top1", "top2", "topk", "expert_choice"});
    if (m.router == "topk") m.top_k = from(1, 3);
    m.random_second = m.router == "top2" && once_in(3);
    m.moe_every = one_of<int64_t>({1, 2, 4});
    m.shared_experts = from(0, 1);
  }

  void draw_pipeline(PipelinePlan& p) {
    p.size = one_of<int64_t>({1, 1, 2, 3, 4});
    if (p.size == 1) return;
    p.schedule = one_of<std::string>({"gpipe", "1f1b", "interleaved", "zero_bubble", "zbv"});
    if (p.schedule == "zbv") p.chunks = 2;
    if (p.schedule == "interleaved") p.chunks = from(1, 3);
  }

  /// How replicas agree. Servers and named sums exclude ZeRO and a fixed order.
  void draw_replicas(Plan& plan) {
    ParallelPlan& p = plan.parallel;
    p.data.size = one_of<int64_t>({1, 2, 3, 4});
    p.data.mode = one_of<std::string>(
        {"auto", "auto", "auto", "ring", "tree", "hierarchical", "parameter_server"});
    p.data.bucket = int64_t{1} << from(16, 30);
    if (once_in(4)) p.data.overlap = false;
    if (p.data.mode == "auto") {
      p.zero = from(0, 3);
      if (once_in(4)) p.data.order = "fixed";
    }
    if (p.data.mode == "hierarchical") plan.cluster.ranks_per_node = from(2, 8);
    if (p.data.mode == "parameter_server") {
      p.data.servers = from(1, p.data.size);
      if (once_in(2)) p.data.staleness = from(1, 3);
    }
  }

  /// One or two ranges of layers of modes of their own, on ranks that more than one can arrange.
  void draw_layers(ParallelPlan& p, int64_t layers) {
    if (p.tensor.mode == "1d" || p.tensor.mode == "1d-sp") p.tensor.size = one_of({4, 8, 9});
    for (int64_t first = from(0, layers - 1), n = from(1, 2); n > 0 && first < layers; --n) {
      const int64_t last = from(first, layers - 1);
      const auto mode = one_of<std::string>({"1d", "1d-sp", "2d", "2.5d", "3d"});
      p.layers.push_back({first, last, mode, mode == "2.5d" ? from(1, 2) : 1});
      first = last + from(1, 3);
    }
  }

  void draw_parallel(Plan& plan) {
    ParallelPlan& p = plan.parallel;
    draw_replicas(plan);
    if (p.data.staleness > 0) {  // a worker is one rank, and clips nothing
      plan.optimizer.clip = 0;
      return;
    }
    draw_pipeline(p.pipeline);
    const int64_t q = from(2, 3);
    p.tensor = one_of<TensorPlan>({{"none", 1, 1},
                                   {"1d", from(2, 6), 1},
                                   {"1d-sp", from(2, 6), 1},
                                   {"2d", q * q, 1},
                                   {"2.5d", q * q * 2, 2},
                                   {"3d", q * q * q, 1}});
    if (p.tensor.mode != "none" && once_in(3)) draw_layers(p, plan.model.layers);
    if (once_in(3)) {
      p.sequence = {one_of<std::string>({"ring", "ring-zigzag", "ulysses", "all-gather"}),
                    from(2, 3)};
    }
  }

  void draw_optimizer(OptimizerPlan& o) {
    o.kind = one_of<std::string>({"adamw", "sgd", "adam", "lars", "lamb", "muon"});
    if (o.kind == "sgd") o.momentum = one_of({0.0, 0.9});
    o.clip = one_of({0.0, 1.0});
    if (once_in(3)) o.schedule = "cosine";
    if (once_in(3)) o.warmup = from(1, 5);
  }

  /// Chunks that leave the device between their uses, slots on a disk too.
  void draw_tiers(Plan& plan) {
    plan.parallel.data.bucket = DataParallelPlan{}.bucket;  // chunks are the buckets
    MemoryPlan& m = plan.memory;
    m.policy = one_of<std::string>({"host", "static", "lru", "belady", "auto"});
    m.device = int64_t{1} << from(36, 40);
    m.chunk_size = int64_t{1} << from(20, 28);
    if (once_in(2)) m.prefetch = from(0, 3);
    if (m.policy == "static" && once_in(2)) m.static_share = 0.5;
    if (m.policy == "auto" && once_in(2)) m.margin = 0.2;
    if (once_in(3)) m.disk_path = "/var/tmp";
    if (m.policy == "auto" && once_in(3)) m.horizon = "cycle";
    if (m.has_disk() && once_in(2)) m.gradients = "disk";
    if (m.recompute == Recompute::kFull && once_in(3)) m.activations = "host";
  }

  /// Of gradients in half precision and of others: none, one that stays, one that follows overflows.
  void draw_loss_scale(TrainPlan& t) {
    t.loss_scale = one_of({TrainPlan::kAutoScale, TrainPlan::kDynamicScale, 1.0, 1024.0});
    if (t.loss_scale != TrainPlan::kDynamicScale) return;
    t.loss_scale_start = one_of({256.0, 65536.0});
    t.loss_scale_interval = from(1, 2000);
  }

  Plan draw() {
    Plan plan;
    plan.data.kind = "synthetic";
    // Of a number that is drawn anyway: what seeds draw stays.
    plan.data.document_mask =
        plan.model.input() == ModelInput::kTokens && plan.model.layers % 4 == 1;
    draw_model(plan.model);
    draw_optimizer(plan.optimizer);
    draw_parallel(plan);
    if (plan.model.kind == "moe_gpt" && once_in(2)) plan.parallel.expert = plan.parallel.data.size;
    plan.memory.recompute = one_of({Recompute::kNone, Recompute::kSelective, Recompute::kFull});
    plan.train.micro_batch = one_of<int64_t>({2, 4, 6, 8, 18, 27, 36});
    plan.train.batch = plan.parallel.data.size * plan.train.micro_batch * from(1, 12);
    if (plan.parallel.pipeline.size > 1 && once_in(4)) draw_blocks(plan);
    if (once_in(3)) draw_loss_scale(plan.train);
    if (once_in(3)) draw_tiers(plan);
    return plan;
  }

  /// Stages by hand, the last with what the others leave.
  void draw_blocks(Plan& plan) {
    const int64_t stages = plan.parallel.pipeline.stages(), all = plan.model.layers + 2;
    if (stages > all) return;
    std::vector<int64_t> blocks(static_cast<size_t>(stages), all / stages);
    blocks.back() += all % stages;
    plan.parallel.pipeline.blocks = blocks;
  }

  std::mt19937_64 engine_;
  Registries registries_;
};

}  // namespace kuafu::tests
