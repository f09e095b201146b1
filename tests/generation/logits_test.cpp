// SPDX-License-Identifier: Apache-2.0
//
// Logits and greedy tokens under every plan are the oracle's.

#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <map>

#include "kuafu/dataset/no_data.h"
#include "kuafu/generation/causal.h"
#include "kuafu/meter/book.h"
#include "kuafu/model/key_value_cache.h"
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

  bool shares_positions() const {
    const ParallelPlan& parallel = plan_.parallel;
    if (parallel.sequence.size > 1 || parallel.tensor.mode == tensor_modes::k1dSp) return true;
    return std::any_of(parallel.layers.begin(), parallel.layers.end(),
                       [](const LayerPlan& range) { return range.mode == tensor_modes::k1dSp; });
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

/// Each sample begins with as many tokens as a place of its own says, and goes on one by one.
TEST_P(GenerationUnder, LogitsBehindACacheAreTheOracles) {
  tests::Asked asked = tests::asked_of(plan_);
  for (int64_t& position : asked.positions) position %= 5;
  std::vector<tests::Asked> each;
  for (int64_t i = 0; i < 7; ++i) {
    each.push_back(asked);
    for (int64_t& position : each.back().positions) position += i;
  }
  std::vector<Tensor> found;
  run([&](Engine& engine, Communicator& world) {
    EXPECT_EQ(engine.why_no_cache().empty(), !shares_positions()) << engine.why_no_cache();
    if (shares_positions()) return;
    KeyValueCache cache(plan_.model.sequence);
    for (const tests::Asked& next : each) {
      const Tokens given = cache.is_filled() ? next.at_positions() : next.columns(0, 5);
      const Tensor logits = engine.logits(given, next.positions, &cache);
      if (world.rank() == 0) found.push_back(logits);
    }
  });
  for (size_t i = 0; i < found.size(); ++i) {
    const Tensor expected = tests::oracle_logits(plan_, each[i]);
    EXPECT_LE((found[i] - expected).abs().max().item<double>(), tests::logit_tolerance(expected));
  }
}

TEST_P(GenerationUnder, GreedyTokensAreTheOracles) {
  Generation what{.prompts = tests::uneven_prompts(plan_)};
  std::vector<std::vector<int64_t>> expected;
  for (const auto& prompt : what.prompts) expected.push_back(tests::oracle_tokens(plan_, prompt));
  run([&](Engine& engine, Communicator& world) {
    for (const Cache cache : {Cache::kWherePossible, Cache::kOff}) {
      what.cache = cache;
      const Generated made = generate(engine, world, what);
      EXPECT_EQ(made.cache_bytes > 0, cache != Cache::kOff && !shares_positions());
      ASSERT_EQ(made.all.size(), expected.size());
      for (size_t p = 0; p < made.all.size(); ++p) {
        EXPECT_EQ(made.all[p].tokens, expected[p]) << p;
        EXPECT_EQ(made.all[p].ending, Ending::kSequence);
      }
    }
  });
}

TEST(Generation, CacheHoldsWhatItsPlanSays) {
  const Plan plan = tests::generating_plan({"", tests::keys::tensor("1d", "2")});
  const tests::Asked asked = tests::asked_of(plan);
  const Registries registries = builtin_registries();
  tests::run_ranks(2, [&](Communicator& world) {
    RankBook book(world.rank());
    const BookScope booked(&book);
    const NoData none(plan.model);
    Engine engine(plan, registries, world, none, {});
    const auto activations = [&book] {
      return book.live_by_category()[static_cast<size_t>(Category::kActivation)];
    };
    const int64_t before = activations();
    KeyValueCache cache(9);
    engine.logits(asked.columns(0, 5), std::vector<int64_t>(8, 4), &cache);
    // Keys and values of 2 layers, 8 samples, half of 4 heads of 8, 9 positions, in f64.
    EXPECT_EQ(cache.bytes(), 2 * 2 * 8 * (4 / 2) * 8 * 9 * 8);
    EXPECT_EQ(activations() - before, cache.bytes());
  });
}

TEST(Generation, KeepsNothingWhereATokenDependsOnThoseThatGoWithIt) {
  const auto why = [](const Overrides& overrides) {
    const Plan plan = tests::small_plan(overrides);
    std::string said;
    const Registries registries = builtin_registries();
    tests::run_ranks(static_cast<int>(num_ranks(plan)), [&](Communicator& world) {
      const NoData none(plan.model);
      const Engine engine(plan, registries, world, none, {});
      if (world.rank() == 0) said = engine.why_no_cache();
    });
    return said;
  };
  using tests::keys::both;
  const Overrides mixture = {{"model.kind", "moe_gpt"}, {"model.experts", "4"}};
  const auto has = [](const std::string& said, const char* words) {
    EXPECT_NE(said.find(words), std::string::npos) << said;
  };
  has(why(both(mixture, {{"model.router", "expert_choice"}})), "model.router = \"expert_choice\"");
  has(why(both(mixture, {{"model.router", "top1"}})), "model.capacity_factor = ");
  has(why(both(mixture, {{"model.capacity_factor", "4"}, {"model.random_second", "true"}})),
      "model.random_second");
  has(why(tests::keys::sequence("ulysses", "2")), "parallel.sequence.mode = \"ulysses\"");
  has(why(tests::keys::tensor("1d-sp", "2")), "the axis tensor of the tensor scheme");
  EXPECT_EQ(why(both(mixture, {{"model.capacity_factor", "4"}, {"model.random_second", "false"}})),
            "");
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
    auto mine = generate(engine, world, what).all;
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
  Generation whole = drawn(3);
  whole.cache = Cache::kOff;
  for (const char* batch : {"1", "4"}) EXPECT_EQ(tokens_of(generated(whole, batch)), one);
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

TEST(Generation, StopsWhereItIsAskedTo) {
  Generation what = drawn(3);
  std::atomic<int> forwards = 0;
  what.why_stop = [&forwards] { return ++forwards == 3 ? 7 : 0; };
  const Plan plan = tests::generating_plan({"", {{"train.batch", "2"}, {"parallel.data", "2"}}});
  const Registries registries = builtin_registries();
  tests::run_ranks(2, [&](Communicator& world) {
    const NoData none(plan.model);
    Engine engine(plan, registries, world, none, {});
    const Generated made = generate(engine, world, what);
    EXPECT_EQ(made.stopped, 7);
    EXPECT_EQ(made.num_tokens(), 3 * 2);  // of the first two prompts
    for (const Continuation& c : made.all) EXPECT_EQ(c.ending, Ending::kAsked);
  });
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

/// Adds the mean over the sequence to what the first block gives: each position sees all others.
class LooksAhead final : public ModelBlock {
 public:
  explicit LooksAhead(std::unique_ptr<ModelBlock> block) : block_(std::move(block)) {
    add_child(*block_);
  }
  Flow forward(const Flow& in, const Side& side) override {
    Flow out = block_->forward(in, side);
    out[0] = out[0] + out[0].mean(1, /*keepdim=*/true);
    return out;
  }
  std::string name() const override { return block_->name(); }

 private:
  std::unique_ptr<ModelBlock> block_;
};

/// What `spoil` makes of what the last but one block of a GPT gives.
class Spoils final : public ModelBlock {
 public:
  Spoils(std::unique_ptr<ModelBlock> block, std::function<Tensor(const Tensor&)> spoil)
      : block_(std::move(block)), spoil_(std::move(spoil)) {
    add_child(*block_);
  }
  Flow forward(const Flow& in, const Side& side) override {
    return {spoil_(block_->forward(in, side)[0])};
  }
  std::string name() const override { return block_->name(); }

 private:
  std::unique_ptr<ModelBlock> block_;
  std::function<Tensor(const Tensor&)> spoil_;
};

TEST(Generation, RefusesAPlugInsModelThatLosesTokens) {
  const std::map<std::string, std::function<Tensor(const Tensor&)>> all = {
      {"one token", [](const Tensor& x) { return x.mean(1, /*keepdim=*/true); }},
      {"fewer tokens", [](const Tensor& x) { return x.narrow(1, 0, x.size(1) - 1); }},
      {"fewer samples", [](const Tensor& x) { return x.narrow(0, 0, 1); }},
      {"no samples", [](const Tensor& x) { return x[0]; }}};
  Registries registries = builtin_registries();
  const MakeModel gpt = registries.models.find("gpt");
  for (const auto& [name, spoil] : all) {
    registries.models.add(name, "of a test", [=](const auto& plan, const auto& context) {
      Model model = gpt(plan, context);
      auto& block = model.blocks[model.blocks.size() - 2];
      block = std::make_unique<Spoils>(std::move(block), spoil);
      return model;
    });
  }
  for (const auto& [name, spoil] : all) {
    Plan plan = tests::generating_plan({"", {{"train.batch", "12"}}});
    plan.model.kind = name;
    const NoData none(plan.model);
    std::string told = "no error";
    try {
      tests::run_ranks(1, [&](Communicator& world) {
        Engine engine(plan, registries, world, none, {});
        require_causal(engine, world);
      });
    } catch (const std::exception& e) {
      told = e.what();
    }
    EXPECT_NE(told.find("tokens of shape ("), std::string::npos) << name << ": " << told;
    EXPECT_NE(told.find("block 'head'"), std::string::npos) << name << ": " << told;
  }
}

TEST(Generation, TriesAPlugInsModelForWhatLiesBehind) {
  Registries registries = builtin_registries();
  const MakeModel gpt = registries.models.find("gpt");
  registries.models.add("like gpt", "of a test", gpt);
  registries.models.add("looks ahead", "of a test", [gpt](const auto& plan, const auto& context) {
    Model model = gpt(plan, context);
    model.blocks[0] = std::make_unique<LooksAhead>(std::move(model.blocks[0]));
    return model;
  });
  for (const char* dtype : {"f64", "f32", "bf16"}) {
    for (const char* kind : {"gpt", "like gpt", "looks ahead"}) {
      Plan plan = tests::generating_plan({"", {{"model.dtype", dtype}, {"train.batch", "12"}}});
      plan.model.kind = kind;
      const NoData none(plan.model);
      tests::run_ranks(1, [&](Communicator& world) {
        Engine engine(plan, registries, world, none, {});
        const Generation what{.prompts = {{1, 2, 3}}, .tokens = 2};
        if (std::string(kind) == "looks ahead") {
          EXPECT_THROW(require_causal(engine, world), ConfigError);
          return;
        }
        require_causal(engine, world);
        EXPECT_EQ(generate(engine, world, what).cache_bytes > 0, std::string(kind) == "gpt");
      });
    }
  }
}

}  // namespace
}  // namespace kuafu
