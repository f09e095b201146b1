// SPDX-License-Identifier: Apache-2.0
//
// Vectors of texts: the oracle's under every kind of plan, whatever their lengths.

#include "kuafu/generation/embedding.h"

#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include <algorithm>

#include "kuafu/dataset/no_data.h"
#include "tests/generation/support.h"
#include "tests/support/expect_has.h"
#include "tests/support/ranks.h"

namespace kuafu {
namespace {

using tests::Family;

Family of_bert(const std::string& name, const Overrides& overrides) {
  return {name, tests::keys::both({{"model.kind", "bert"}, {"train.batch", "12"}}, overrides)};
}

std::vector<Family> embedding_plans() {
  using namespace tests::keys;  // NOLINT: the rows below are a table
  return {
      of_bert("one_rank", {}),
      of_bert("t1d_2", tensor("1d", "2")),
      of_bert("t1d_4", tensor("1d", "4")),
      of_bert("t1d_sp_2", tensor("1d-sp", "2")),
      of_bert("t2d_4", tensor("2d", "4")),
      of_bert("t2p5d_8", tensor("2.5d", "8", "2")),
      of_bert("t3d_8", tensor("3d", "8")),
      of_bert("zero_3", replicas("3", "3")),
      of_bert("data_5", {{"parallel.data", "5"}, {"train.batch", "5"}}),
      of_bert("ring_3", sequence("ring", "3")),
      of_bert("ulysses_2", sequence("ulysses", "2")),
      of_bert("pipeline_2", stages()),
      of_bert("ring_2_pipeline_2", both(sequence("ring", "2"), stages())),
      of_bert("t1d_sp_2_pipeline_2", both(tensor("1d-sp", "2"), stages())),
      of_bert("mixed", both(both(tensor("1d", "2"), stages()), replicas("2", "1"))),
      of_bert("gated", {{"model.mlp", "swiglu"}, {"model.bias", "false"}, {"model.norm", "rms"}}),
      of_bert(
          "t1d_with_2d_layer_4",
          both(tensor("1d", "4"), {{"parallel.layers", R"([{ from = 1, to = 1, mode = "2d" }])"}})),
      of_bert("tiers", {{"memory.policy", "host"}, {"memory.chunk_size", "2KiB"}})};
}

Plan embedding_plan(const Family& family) { return plan_of_embedding(tests::plan_of(family)); }

/// Texts of these lengths, all different.
std::vector<std::vector<int64_t>> texts_of(const Plan& plan, const std::vector<int64_t>& lengths) {
  std::vector<std::vector<int64_t>> all;
  for (const int64_t length : lengths) {
    const int64_t salt = std::ssize(all);
    all.emplace_back();
    for (int64_t i = 0; i < length; ++i) {
      all.back().push_back((7 * i * i + 5 * i + 3 * salt) % plan.model.vocab);
    }
  }
  return all;
}

/// What every rank of the plan makes of them, by rank.
std::vector<Embedded> embedded(const Plan& plan, const TextsToEmbed& what) {
  const Registries registries = builtin_registries();
  std::vector<Embedded> all(static_cast<size_t>(num_ranks(plan)));
  tests::run_ranks(static_cast<int>(num_ranks(plan)), [&](Communicator& world) {
    const NoData none(plan.model);
    Engine engine(plan, registries, world, none, {});
    tests::enliven(engine, world);
    all[static_cast<size_t>(world.rank())] = embed(engine, world, what);
  });
  return all;
}

bool shares_positions(const std::string& name) {
  return name.starts_with("t1d_sp") || name.starts_with("ring") || name.starts_with("ulysses");
}

class EmbeddingUnder : public testing::TestWithParam<Family> {};

// Hidden states are sums of as many terms as logits are, but for those of the head.
TEST_P(EmbeddingUnder, IsTheOracles) {
  const Plan plan = embedding_plan(GetParam());
  const int64_t s = plan.model.sequence;
  const bool is_whole = shares_positions(GetParam().name);
  const auto texts =
      texts_of(plan, is_whole ? std::vector<int64_t>(15, s)
                              : std::vector<int64_t>{s, 1, 5, s, 2, 5, 5, 5, 3, 5, 5, 5,
                                                     5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 7, s - 1});
  for (const Pooling pooling : {Pooling::kMean, Pooling::kFirst}) {
    for (const bool is_unit : {false, true}) {
      const Embedded mine =
          embedded(plan, {.texts = texts, .pooling = pooling, .is_unit = is_unit})[0];
      ASSERT_EQ(mine.vectors.size(), texts.size());
      for (size_t i = 0; i < texts.size(); ++i) {
        const Tensor hidden = tests::oracle_last_input(plan, {texts[i]})[0];
        Tensor expected = pooling == Pooling::kFirst ? hidden[0] : hidden.mean(0);
        if (is_unit) expected = expected / expected.norm();
        const Tensor got = at::tensor(mine.vectors[i], at::kDouble);
        ASSERT_EQ(got.sizes(), expected.sizes());
        EXPECT_LE((got - expected).abs().max().item<double>(), tests::logit_tolerance(hidden))
            << i << " of " << texts[i].size();
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, EmbeddingUnder, testing::ValuesIn(embedding_plans()),
                         [](const auto& info) { return info.param.name; });

TEST(Embedding, TakesWholeSequencesWhereRanksShareThem) {
  for (const char* name : {"t1d_sp_2", "ring_3"}) {
    const auto plans = embedding_plans();
    const Plan plan = embedding_plan(*std::ranges::find(plans, std::string(name), &Family::name));
    try {
      embedded(plan, {.texts = texts_of(plan, {plan.model.sequence, 4})});
      ADD_FAILURE() << name;
    } catch (const ConfigError& e) {
      test::expect_has(e.what(), "shares the positions of a sequence among ranks");
      test::expect_has(e.what(), "model.sequence = 12 tokens, and a text has 4");
    }
  }
}

TEST(Embedding, LeavesTheRestWhereItIsToldTo) {
  const Plan plan = embedding_plan(of_bert("two", {{"parallel.data", "2"}, {"train.batch", "2"}}));
  std::vector<size_t> told;
  TextsToEmbed what{.texts = texts_of(plan, {4, 4, 5, 4, 6})};
  what.on_batch = [&](size_t done) -> int64_t {
    told.push_back(done);
    return done == 3 ? 9 : 0;
  };
  const std::vector<Embedded> all = embedded(plan, what);
  EXPECT_EQ(told, (std::vector<size_t>{2, 3}));
  for (const Embedded& mine : all) EXPECT_EQ(mine.stopped, 9);
  for (size_t i = 0; i < 5; ++i) EXPECT_EQ(all[0].vectors[i].empty(), what.texts[i].size() != 4);
}

TEST(Embedding, IsOfBert) {
  for (const char* kind : {"gpt", "vit", "moe_gpt", "opt"}) {
    Plan plan;
    plan.model.kind = kind;
    EXPECT_THROW(plan_of_embedding(plan), ConfigError) << kind;
  }
}

}  // namespace
}  // namespace kuafu
