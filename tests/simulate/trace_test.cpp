// SPDX-License-Identifier: Apache-2.0
//
// One recorder in every world: what a rank does on threads is, event by event, what it does
// simulated: calls, waits, ops with shapes and work, memory, phases. Times and the values of oracles
// are left out; the simulated rank is given the values that the real one read.

#include "kuafu/base/trace.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>
#include <sstream>

#include "kuafu/engine/placement.h"
#include "kuafu/simulate/simulate.h"
#include "tests/support/pipelines.h"
#include "tests/support/plans.h"
#include "tests/support/ranks.h"
#include "tests/support/traces.h"

namespace kuafu {
namespace {

using tests::Family;

void expect_traced_alike(const Plan& plan, const std::string& name) {
  tests::run_ranks(static_cast<int>(num_ranks(plan)), [&](Communicator& world) {
    tests::expect_traced_as_simulated(plan, world, name);
  });
}

class Traces : public testing::TestWithParam<Family> {};

TEST_P(Traces, OfThreadsEqualThoseSimulated) { expect_traced_alike(plan_of(GetParam()), "plain"); }

TEST_P(Traces, OfThreadsEqualThoseSimulatedUnderRecomputation) {
  for (const char* policy : {"selective", "full"}) {
    expect_traced_alike(plan_of(GetParam(), {{"memory.recompute", policy}}), policy);
  }
}

class TracesOfFamiliesWithReplicas : public Traces {};

TEST_P(TracesOfFamiliesWithReplicas, OfThreadsEqualThoseSimulatedUnderZero) {
  for (const char* stage : {"1", "2", "3"}) {
    expect_traced_alike(plan_of(GetParam(), {{"parallel.zero", stage}}), stage);
  }
}

TEST_P(Traces, OfThreadsEqualThoseSimulatedInEveryDtype) {
  for (const char* dtype : {"f32", "bf16", "f16"}) {
    expect_traced_alike(plan_of(GetParam(), {{"model.dtype", dtype},
                                             {"model.dropout", "0.1"},
                                             {"train.batch", "24"},
                                             {"train.micro_batch", "4"}}),
                        dtype);
  }
}

INSTANTIATE_TEST_SUITE_P(Schemes, Traces, testing::ValuesIn(tests::families()),
                         [](const auto& info) { return info.param.name; });

/// ZeRO shards the state of replicas: other plans have none, and are refused with a stage.
std::vector<Family> families_with_replicas() {
  std::vector<Family> all;
  for (const Family& f : tests::families()) {
    if (plan_of(f).parallel.data.size > 1) all.push_back(f);
  }
  return all;
}
INSTANTIATE_TEST_SUITE_P(Schemes, TracesOfFamiliesWithReplicas,
                         testing::ValuesIn(families_with_replicas()),
                         [](const auto& info) { return info.param.name; });

TEST(TracesOfPipelines, OfThreadsEqualThoseSimulated) {
  for (const tests::Pipe& pipe : tests::pipes()) {
    for (const char* zero : {"0", "1", "2", "3"}) {
      const bool has_replicas = std::string(zero) != "0";
      if (has_replicas && pipe.ranks > 2) continue;
      const Overrides overrides = {{"parallel.pipeline.size", text(pipe.ranks)},
                                   {"parallel.pipeline.schedule", pipe.schedule},
                                   {"parallel.pipeline.chunks", text(pipe.chunks)},
                                   {"model.layers", "6"},
                                   {"parallel.data", has_replicas ? "2" : "1"},
                                   {"parallel.zero", zero},
                                   {"memory.recompute", has_replicas ? "full" : "none"},
                                   {"train.micro_batch", "1"}};
      std::ostringstream name;
      name << pipe << ", zero " << zero;
      expect_traced_alike(tests::small_plan(overrides), name.str());
    }
  }
}

TEST(TracesOfExperts, OfThreadsEqualThoseSimulated) {
  for (const char* router : {"top1", "top2", "topk", "expert_choice"}) {
    expect_traced_alike(
        tests::small_plan(tests::keys::both(tests::keys::experts("2"),
                                            {{"parallel.data", "2"}, {"model.router", router}})),
        router);
  }
}

TEST(TracesOfReplicas, OfThreadsEqualThoseSimulated) {
  for (const char* mode : {"auto", "ring", "tree", "hierarchical", "parameter_server"}) {
    expect_traced_alike(tests::small_plan({{"parallel.data", "4"},
                                           {"parallel.data.mode", mode},
                                           {"cluster.ranks_per_node", "2"},
                                           {"parallel.data.overlap", "false"}}),
                        mode);
  }
}

/// Plans of at most 8 ranks out of the whole product: tensor schemes, single layers of others,
/// sequence schemes, schedules, ZeRO stages and recomputation; none twice.
class ProductPlans {
 public:
  explicit ProductPlans(uint64_t seed) : random_(seed) {}

  /// The next that can be placed, of a pipeline and a tensor or sequence scheme.
  Plan next_composed() {
    for (;;) {
      try {
        const Plan plan = tests::small_plan(draw());
        check_placement(plan, builtin_registries());
        const ParallelPlan& p = plan.parallel;
        const bool is_composed = p.pipeline.size > 1 && p.tensor.size * p.sequence.size > 1;
        if (is_composed && num_ranks(plan) <= 8 && met_.insert(plan_hash(plan)).second) return plan;
      } catch (const ConfigError&) {  // Refused is one too: draw another
      }
    }
  }

 private:
  std::string one_of(const std::vector<std::string>& all) { return all[random_() % all.size()]; }

  Overrides draw() {
    const auto pipes = tests::pipes();
    const tests::Pipe pipe = pipes[random_() % pipes.size()];
    const std::string tensor = one_of({"none", "1d", "1d-sp", "2d", "2.5d"});
    const std::string sequence =
        one_of({"none", "none", "ring", "ring-zigzag", "ulysses", "all-gather"});
    Overrides out = {{"model.layers", text(std::max<int64_t>(2, pipe.ranks * pipe.chunks - 1))},
                     {"model.hidden", "16"},
                     {"parallel.pipeline.size", text(pipe.ranks)},
                     {"parallel.pipeline.schedule", pipe.schedule},
                     {"parallel.pipeline.chunks", text(pipe.chunks)},
                     {"parallel.tensor.mode", tensor},
                     {"parallel.tensor.size", tensor == "none" ? "1"
                                              : tensor == "2d" ? "4"
                                                               : "2"},
                     {"parallel.tensor.depth", tensor == "2.5d" ? "2" : "1"},
                     {"parallel.sequence.mode", sequence},
                     {"parallel.sequence.size", sequence == "none" ? "1" : "2"},
                     {"parallel.data", one_of({"1", "2"})},
                     {"parallel.zero", one_of({"0", "1", "2", "3"})},
                     {"memory.recompute", one_of({"none", "selective", "full"})},
                     {"train.micro_batch", one_of({"2", "4"})}};
    if (tensor != "none" && random_() % 4 == 0) {
      out.emplace_back("parallel.layers", text("[{ from = 1, to = 1, mode = \"",
                                               one_of({"1d", "1d-sp", "2d"}), "\" }]"));
    }
    return out;
  }

  std::mt19937_64 random_;
  std::set<std::string> met_;
};

/// Traces `count` plans of a seed; how many there were of each value, by "key = value".
std::map<std::string, int64_t> expect_composed_alike(int64_t count, uint64_t seed) {
  ProductPlans plans(seed);
  std::map<std::string, int64_t> met;
  for (int64_t i = 0; i < count; ++i) {
    const Plan plan = plans.next_composed();
    expect_traced_alike(plan, text("plan ", i, " of seed ", seed, ":\n", to_toml(plan)));
    const ParallelPlan& p = plan.parallel;
    ++met["tensor " + p.tensor.mode];
    ++met["sequence " + p.sequence.mode];
    ++met["schedule " + p.pipeline.schedule];
    ++met[text("zero ", p.zero)];
    ++met[text("recompute ", static_cast<int>(plan.memory.recompute))];
  }
  return met;
}

TEST(TracesOfTheProduct, OfThreadsEqualThoseSimulatedInASample) {
  const auto met = expect_composed_alike(24, 1);
  EXPECT_EQ(met.size(), 5u + 5u + 5u + 4u + 3u) << "a value is in no plan";
}

class TracesOfTheWholeProduct : public testing::TestWithParam<uint64_t> {};
TEST_P(TracesOfTheWholeProduct, OfThreadsEqualThoseSimulated) {
  expect_composed_alike(60, GetParam());
}
INSTANTIATE_TEST_SUITE_P(Seeds, TracesOfTheWholeProduct, testing::Range<uint64_t>(2, 6));

// All that is priced is in the ledger: placing blocks on stages looks ahead, and that is no call.
TEST(TracesOfPipelines, HaveTheCallsOfTheLedgerAlone) {
  const Plan plan = tests::small_plan({{"parallel.pipeline.size", "2"}, {"train.steps", "2"}});
  SimulatedWorld world(2);
  TraceRecorder recorder(TraceRecorder::Clock::kNone, TraceRecorder::Keeps::kWork);
  const RankResult result = simulate_rank(plan, builtin_registries(), world, 0, &recorder);
  const Trace& trace = recorder.trace();
  std::map<std::string, std::map<std::string, int64_t>> calls, counted;
  int64_t flops = 0;
  for (const TraceRecord& r : trace.records) {
    if (r.kind == TraceKind::kOp) flops += r.payload[1];
    if (r.kind != TraceKind::kCall) continue;
    const TraceCall& call = trace.calls[static_cast<size_t>(r.payload[0])];
    const std::string& axis = trace.groups[static_cast<size_t>(call.group)].label;
    ++calls[axis][trace.names[static_cast<size_t>(r.name)]];
  }
  for (const auto& [axis, t] : result.traffic) counted[axis] = t.calls;
  EXPECT_EQ(calls, counted);
  EXPECT_EQ(flops, 2 * (result.flops + result.flops_recomputed));
}

// Each model with its norms, positions, optimizers and half precision.
TEST(TracesOfModels, OfThreadsEqualThoseSimulated) {
  const std::vector<Overrides> models = {
      {{"model.kind", "bert"}},
      {{"model.kind", "vit"},
       {"model.vocab", "256"},
       {"model.image", "12"},
       {"model.sequence", "10"}},
      {{"model.kind", "gpt"},
       {"model.norm", "rms"},
       {"model.mlp", "swiglu"},
       {"model.positions", "rotary"},
       {"model.kv_heads", "2"}},
      {{"model.kind", "moe_gpt"}, {"model.experts", "4"}, {"optimizer.kind", "sgd"}},
      {{"model.kind", "gpt"}, {"optimizer.kind", "sgd"}, {"optimizer.momentum", "0.9"}}};
  for (const Overrides& model : models) {
    for (const char* dtype : {"f32", "bf16"}) {
      expect_traced_alike(
          tests::small_plan(tests::keys::both(model, {{"parallel.tensor.mode", "1d"},
                                                      {"parallel.tensor.size", "2"},
                                                      {"model.dtype", dtype},
                                                      {"train.micro_batch", "4"}})),
          model[0].second);
    }
  }
}

// The comparison would notice.
TEST(Trace, DifferenceNamesTheFirstEventThatDiffers) {
  TraceRecorder a, b;
  for (TraceRecorder* t : {&a, &b}) {
    t->begin_phase("step");
    t->op({.name = t->name_of("kuafu::matmul"),
           .shape = t->shape_of("f32 4x8, f32 8x2"),
           .kind = OpKind::kMatmul});
    t->work(128, 4 * (32 + 16 + 8), kNoFlags);
    t->oracle("loss", t == &a ? 1 : 2);  // not compared
  }
  EXPECT_EQ(first_difference(a.trace(), b.trace()), "");
  EXPECT_EQ(a.trace().describe(a.trace().records[1]),
            "op kuafu::matmul (f32 4x8, f32 8x2), matmul, 128 FLOPs, 224 bytes");
  b.alloc("activation", 64);
  EXPECT_EQ(first_difference(a.trace(), b.trace()),
            "event 3: nothing; other: alloc activation block 1, 64 bytes");
  a.alloc("activation", 32);
  EXPECT_EQ(
      first_difference(a.trace(), b.trace()),
      "event 3: alloc activation block 1, 32 bytes; other: alloc activation block 1, 64 bytes");
  b.work(1, 0, kNoFlags);  // of the matmul
  EXPECT_NE(first_difference(a.trace(), b.trace()).find("129 FLOPs"), std::string::npos);
}

TEST(Trace, OracleGivenMustBeTheOneRead) {
  TraceRecorder real, simulated;
  real.oracle("loss", 2.5);
  simulated.give_oracles(real.trace());
  EXPECT_THROW(simulated.oracle("gradient norm", 1), ConfigError);
  EXPECT_EQ(simulated.oracle("loss", 1), 2.5);
  EXPECT_EQ(simulated.oracle("loss", 1), 1) << "none is left";
}

}  // namespace
}  // namespace kuafu
