// SPDX-License-Identifier: Apache-2.0
#include "kuafu/simulate/model_parts.h"

#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include <algorithm>
#include <mutex>

#include "kuafu/comm/worlds.h"
#include "kuafu/engine/whole.h"
#include "tests/support/plans.h"

namespace kuafu {
namespace {

using tests::Family;
using tests::plan_of;
using tests::small_plan;

/// What the ranks of a real run hold: elements of each, and of all whole parameters by kind.
struct Held {
  PartCounts whole;
  std::vector<int64_t> by_rank;
};

Held held_by_a_run(const Plan& plan) {
  const Registries registries = builtin_registries();
  Held held;
  held.by_rank.resize(static_cast<size_t>(num_ranks(plan)));
  std::mutex mutex;
  run_on_threads(static_cast<int>(num_ranks(plan)), [&](Communicator& world) {
    const auto data = tests::data_of(plan);
    Engine engine(plan, registries, world, *data, {});
    engine.step();
    const WholeTensors whole = whole_parameters(engine, world.rank() == 0 ? Keep::kYes : Keep::kNo);
    int64_t mine = 0;
    if (plan.parallel.zero == 3) {
      for (const ParamShard& s : engine.shards()) mine += s.value.numel();
    } else {
      for (const Param* p : engine.params()) mine += p->value.numel();
    }
    const std::lock_guard lock(mutex);
    held.by_rank[static_cast<size_t>(world.rank())] = mine;
    for (const auto& [name, tensor] : whole) held.whole.add(name, tensor.numel());
  });
  return held;
}

class ModelPartsOf : public testing::TestWithParam<Family> {};

TEST_P(ModelPartsOf, AreWhatARunHolds) {
  const Plan plan = plan_of(GetParam(), {{"train.steps", "1"}});
  const ModelParts parts = model_parts(plan, builtin_registries());
  const Held held = held_by_a_run(plan);
  EXPECT_EQ(parts.whole.by_kind, held.whole.by_kind);
  const auto most = std::max_element(held.by_rank.begin(), held.by_rank.end());
  EXPECT_EQ(parts.fullest.total(), *most);
  EXPECT_EQ(held.by_rank[static_cast<size_t>(parts.rank)], *most);
}

INSTANTIATE_TEST_SUITE_P(All, ModelPartsOf, testing::ValuesIn(tests::families()),
                         [](const auto& info) { return info.param.name; });

TEST(ModelParts, AreTheOraclesWeights) {
  const Overrides options = {
      {"model.norm", "rms"}, {"model.mlp", "swiglu"}, {"model.bias", "false"}};
  for (const char* kind : {"gpt", "moe_gpt", "opt", "bert", "vit"}) {
    for (const Overrides& more : {Overrides{}, options}) {
      Overrides keys = more;
      keys.emplace_back("model.kind", kind);
      if (kind == std::string("vit")) {
        const std::string vocab = std::to_string(ModelPlan{}.vocab), tokens = "65";
        keys.insert(keys.end(), {{"model.vocab", vocab}, {"model.sequence", tokens}});
      }
      const Plan plan = small_plan(keys);
      PartCounts expected;
      for (const auto& [name, weight] : oracle::make_model(plan.model, 1)->weights()) {
        int64_t elements = 1;
        for (const int64_t extent : weight.shape) elements *= extent;
        expected.add(name, elements);
      }
      EXPECT_EQ(model_parts(plan, builtin_registries()).whole.by_kind, expected.by_kind) << kind;
      EXPECT_EQ(expected.of(PartKind::kOther), 0) << kind;
    }
  }
}

// The papers' closed form: 12 H^2 + 13 H a layer, tables of V and S rows, the last norm.
TEST(ModelParts, OfGpt2AreThePapers) {
  const ModelPlan m = small_plan().model;
  const PartCounts whole = model_parts(small_plan(), builtin_registries()).whole;
  const int64_t h = m.hidden;
  EXPECT_EQ(whole.total(), m.layers * (12 * h * h + 13 * h) + (m.vocab + m.sequence) * h + 2 * h);
  EXPECT_EQ(whole.of(PartKind::kAttention), m.layers * (4 * h * h + 4 * h));
  EXPECT_EQ(whole.of(PartKind::kMlp), m.layers * (8 * h * h + 5 * h));
}

TEST(ModelParts, KnowsAKindByItsName) {
  EXPECT_EQ(part_of("embedding.norm.weight"), PartKind::kNorms);
  EXPECT_EQ(part_of("embedding.tokens"), PartKind::kEmbedding);
  EXPECT_EQ(part_of("head.classes.weight"), PartKind::kHead);
  EXPECT_EQ(part_of("blocks.1.moe.router.weight"), PartKind::kExperts);
  EXPECT_EQ(part_of("blocks.1.before.up.weight"), PartKind::kMlp);
  EXPECT_EQ(part_of("blocks.1.gate"), PartKind::kOther);
}

}  // namespace
}  // namespace kuafu
