// SPDX-License-Identifier: Apache-2.0
//
// Routes of the steps that are certified: the oracle takes them over, and each is proven by itself.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include <ATen/ATen.h>

#include "kuafu/comm/worlds.h"
#include "kuafu/engine/proof/certificate_step.h"
#include "kuafu/parallel/expert/routing.h"
#include "tests/support/plans.h"
#include "tests/support/ranks.h"

namespace kuafu {
namespace {

/// Every sample is one token over and over. Rotated heads average equal values, so all tokens of a
/// sample reach the router alike: an expert that chooses among them meets nothing but ties.
class OneToken : public Dataset {
 public:
  explicit OneToken(std::unique_ptr<Dataset> inner) : inner_(std::move(inner)) {}
  int64_t vocab() const override { return inner_->vocab(); }
  int64_t num_train_samples() const override { return inner_->num_train_samples(); }
  int64_t num_validation_samples() const override { return inner_->num_validation_samples(); }
  Tokens train(int64_t first, int64_t count) const override {
    Tokens tokens = inner_->train(first, count);
    std::fill(tokens.inputs.begin(), tokens.inputs.end(), 5);
    return tokens;
  }
  Tokens validation(int64_t first, int64_t count) const override {
    return inner_->validation(first, count);
  }
  std::string describe() const override { return "one token"; }

 private:
  std::unique_ptr<Dataset> inner_;
};

Plan choosing_plan(const std::string& router = "expert_choice") {
  return tests::small_plan({{"model.kind", "moe_gpt"},
                            {"model.experts", "4"},
                            {"model.router", router},
                            {"model.positions", "rotary"},
                            {"parallel.data", "2"},
                            {"parallel.expert.size", "2"},
                            {"train.seed", "11"}});
}

bool is_router(const std::string& name) { return name.find(".router.") != std::string::npos; }

/// The library's oracle, but routers start from zero.
class TiedOracle : public oracle::Model {
 public:
  explicit TiedOracle(std::unique_ptr<oracle::Model> inner) : inner_(std::move(inner)) {}
  std::vector<std::string> blocks() const override { return inner_->blocks(); }
  std::vector<std::string> params_of(size_t block) const override {
    return inner_->params_of(block);
  }
  std::map<std::string, oracle::Weight> weights() const override {
    auto all = inner_->weights();
    for (auto& [name, w] : all) {
      if (is_router(name)) w.init = oracle::Weight::Init::kZeros;
    }
    return all;
  }
  oracle::Flow forward(size_t block, const oracle::Flow& in, const oracle::Tensors& weights,
                       const oracle::Samples& samples, oracle::Extra& extra) const override {
    return inner_->forward(block, in, weights, samples, extra);
  }

 private:
  std::unique_ptr<oracle::Model> inner_;
};

/// The library's models and oracles, but routers start from zero: tokens meet nothing but ties.
Registries tied_registries() {
  const Registries whole = builtin_registries();
  Registries tied;
  tied.tensor = whole.tensor;
  tied.sequence = whole.sequence;
  tied.schedules = whole.schedules;
  tied.optimizers = whole.optimizers;
  tied.updates = whole.updates;
  const MakeModel make = whole.models.find("moe_gpt");
  tied.models.add("moe_gpt", "ties", [=](const ModelPlan& plan, const Context& context) {
    Model model = make(plan, context);
    for (const auto& block : model.blocks) {
      for (Param* p : block->params()) {
        if (is_router(p->name)) p->init.kind = Init::Kind::kZeros;
      }
    }
    return model;
  });
  tied.oracles.add("moe_gpt", "ties", [](const ModelPlan& plan, uint64_t seed) {
    return std::make_unique<TiedOracle>(oracle::make_model(plan, seed));
  });
  return tied;
}

TEST(Routes, OfNothingButTiesAreTheRunsOwn) {
  const Registries registries = tied_registries();
  tests::run_ranks(2, [&](Communicator& world) {
    const Certificate c =
        certify(choosing_plan("top1"), registries, world, tests::data_of, {}, int64_t{1} << 40);
    EXPECT_EQ(c.verdict, "equal") << c.describe();
    EXPECT_EQ(c.reference, "oracle");
    EXPECT_GT(c.routes.bound, 0);
  });
}

// In bf16 scores move by 2^-8, and some of the choices of 96 tokens with them. The oracle takes what
// the run chose, and says how far that is from its best.
TEST(Routes, ThatRoundingTurnsAreProvenByThemselves) {
  for (const char* router : {"top1", "top2", "topk", "expert_choice"}) {
    double turned = 0;
    for (const char* mode : {"1d", "1d-sp"}) {
      const Certificate c =
          tests::certificate_of(tests::small_plan({{"model.kind", "moe_gpt"},
                                                   {"model.experts", "4"},
                                                   {"model.router", router},
                                                   {"model.dtype", "bf16"},
                                                   {"parallel.tensor.mode", mode},
                                                   {"parallel.tensor.size", "2"}}));
      EXPECT_EQ(c.native.verdict, "equal") << router << c.native.describe();
      turned = std::max(turned, c.native.routes.error);
      EXPECT_LT(c.native.routes.bound, 0.1) << router << c.native.describe();
      EXPECT_LT(c.routes.bound, 1e-12) << router << c.describe();
    }
    EXPECT_GT(turned, 0) << router;
  }
}

/// A step of a plan on one rank, and what checking it says after `spoil` has had its routes.
Proof checked(const Overrides& keys, const std::function<void(WholeTensors&)>& spoil) {
  const Plan plan = tests::small_plan(tests::keys::both(
      {{"model.kind", "moe_gpt"}, {"model.experts", "4"}, {"model.capacity_factor", "4"}}, keys));
  const Registries registries = builtin_registries();
  const auto data = tests::data_of(plan);
  const auto alone = make_self();
  Engine engine(plan, registries, *alone, *data, {});
  Evidence e = observe(engine, *alone, whole_state(engine, *alone));
  spoil(e.routes.tensors);
  Proof proof;
  proof.verdict = "equal";
  check_step(plan, e, *make_reference(plan, registries, *data), own_rounding, proof);
  proof.judge();
  return proof;
}

TEST(Routes, OfAnExpertThatIsNotTheBestAreTold) {
  const Overrides top1 = {{"model.router", "top1"}};
  EXPECT_EQ(checked(top1, [](WholeTensors&) {}).verdict, "equal");
  const Proof wrong = checked(top1, [](WholeTensors& routes) {
    // The first token of each sample goes to the next expert: in the order of slots, too.
    Tensor& choices = routes.at("blocks.1.moe.choices");
    Tensor& slots = routes.at("blocks.1.moe");
    for (int64_t b = 0; b < choices.size(0); ++b) {
      const int64_t was = choices[b][0][0].item<int64_t>(), is = (was + 1) % 4;
      choices[b][0][0] = is;
      slots[b][was] = at::cat({slots[b][was].slice(0, 1), at::full({1}, -1, at::kLong)});
      slots[b][is] = at::cat({at::zeros({1}, at::kLong), slots[b][is].slice(0, 0, -1)});
    }
  });
  EXPECT_EQ(wrong.verdict, "different");
  EXPECT_FALSE(wrong.routes.holds()) << wrong.describe();
  EXPECT_LT(wrong.routes.error, 1) << wrong.describe();  // a score, not a broken rule
  EXPECT_NE(wrong.routes.where.find("blocks.1.moe"), std::string::npos);
}

TEST(Routes, ThatBreakARuleAreInfinitelyWrong) {
  const Proof wrong = checked({{"model.router", "top2"}}, [](WholeTensors& routes) {
    Tensor& slots = routes.at("blocks.1.moe");
    slots[0][0] = slots[0][0].roll(1);  // another order of the same tokens
  });
  EXPECT_EQ(wrong.verdict, "different");
  EXPECT_TRUE(std::isinf(wrong.routes.error)) << wrong.describe();
}

TEST(Routes, ThatRanksOfOneSampleDisagreeAboutAreTold) {
  Plan plan = choosing_plan("top2");
  plan.parallel.tensor = {"1d-sp", 2, 1};
  plan.parallel.data.size = plan.parallel.expert = 1;
  const Registries registries = builtin_registries();
  const auto data = tests::data_of(plan);
  tests::run_ranks(2, [&](Communicator& world) {
    Engine engine(plan, registries, world, *data, {});
    engine.keep_routes();
    engine.step();
    EXPECT_EQ(whole_routes(engine, world).disagreement, "");
    if (world.rank() == 1) {
      for (const RouterTally* router : engine.routers()) router->routes().at(0).choices.fill_(3);
    }
    const std::string told = whole_routes(engine, world).disagreement;
    EXPECT_EQ(told, "blocks.0.moe.choices differs between ranks that hold the same elements");
  });
}

// Equal tokens have equal scores but for rounding, under every seed: the first of them are taken.
TEST(ExpertChoice, TakesTheFirstOfEqualTokens) {
  const Registries registries = builtin_registries();
  const auto make_data = [](const Plan& p) -> std::unique_ptr<Dataset> {
    return std::make_unique<OneToken>(tests::data_of(p));
  };
  for (const char* mode : {"1d", "1d-sp"}) {
    Plan plan = choosing_plan();
    plan.parallel.tensor = {mode, 2, 1};
    tests::run_ranks(4, [&](Communicator& world) {
      const Certificate c = certify(plan, registries, world, make_data, {}, int64_t{1} << 40);
      EXPECT_EQ(c.verdict, "equal") << mode << ": " << c.describe();
    });
  }
}

// Four bytes in sixteen places: prefixes of one byte are equal tokens, whatever the seed.
TEST(ExpertChoice, IsCertifiedWhereBytesRepeat) {
  for (const char* mode : {"1d", "1d-sp"}) {
    const Certificate c =
        tests::certificate_of(tests::small_plan({{"model.kind", "moe_gpt"},
                                                 {"model.router", "expert_choice"},
                                                 {"model.positions", "rotary"},
                                                 {"model.vocab", "4"},
                                                 {"model.sequence", "16"},
                                                 {"parallel.tensor.mode", mode},
                                                 {"parallel.tensor.size", "2"}}));
    EXPECT_EQ(c.verdict, "equal") << mode << ": " << c.describe();
  }
}

}  // namespace
}  // namespace kuafu
