// SPDX-License-Identifier: Apache-2.0
//
// Logits and greedy tokens under every plan are the oracle's.

#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "kuafu/dataset/no_data.h"
#include "tests/generation/support.h"
#include "tests/support/ranks.h"

namespace kuafu {
namespace {

using tests::Family;

class GenerationUnder : public testing::TestWithParam<Family> {
 protected:
  /// An engine of the plan with lively weights on every rank.
  void run(const std::function<void(Engine& engine, Communicator& world)>& body) const {
    const Registries registries = builtin_registries();
    tests::run_ranks(static_cast<int>(num_ranks(plan_)), [&](Communicator& world) {
      const NoData none(plan_.model);
      Engine engine(plan_, registries, world, none, {});
      tests::enliven(engine, world);
      body(engine, world);
    });
  }

  const Plan plan_ = tests::generating_plan(GetParam());
};

TEST_P(GenerationUnder, LogitsAreTheOracles) {
  const tests::Asked asked = tests::asked_of(plan_);
  Tensor found;
  run([&](Engine& engine, Communicator& world) {
    const Tensor logits = engine.logits(asked.batch, asked.positions);
    EXPECT_EQ(logits.defined(), world.rank() == 0);
    if (world.rank() == 0) found = logits;
  });
  const Tensor expected = tests::oracle_logits(plan_, asked);
  ASSERT_EQ(found.sizes(), expected.sizes());
  EXPECT_GT(expected.abs().max().item<double>(), 0.1);
  EXPECT_LE((found - expected).abs().max().item<double>(), tests::logit_tolerance(expected));
}

TEST_P(GenerationUnder, GreedyTokensAreTheOracles) {
  const Generation what{.prompts = tests::uneven_prompts(plan_)};
  std::vector<std::vector<int64_t>> expected;
  for (const auto& prompt : what.prompts) expected.push_back(tests::oracle_tokens(plan_, prompt));
  run([&](Engine& engine, Communicator& world) {
    const std::vector<Continuation> made = generate(engine, world, what);
    ASSERT_EQ(made.size(), expected.size());
    for (size_t p = 0; p < made.size(); ++p) {
      EXPECT_EQ(made[p].tokens, expected[p]) << p;
      EXPECT_EQ(made[p].ending, Ending::kSequence);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(All, GenerationUnder, testing::ValuesIn(tests::generating_plans()),
                         [](const auto& info) { return info.param.name; });

/// What a plan of one rank makes of `what`, with a batch of so many.
std::vector<Continuation> generated(const Generation& what, const std::string& batch,
                                    const Overrides& more = {}) {
  const Plan plan = tests::generating_plan({"", tests::keys::both({{"train.batch", batch}}, more)});
  std::vector<Continuation> made;
  const Registries registries = builtin_registries();
  tests::run_ranks(static_cast<int>(num_ranks(plan)), [&](Communicator& world) {
    const NoData none(plan.model);
    Engine engine(plan, registries, world, none, {});
    tests::enliven(engine, world);
    auto mine = generate(engine, world, what);
    if (world.rank() == 0) made = std::move(mine);
  });
  return made;
}

std::vector<std::vector<int64_t>> tokens_of(const std::vector<Continuation>& all) {
  std::vector<std::vector<int64_t>> tokens;
  for (const Continuation& c : all) tokens.push_back(c.tokens);
  return tokens;
}

Generation drawn(uint64_t seed) {
  return {.prompts = tests::uneven_prompts(tests::small_plan()),
          .tokens = 7,
          .sampling = {.temperature = 1.5, .top_k = 20, .top_p = 0.95, .seed = seed}};
}

TEST(Generation, DrawsTheSameUnderEveryPlanAndBatch) {
  const auto one = tokens_of(generated(drawn(3), "4"));
  EXPECT_EQ(tokens_of(generated(drawn(3), "1")), one);
  EXPECT_EQ(tokens_of(generated(drawn(3), "3")), one);
  EXPECT_EQ(tokens_of(generated(drawn(3), "6", {{"parallel.data", "3"}})), one);
  EXPECT_EQ(tokens_of(generated(drawn(3), "4", tests::keys::tensor("2d", "4"))), one);
  EXPECT_NE(tokens_of(generated(drawn(4), "4")), one);
}

TEST(Generation, EndsAtTheNumberOfTokensAndAtTheEndOfTheSequence) {
  const auto made = generated(drawn(3), "4");
  const std::vector<size_t> counts = {7, 7, 2, 7};  // positions are 12
  for (size_t p = 0; p < made.size(); ++p) {
    EXPECT_EQ(made[p].tokens.size(), counts[p]);
    EXPECT_EQ(made[p].ending, counts[p] == 7 ? Ending::kTokens : Ending::kSequence);
    EXPECT_GT(made[p].first_s, 0);
  }
}

TEST(Generation, EndsWhereItIsToldToAndTellsInOrder) {
  Generation what = drawn(3);
  std::vector<std::vector<int64_t>> heard(what.prompts.size());
  std::vector<size_t> ended;
  what.on_token = [&](size_t p, int64_t token) -> std::optional<Ending> {
    heard[p].push_back(token);
    if (heard[p].size() < p + 1) return {};
    return Ending::kStop;
  };
  what.on_end = [&](size_t p, const Continuation&) { ended.push_back(p); };
  const auto made = generated(what, "2");
  EXPECT_EQ(tokens_of(made), heard);
  for (size_t p = 0; p < made.size(); ++p) {
    EXPECT_EQ(made[p].tokens.size(), std::min<size_t>(p + 1, 12 - what.prompts[p].size()));
  }
  EXPECT_EQ(ended, (std::vector<size_t>{0, 1, 2, 3}));
}

TEST(Generation, ChoosesNoRowThatIsNoToken) {
  Generation what = drawn(3);
  what.choices = 2;
  for (const Continuation& c : generated(what, "4")) {
    for (const int64_t token : c.tokens) EXPECT_LT(token, 2);
  }
}

TEST(Generation, RefusesModelsThatLookAhead) {
  const auto why_not = [](const Overrides& overrides) {
    try {
      plan_of_generation(tests::small_plan(overrides));
    } catch (const ConfigError& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  EXPECT_NE(why_not({{"model.kind", "bert"}}).find("kinds that do are gpt, moe_gpt, opt"),
            std::string::npos);
  EXPECT_NE(why_not({{"model.kind", "moe_gpt"}, {"model.router", "expert_choice"}})
                .find("routers that do are top1, top2 and topk"),
            std::string::npos);
  EXPECT_EQ(why_not({}), "");
}

}  // namespace
}  // namespace kuafu
