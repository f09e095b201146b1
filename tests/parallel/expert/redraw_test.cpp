// SPDX-License-Identifier: Apache-2.0
//
// A certificate whose routing is too close to call draws another seed, and says which.

#include <gtest/gtest.h>

#include <algorithm>

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

/// The library's models, but a router is zero up to the seed `last_tied`: tokens meet nothing but
/// ties.
Registries tied_registries(uint64_t last_tied) {
  const Registries whole = builtin_registries();
  Registries tied;
  tied.tensor = whole.tensor;
  tied.sequence = whole.sequence;
  const MakeModel make = whole.models.find("moe_gpt");
  tied.models.add("moe_gpt", "ties", [=](const ModelPlan& plan, const Context& context) {
    Model model = make(plan, context);
    for (const auto& block : model.blocks) {
      for (Param* p : block->params()) {
        const bool is_router = p->name.find(".router.") != std::string::npos;
        if (is_router && context.params.seed <= last_tied) p->init.kind = Init::Kind::kZeros;
      }
    }
    return model;
  });
  return tied;
}

/// Certificates of all ranks where tokens choose among ties up to the seed `last_tied`.
std::vector<Certificate> certificates(uint64_t last_tied) {
  const Registries registries = tied_registries(last_tied);
  std::vector<Certificate> all(2);
  tests::run_ranks(2, [&](Communicator& world) {
    all[static_cast<size_t>(world.rank())] =
        certify(choosing_plan("top1"), registries, world, tests::data_of, {}, int64_t{1} << 40);
  });
  return all;
}

TEST(RoutingRedraw, ClearDecisionsKeepTheSeed) {
  for (const Certificate& c : certificates(0)) {
    EXPECT_EQ(c.seed, 11u);
    EXPECT_EQ(c.verdict, "equal");
  }
}

TEST(RoutingRedraw, TiesTakeTheNextSeedOnEveryRank) {
  for (const Certificate& c : certificates(11)) {
    EXPECT_EQ(c.seed, 12u);
    EXPECT_EQ(c.verdict, "equal");
  }
  for (const Certificate& c : certificates(14)) {
    EXPECT_EQ(c.seed, 15u);
    EXPECT_EQ(c.verdict, "equal");
  }
}

TEST(RoutingRedraw, EndsAfterItsDraws) {
  for (const Certificate& c : certificates(1000)) {
    EXPECT_EQ(c.seed, 11u + kRoutingDraws - 1);
  }
}

// Equal tokens have equal scores but for rounding, under every seed: the first of them are taken.
TEST(ExpertChoice, TakesTheFirstOfEqualTokensWithoutARedraw) {
  const Registries registries = builtin_registries();
  const auto make_data = [](const Plan& p) -> std::unique_ptr<Dataset> {
    return std::make_unique<OneToken>(tests::data_of(p));
  };
  for (const char* mode : {"1d", "1d-sp"}) {
    Plan plan = choosing_plan();
    plan.parallel.tensor = {mode, 2, 1};
    tests::run_ranks(4, [&](Communicator& world) {
      const Certificate c = certify(plan, registries, world, make_data, {}, int64_t{1} << 40);
      EXPECT_EQ(c.seed, 11u);
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
    EXPECT_EQ(c.seed, 1u) << mode;
  }
}

}  // namespace
}  // namespace kuafu
