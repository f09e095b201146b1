// SPDX-License-Identifier: Apache-2.0
#include "tests/support/traced_plans.h"

#include <algorithm>
#include <random>
#include <set>
#include <sstream>

#include "kuafu/engine/placing/placement.h"
#include "kuafu/memory/policy_kinds.h"
#include "kuafu/simulate/simulate.h"
#include "tests/support/pipelines.h"

namespace kuafu::tests {
namespace {

/// The next plans of a seed that can be placed.
class ProductPlans {
 public:
  ProductPlans(uint64_t seed, int64_t most_ranks) : random_(seed), most_ranks_(most_ranks) {}

  Plan next() {
    for (;;) {
      try {
        const Plan plan = small_plan(draw());
        check_placement(plan, builtin_registries());
        const ParallelPlan& p = plan.parallel;
        const bool is_composed = p.pipeline.size > 1 && p.tensor.size * p.sequence.size > 1;
        const bool fits = is_composed && num_ranks(plan) <= most_ranks_;
        if (fits && met_.insert(plan_hash(plan)).second) return plan;
      } catch (const ConfigError&) {  // Refused is one too: draw another
      }
    }
  }

 private:
  std::string one_of(const std::vector<std::string>& all) { return all[random_() % all.size()]; }

  static std::string size_of(const std::string& tensor, bool has_cubes) {
    if (tensor == "none") return "1";
    if (tensor == "2d") return "4";
    return tensor == "3d" || (tensor == "2.5d" && has_cubes) ? "8" : "2";
  }

  Overrides draw() {
    const auto all = pipes();
    const Pipe pipe = all[random_() % all.size()];
    // With a stage beside them a cube, and slices of more than one rank, take 16.
    const bool has_cubes = most_ranks_ >= 16;
    const std::string tensor =
        has_cubes ? one_of({"none", "1d", "1d-sp", "2d", "2.5d", "3d", "2.5d", "3d"})
                  : one_of({"none", "1d", "1d-sp", "2d", "2.5d"});
    const bool is_whole = size_of(tensor, has_cubes) == "8";  // no room for other axes
    const std::string sequence =
        is_whole ? "none"
                 : one_of({"none", "none", "ring", "ring-zigzag", "ulysses", "all-gather"});
    Overrides out = {{"model.layers", text(std::max<int64_t>(2, pipe.ranks * pipe.chunks - 1))},
                     {"model.hidden", "16"},
                     {"parallel.pipeline.size", text(pipe.ranks)},
                     {"parallel.pipeline.schedule", pipe.schedule},
                     {"parallel.pipeline.chunks", text(pipe.chunks)},
                     {"parallel.tensor.mode", tensor},
                     {"parallel.tensor.size", size_of(tensor, has_cubes)},
                     {"parallel.tensor.depth", tensor == "2.5d" ? "2" : "1"},
                     {"parallel.sequence.mode", sequence},
                     {"parallel.sequence.size", sequence == "none" ? "1" : "2"},
                     {"parallel.data", is_whole ? "1" : one_of({"1", "2"})},
                     {"parallel.zero", is_whole ? "0" : one_of({"0", "1", "2", "3"})},
                     {"memory.recompute", one_of({"none", "selective", "full"})},
                     {"train.micro_batch", one_of({"2", "4"})}};
    if (tensor != "none" && random_() % 4 == 0) {
      out.emplace_back("parallel.layers", text("[{ from = 1, to = 1, mode = \"",
                                               one_of({"1d", "1d-sp", "2d"}), "\" }]"));
    }
    return out;
  }

  std::mt19937_64 random_;
  int64_t most_ranks_;
  std::set<std::string> met_;
};

/// Many buckets, so that several sums are under way at once.
Overrides sums_by(const std::string& mode, const std::string& replicas) {
  return {{"parallel.data", replicas},
          {"parallel.data.mode", mode},
          {"parallel.data.bucket", "4096"},
          {"cluster.ranks_per_node", "2"}};
}

std::vector<Overrides> models() {
  return {{{"model.kind", "bert"}},
          {{"model.kind", "vit"},
           {"model.vocab", "256"},
           {"model.image", "12"},
           {"model.sequence", "10"}},
          {{"model.kind", "gpt"},
           {"model.norm", "rms"},
           {"model.mlp", "swiglu"},
           {"model.positions", "rotary"},
           {"model.kv_heads", "2"}},
          {{"model.kind", "opt"}},
          {{"model.kind", "moe_gpt"}, {"model.experts", "4"}, {"optimizer.kind", "sgd"}},
          {{"model.kind", "gpt"}, {"optimizer.kind", "sgd"}, {"optimizer.momentum", "0.9"}}};
}

}  // namespace

std::vector<TracedPlan> traced_family(const Family& family) {
  std::vector<TracedPlan> all;
  const auto add = [&](const std::string& what, const Overrides& more) {
    all.push_back({family.name + ", " + what, plan_of(family, more)});
  };
  add("plain", {});
  for (const char* policy : {"selective", "full"}) {
    add(text("recompute ", policy), {{"memory.recompute", policy}});
  }
  const bool has_replicas = all[0].plan.parallel.data.size > 1;  // others are refused with a stage
  for (int stage = 1; has_replicas && stage <= 3; ++stage) {
    add(text("zero ", stage), {{"parallel.zero", text(stage)}});
  }
  for (const char* dtype : {"f32", "bf16", "f16"}) {
    add(dtype, {{"model.dtype", dtype},
                {"model.dropout", "0.1"},
                {"train.batch", "24"},
                {"train.micro_batch", "4"}});
  }
  return all;
}

std::vector<TracedPlan> traced_pipelines() {
  std::vector<TracedPlan> all;
  for (const Pipe& pipe : pipes()) {
    for (int zero = 0; zero <= (pipe.ranks > 2 ? 0 : 3); ++zero) {
      const bool has_replicas = zero > 0;
      std::ostringstream name;
      name << pipe << ", zero " << zero;
      all.push_back({name.str(), small_plan({{"parallel.pipeline.size", text(pipe.ranks)},
                                             {"parallel.pipeline.schedule", pipe.schedule},
                                             {"parallel.pipeline.chunks", text(pipe.chunks)},
                                             {"model.layers", "6"},
                                             {"parallel.data", has_replicas ? "2" : "1"},
                                             {"parallel.zero", text(zero)},
                                             {"memory.recompute", has_replicas ? "full" : "none"},
                                             {"train.micro_batch", "1"}})});
    }
  }
  return all;
}

namespace {

/// The most that a rank of a plan on tiers holds, simulated.
int64_t peak_of(const Overrides& keys) {
  int64_t peak = 0;
  for (const RankResult& rank : simulate(small_plan(keys), builtin_registries()).ranks) {
    peak = std::max(peak, rank.peak_bytes);
  }
  return peak;
}

/// Every policy with room for all, and with the least that a step needs, so that
/// chunks are dropped and loaded again.
void add_tiers(std::vector<TracedPlan>& all) {
  for (const char* zero : {"0", "3"}) {
    const Overrides base = {{"memory.chunk_size", "4 KiB"},
                            {"parallel.data.order", "fixed"},
                            {"parallel.data", "2"},
                            {"parallel.zero", zero}};
    all.push_back({text("activations on the host, ZeRO-", zero),
                   small_plan(keys::both(base, {{"memory.policy", "host"},
                                                {"memory.recompute", "full"},
                                                {"memory.activations", "host"}}))});
    all.push_back({text("gradients on a disk, ZeRO-", zero),
                   small_plan(keys::both(base, {{"memory.policy", "host"},
                                                {"memory.disk_path", "/var/tmp"},
                                                {"memory.gradients", "disk"}}))});
    const int64_t least =
        peak_of(keys::both(base, {{"memory.policy", "host"}, {"memory.prefetch", "0"}}));
    for (const memory::PolicyKind& kind : memory::builtin_policy_kinds()) {
      const std::string& policy = kind.name;
      if (policy == MemoryPlan{}.policy || !kind.lacks.empty()) continue;
      Overrides tiers = keys::both(base, {{"memory.policy", policy}, {"memory.prefetch", "2"}});
      if (policy == "static") tiers.push_back({"memory.static_share", "0.5"});
      for (const int64_t device : {int64_t{64} << 20, least}) {
        all.push_back({text(policy, ", ZeRO-", zero, ", ", device, " bytes"),
                       small_plan(keys::both(tiers, {{"memory.device", text(device)}}))});
      }
    }
  }
}

}  // namespace

std::vector<TracedPlan> traced_features() {
  std::vector<TracedPlan> all;
  for (const char* router : {"top1", "top2", "topk", "expert_choice"}) {
    all.push_back({router, small_plan(keys::both(keys::experts("2"), {{"parallel.data", "2"},
                                                                      {"model.router", router}}))});
  }
  for (const char* mode : {"auto", "ring", "tree", "hierarchical", "parameter_server"}) {
    all.push_back({mode, small_plan(sums_by(mode, "4"))});
  }
  // Sums over two axes; while tensor ranks, and while stages wait for each other.
  for (const char* mode : {"ring", "tree", "hierarchical"}) {
    all.push_back(
        {text(mode, ", experts"), small_plan(keys::both(keys::experts("2"), sums_by(mode, "4")))});
    all.push_back(
        {text(mode, ", 1d"), small_plan(keys::both(keys::tensor("1d", "2"), sums_by(mode, "2")))});
    all.push_back({text(mode, ", stages"),
                   small_plan(keys::both({{"parallel.pipeline", "2"}, {"train.micro_batch", "1"}},
                                         sums_by(mode, "2")))});
  }
  for (const Overrides& model : models()) {
    for (const char* dtype : {"f32", "bf16"}) {
      all.push_back({text(model[0].second, ", ", dtype),
                     small_plan(keys::both(model, {{"parallel.tensor.mode", "1d"},
                                                   {"parallel.tensor.size", "2"},
                                                   {"model.dtype", dtype},
                                                   {"train.micro_batch", "4"}}))});
    }
  }
  for (const char* kind : {"sgd", "adam", "adamw", "lars", "lamb", "muon"}) {
    all.push_back({kind, small_plan({{"parallel.data", "2"},
                                     {"parallel.zero", "1"},
                                     {"model.dtype", "f16"},
                                     {"optimizer.kind", kind}})});
  }
  add_tiers(all);
  // Matrices that come together along one axis, along two, and of experts.
  const Overrides muon = {{"optimizer.kind", "muon"}, {"optimizer.nesterov", "true"}};
  for (const Overrides& sharding :
       {keys::tensor("2d", "4"),
        keys::both(keys::tensor("1d", "2"), {{"parallel.data", "2"}, {"parallel.zero", "3"}}),
        keys::both(keys::experts("2"), {{"parallel.data", "4"}, {"parallel.zero", "1"}})}) {
    all.push_back({text("muon, ", sharding.front().second, " of ", sharding.size(), " keys"),
                   small_plan(keys::both(muon, sharding))});
  }
  return all;
}

std::vector<TracedPlan> traced_product(int64_t count, uint64_t seed, int64_t most_ranks) {
  ProductPlans plans(seed, most_ranks);
  std::vector<TracedPlan> all;
  for (int64_t i = 0; i < count; ++i) {
    Plan plan = plans.next();
    std::string name = text("plan ", i, " of seed ", seed, ":\n", to_toml(plan));
    all.push_back({std::move(name), std::move(plan)});
  }
  return all;
}

}  // namespace kuafu::tests
