// SPDX-License-Identifier: Apache-2.0
//
// Every plan has a miniature: small, legal, with the same features.

#include "kuafu/engine/proof/miniature.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "kuafu/base/suggest.h"
#include "tests/engine/kept.h"
#include "tests/engine/large_plans.h"

namespace kuafu {
namespace {

Plan plan_with(const Overrides& overrides) {
  const Registries registries = builtin_registries();
  const TensorModes modes = registries.tensor_modes();
  Overrides all = {{"data.kind", "synthetic"}};
  all.insert(all.end(), overrides.begin(), overrides.end());
  return resolve(parse_plan("", "plan", modes, all, registries.models.names()), 0, modes);
}

/// Elements of weights and of the activations of a micro-batch, roughly.
double size_of(const Plan& p) {
  const ModelPlan& m = p.model;
  const auto width = static_cast<double>(m.hidden), layers = static_cast<double>(m.layers);
  // MLPs of all layers: a mixture has one for each expert, and those that all tokens visit.
  const int64_t mixtures = m.kind == "moe_gpt" ? m.layers / m.moe_every : 0;
  const auto mlps = static_cast<double>(m.layers + mixtures * (m.experts + m.shared_experts - 1));
  const auto tokens = static_cast<double>(p.train.batch * m.sequence);
  const auto vocab = m.kind == "vit" ? 1.0 : static_cast<double>(m.vocab);
  return layers * 4 * width * width + mlps * 3 * width * static_cast<double>(m.ffn_width()) +
         vocab * width + tokens * (layers * 16 * width + vocab);
}

Miniature expect_miniature(const Plan& plan, const std::string& of) {
  const Registries registries = builtin_registries();
  Miniature small = miniature(plan, registries);
  EXPECT_TRUE(small.plan.has_value()) << of << ": " << small.reason;
  if (!small.plan) return small;
  EXPECT_NO_THROW(check_placement(*small.plan, registries)) << of;
  EXPECT_EQ(resolve(*small.plan, num_ranks(plan), registries.tensor_modes()), *small.plan) << of;
  EXPECT_TRUE(features_of(plan, registries) == features_of(*small.plan, registries)) << of;
  EXPECT_EQ(tests::kept_of(plan, registries), tests::kept_of(*small.plan, registries)) << of;
  return small;
}

void expect_certified(const Overrides& overrides) {
  const Plan plan = plan_with(overrides);
  const Miniature small = expect_miniature(plan, "plan");
  const Certificate c = tests::certificate_of(plan, 1);
  EXPECT_EQ(c.verdict, "equal") << c.describe();
  EXPECT_EQ(c.level, "scaled");
}

TEST(Miniature, OfTwoDimensionsOnNineRanksKeepsDivisibleSamples) {
  expect_certified({{"parallel.tensor.mode", "2d"},
                    {"parallel.tensor.size", "9"},
                    {"model.hidden", "192"},
                    {"model.heads", "6"},
                    {"train.batch", "18"}});
}

TEST(Miniature, OfThreeSequenceParallelRanksKeepsDivisibleSequences) {
  expect_certified({{"parallel.tensor.mode", "1d-sp"},
                    {"parallel.tensor.size", "3"},
                    {"model.hidden", "192"},
                    {"model.heads", "6"},
                    {"model.sequence", "192"}});
}

TEST(Miniature, OfARareMixtureHasOne) {
  const Plan plan = plan_with({{"model.kind", "moe_gpt"},
                               {"model.moe_every", "4"},
                               {"model.layers", "12"},
                               {"model.hidden", "256"}});
  const Miniature small = expect_miniature(plan, "plan");
  ASSERT_TRUE(small.plan.has_value());
  EXPECT_GE(small.plan->model.layers, small.plan->model.moe_every);
  EXPECT_LT(small.plan->model.layers, 12);
}

TEST(Miniature, OfManyBucketsHasSeveral) {
  const Plan plan = plan_with(
      {{"parallel.data", "2"}, {"model.hidden", "512"}, {"parallel.data.bucket", "1048576"}});
  const Miniature small = expect_miniature(plan, "plan");
  ASSERT_TRUE(small.plan.has_value());
  EXPECT_TRUE(features_of(plan, builtin_registries()).has_several_buckets);
  EXPECT_LT(small.plan->parallel.data.bucket, 1048576);
}

TEST(Miniature, OfManyChunksOnTiersHasSeveral) {
  expect_certified({{"model.hidden", "512"},
                    {"model.layers", "6"},
                    {"model.sequence", "512"},
                    {"model.vocab", "32000"},
                    {"memory.policy", "host"},
                    {"memory.chunk_size", "1MiB"}});
}

// Tokens of a rank in zig-zag order are two chunks, and of an odd number one is longer.
TEST(Miniature, OfUnequalChunksOfAZigzagHasThem) {
  for (const char* sequence : {"250", "252"}) {
    const Plan plan = plan_with({{"parallel.sequence.mode", "ring-zigzag"},
                                 {"parallel.sequence.size", "2"},
                                 {"model.sequence", sequence}});
    const Miniature small = expect_miniature(plan, sequence);
    ASSERT_TRUE(small.plan.has_value());
    EXPECT_LT(small.plan->model.sequence, 250);
    EXPECT_EQ(small.plan->model.sequence % 4, plan.model.sequence % 4);
  }
}

// A vocabulary is a tokenizer's or smaller, and never both.
TEST(Miniature, OfATokenizerReadsBytesOfTheSameText) {
  const auto data_of_miniature = [](const std::string& vocab) {
    Plan plan = plan_with({{"model.vocab", vocab},
                           {"data.kind", "text"},
                           {"data.path", "a.txt"},
                           {"data.tokenizer", "t.json"},
                           {"data.end_token", "<end>"}});
    plan.data.hash = "0123456789abcdef";
    const Miniature small = miniature(plan, builtin_registries());
    EXPECT_TRUE(small.plan.has_value()) << small.reason;
    return small.plan ? small.plan->data : DataPlan{};
  };
  const DataPlan bytes = data_of_miniature("30522"), few = data_of_miniature("100");
  EXPECT_EQ((std::vector{bytes.kind, bytes.path, bytes.tokenizer, bytes.end_token, bytes.hash}),
            (std::vector<std::string>{"text", "a.txt", "", "", ""}));
  EXPECT_EQ(few.kind, "synthetic") << "no ids for bytes";
  EXPECT_EQ(few.path + few.tokenizer, "");
}

TEST(Miniature, OfWhatCannotBePlacedSaysWhy) {
  Plan plan = plan_with({});
  plan.parallel.tensor = {"1d", 3, 1};
  const Miniature none = miniature(plan, builtin_registries());
  EXPECT_FALSE(none.plan.has_value());
  EXPECT_NE(none.reason.find("cannot be scaled"), std::string::npos) << none.reason;
}

// The comparison would notice: each change takes one thing from a plan that has them all.
TEST(Kept, NamesWhatAPlanLost) {
  const Registries registries = builtin_registries();
  const Overrides all = {{"model.kind", "moe_gpt"},
                         {"model.layers", "8"},
                         {"model.moe_every", "2"},
                         {"model.hidden", "96"},
                         {"model.heads", "6"},
                         {"model.vocab", "257"},
                         {"model.sequence", "66"},
                         {"model.dropout", "0.1"},
                         {"optimizer.kind", "sgd"},
                         {"parallel.data", "2"},
                         {"parallel.zero", "2"},
                         {"parallel.data.bucket", "65536"},
                         {"parallel.tensor.mode", "1d"},
                         {"parallel.tensor.size", "2"},
                         {"parallel.layers", R"([{ from = 3, to = 4, mode = "2.5d", depth = 2 }])"},
                         {"parallel.sequence.mode", "ring-zigzag"},
                         {"parallel.sequence.size", "2"},
                         {"parallel.pipeline.size", "2"},
                         {"parallel.pipeline.schedule", "1f1b"},
                         {"parallel.pipeline.blocks", "[5, 7]"},
                         {"train.batch", "12"},
                         {"train.micro_batch", "2"}};
  const auto kept = tests::kept_of(plan_with(all), registries);
  const std::map<std::string, Overrides> losses = {
      {"kinds of layers", {{"parallel.layers", "[]"}, {"parallel.pipeline.blocks", "[4, 6]"}}},
      {"neighbours", {{"parallel.layers", R"([{ from = 3, to = 3, mode = "2.5d", depth = 2 }])"}}},
      {"model", {{"model.dropout", "0"}}},
      {"attention", {{"model.kv_heads", "2"}}},
      {"experts", {{"model.shared_experts", "1"}}},
      {"axis sequence", {{"parallel.sequence.mode", "none"}, {"parallel.sequence.size", "1"}}},
      {"replicas", {{"parallel.zero", "1"}}},
      {"optimizer", {{"optimizer.momentum", "0"}}},
      {"schedule", {{"parallel.pipeline.schedule", "gpipe"}}},
      {"micro-batches", {{"train.batch", "16"}}},
      {"stages", {{"parallel.pipeline.blocks", "[6, 6]"}}},
      {"first and last block",
       {{"parallel.pipeline.schedule", "zbv"},
        {"parallel.pipeline.chunks", "2"},
        {"parallel.pipeline.blocks", "[]"}}},
      {"early and late", {{"model.sequence", "68"}}},
      {"padded", {{"model.vocab", "256"}}},
      {"buckets of a block and sum", {{"parallel.data.bucket", "1GiB"}}},
      {"loss scale", {{"train.loss_scale", "8"}}},
      {"memory", {{"memory.policy", "host"}, {"parallel.data.bucket", "25MiB"}}}};
  const Overrides grid = {{"parallel.tensor.mode", "3d"}, {"parallel.tensor.size", "8"}};
  const auto way = [&](const char* vocab) {
    return tests::kept_of(plan_with(tests::keys::both(grid, {{"model.vocab", vocab}})), registries)
        .at("way of the table");
  };
  EXPECT_EQ(way("16"), "gathered");
  EXPECT_EQ(way("50000"), "its rows are summed");
  for (const auto& [name, change] : losses) {
    const auto rest = tests::kept_of(plan_with(tests::keys::both(all, change)), registries);
    EXPECT_NE(kept.at(name), rest.count(name) > 0 ? rest.at(name) : "") << name;
  }
}

// What miniatures are tried on has every way to agree, every optimizer and every mode.
TEST(LargePlans, HaveEveryWayToAgreeOptimizerAndMode) {
  tests::LargePlans plans(1);
  std::set<std::string> met;
  for (int i = 0; i < 400; ++i) {
    const Plan plan = plans.next();
    const ParallelPlan& p = plan.parallel;
    met.insert({"model " + plan.model.kind, "replicas " + p.data.mode, text("zero ", p.zero),
                "optimizer " + plan.optimizer.kind, "tensor " + p.tensor.mode,
                "sequence " + p.sequence.mode});
    if (p.pipeline.size > 1) met.insert("schedule " + p.pipeline.schedule);
    if (p.data.staleness > 0) met.insert("stale");
    if (p.data.servers > 1) met.insert("servers");
    if (p.expert > 1) met.insert("experts over ranks");
    if (plan.model.dropout > 0) met.insert("dropout");
    if (p.layers.size() > 1) met.insert("two ranges of layers");
    for (const LayerPlan& range : p.layers) met.insert("layers " + range.mode);
    met.insert("memory " + plan.memory.policy);
    if (plan.memory.has_disk()) met.insert("slots on a disk");
    if (plan.memory.has_gradients_on_disk()) met.insert("gradients on a disk");
    if (plan.memory.has_activations_away()) met.insert("activations on the host");
    met.insert("horizon " + plan.memory.horizon);
    met.insert(text("loss scale ", plan.train.loss_scale));
  }
  // 5 models, 5 ways to agree, 4 stages, 6 optimizers, 6 schemes, 5 sequences, 5 schedules, the
  // five words above, 5 modes of layers, 6 policies, the disk, what else leaves, 2 horizons, 4 loss scales.
  EXPECT_EQ(met.size(), 5u + 5u + 4u + 6u + 6u + 5u + 5u + 5u + 5u + 7u + 2u + 2u + 4u)
      << join(std::vector<std::string>(met.begin(), met.end()));
}

void expect_miniatures(int64_t count, uint64_t seed) {
  tests::LargePlans plans(seed);
  for (int64_t i = 0; i < count; ++i) {
    const Plan plan = plans.next();
    const Miniature small = expect_miniature(plan, text("plan ", i, " of seed ", seed));
    if (!small.plan) {
      ADD_FAILURE() << to_toml(plan);
      continue;
    }
    // 4 M elements are 32 MiB of doubles; what is larger was made of many ranks.
    const double most = 4e6 * static_cast<double>(num_ranks(plan));
    EXPECT_LT(size_of(*small.plan), most) << to_toml(plan) << to_toml(*small.plan);
  }
}

TEST(Miniature, OfFortyLargePlansHaveTheirFeatures) { expect_miniatures(40, 1); }

class LargePlanMiniatures : public testing::TestWithParam<uint64_t> {};
TEST_P(LargePlanMiniatures, HaveTheFeaturesOfTheirPlans) { expect_miniatures(125, GetParam()); }
INSTANTIATE_TEST_SUITE_P(Thousand, LargePlanMiniatures, testing::Range<uint64_t>(2, 10));

}  // namespace
}  // namespace kuafu
