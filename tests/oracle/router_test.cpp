// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include <cmath>
#include <limits>

#include "kuafu/base/philox.h"
#include "kuafu/oracle/router.h"
#include "kuafu/parallel/expert/routing.h"
#include "kuafu/tensor/expert_ops.h"
#include "tests/oracle/cases.h"

namespace kuafu {
namespace {

constexpr const char* kName = "blocks.0.moe";

/// A call of a mixture layer with nothing but a router.
struct Router {
  ModelPlan plan;
  oracle::Samples samples;
  oracle::Tensors weights = {};
  oracle::Extra extra = {};

  oracle::Call call() { return {plan, 5, weights, samples, extra}; }
  oracle::Decision own(const Tensor& probs) { return oracle::decide(call(), probs, kName); }
  /// Regret of decisions handed in.
  oracle::Regret regret(const Tensor& probs, const Tensor& slots, const Tensor& choices = {}) {
    oracle::Regret r;
    oracle::complete(call(), probs, kName, slots, choices, r);
    return r;
  }
};

Router router(const std::string& kind, double capacity_factor, int64_t sequence, int64_t experts) {
  return {.plan = {.kind = "moe_gpt",
                   .sequence = sequence,
                   .experts = experts,
                   .router = kind,
                   .top_k = 3,
                   .capacity_factor = capacity_factor},
          .samples = {}};
}

/// Samples that have a place in a step and no content.
oracle::Samples samples_at(int64_t first, int64_t step, int64_t count, int64_t sequence) {
  oracle::Samples s;
  s.tokens.samples = count;
  s.tokens.sequence = sequence;
  s.first = first;
  s.step = step;
  s.batch = first + count;
  return s;
}

/// One sample's gates.
Tensor gates(std::vector<std::vector<double>> rows) {
  std::vector<Tensor> all;
  for (const auto& row : rows) all.push_back(at::tensor(row, at::kDouble));
  return at::stack(all).unsqueeze(0);
}

Tensor slots(const std::vector<std::vector<int64_t>>& rows) {
  std::vector<Tensor> all;
  for (const auto& row : rows) all.push_back(at::tensor(row, at::kLong));
  return at::stack(all).unsqueeze(0);
}

// Three tokens, two slots an expert. Token 2 comes too late for expert 0; tokens 0 and 1 have their
// second choice, expert 1, after the first choice of nobody, so that token 2 finds it full.
TEST(OracleRouter, FillsFirstChoicesOfAllTokensBeforeSecondOnes) {
  Router r = router("top2", 0.75, 3, 3);
  const Tensor p = gates({{0.7, 0.2, 0.1}, {0.6, 0.3, 0.1}, {0.5, 0.1, 0.4}});
  EXPECT_EQ(oracle::capacity_of(r.plan), 2);  // ceil(0.75 * 2 * 3 / 3)
  EXPECT_TRUE(r.own(p).slots.equal(slots({{0, 1}, {0, 1}, {2, -1}})));
  const Tensor late = gates({{0.7, 0.2, 0.1}, {0.6, 0.3, 0.1}, {0.1, 0.8, 0.1}});
  EXPECT_TRUE(r.own(late).slots.equal(slots({{0, 1}, {2, 0}, {-1, -1}})));
}

TEST(OracleRouter, GivesTiesToTheLowestIndex) {
  Router tokens = router("top2", 4, 2, 4);
  EXPECT_TRUE(
      tokens.own(at::full({1, 2, 4}, 0.25, at::kDouble)).choices.equal(slots({{0, 1}, {0, 1}})));
  Router experts = router("expert_choice", 1, 4, 2);
  EXPECT_TRUE(
      experts.own(at::full({1, 4, 2}, 0.5, at::kDouble)).slots.equal(slots({{0, 1}, {0, 1}})));
}

/// Softmax of waves rounded to eighths: most scores have equals.
Tensor tied_logits(at::ScalarType type) {
  const Tensor wave = (at::arange(3 * 16 * 5, at::kDouble) * 0.83).sin();
  return ((wave * 8).round() / 8).view({3, 16, 5}).to(type);
}

class OracleRouters : public testing::TestWithParam<std::string> {};

TEST_P(OracleRouters, DecideAsTheLibraryDoes) {
  for (const auto type : {at::kDouble, at::kFloat}) {
    for (const double factor : {0.3, 0.8, 1.25, 9.0}) {
      for (const bool by_chance : {false, true}) {
        Router r = router(GetParam(), factor, 16, 5);
        r.plan.random_second = by_chance;
        r.samples = samples_at(4, 2, 3, 16);
        const Tensor logits = tied_logits(type);
        const int64_t capacity = oracle::capacity_of(r.plan);
        const auto coin = oracle::num_choices(r.plan) > 1 && by_chance;
        const auto theirs = ops::route(
            logits,
            {.top_k = oracle::num_choices(r.plan),
             .capacity = capacity,
             .slots = capacity + 1,
             .coin = coin ? coins({5, hash_name(kName), 2, 4}, 3, 16, at::kCPU) : Tensor()});
        const Tensor mine = r.own(theirs.probs).slots;
        EXPECT_TRUE(mine.equal(theirs.token.narrow(2, 0, capacity))) << factor;
        EXPECT_EQ(r.regret(theirs.probs, theirs.token).most, 0) << factor;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, OracleRouters,
                         testing::Values("top1", "top2", "topk", "expert_choice"),
                         [](const auto& info) { return info.param; });

TEST(OracleRouter, MeasuresHandedDecisionsOnItsOwn) {
  Router r = router("top1", 2, 2, 2);  // two slots an expert
  const Tensor p = gates({{0.6, 0.4}, {0.51, 0.49}});
  EXPECT_EQ(r.regret(p, slots({{0, 1}, {-1, -1}})).most, 0);
  EXPECT_DOUBLE_EQ(r.regret(p, slots({{0, -1}, {1, -1}})).most, 0.51 - 0.49);
  Router e = router("expert_choice", 1, 2, 2);  // one slot an expert
  // Less the band of equal scores, 2^-18 of the least taken on either side.
  EXPECT_NEAR(e.regret(p, slots({{1}, {1}})).most, 0.6 - 0.51 - 2 * 0x1p-18 * 0.6, 1e-15);
}

TEST(OracleRouter, TakesChoicesThatHaveNoSlot) {
  Router r = router("top1", 1, 2, 2);  // one slot an expert: token 1 is dropped
  const Tensor p = gates({{0.6, 0.4}, {0.49, 0.51}});
  const Tensor given = slots({{0}, {-1}});
  EXPECT_DOUBLE_EQ(r.regret(p, given, slots({{0}, {0}})).most, 0.51 - 0.49);
  // Without them token 1 is taken to have chosen expert 1, which has a slot for it.
  EXPECT_EQ(r.regret(p, given).most, std::numeric_limits<double>::infinity());
}

TEST(OracleRouter, FindsBrokenRules) {
  const double broken = std::numeric_limits<double>::infinity();
  Router r = router("top1", 2, 2, 2);
  const Tensor p = gates({{0.6, 0.4}, {0.6, 0.4}});
  EXPECT_EQ(r.regret(p, slots({{1, 0}, {-1, -1}})).most, broken);         // order
  EXPECT_EQ(r.regret(p, slots({{0, -1}, {-1, -1}})).most, broken);        // a token lost
  EXPECT_EQ(r.regret(p, slots({{0, 1}, {1, -1}})).most, broken);          // two visits for one
  EXPECT_EQ(r.regret(p, slots({{0, 1, 1}, {-1, -1, -1}})).most, broken);  // beyond its capacity
  Router e = router("expert_choice", 2, 2, 2);
  EXPECT_EQ(e.regret(p, slots({{0, 0}, {0, 1}})).most, broken);   // a token twice
  EXPECT_EQ(e.regret(p, slots({{0, -1}, {0, 1}})).most, broken);  // a slot left empty
}

// A coin on the other side of its chance: the distance is the regret.
TEST(OracleRouter, MeasuresCoins) {
  Router r = router("top2", 8, 1, 2);
  r.plan.random_second = true;
  r.samples = samples_at(0, 0, 1, 1);
  const double u = coins({5, hash_name(kName), 0, 0}, 1, 1, at::kCPU).item<double>();
  for (const double second : {0.05, 0.45}) {
    const Tensor p = gates({{1 - second, second}});
    const bool visits = u < 2 * second;
    const Tensor both = slots({{0}, {0}}), one = slots({{0}, {-1}});
    EXPECT_EQ(r.regret(p, visits ? both : one).most, 0);
    EXPECT_NEAR(r.regret(p, visits ? one : both).most, std::abs(u - 2 * second), 0x1.0p-51);
  }
}

// Of three tokens with one slot left of their second expert the first one whose coin says so has it. That a
// later one has it says that those before did not visit, though the expert is full in the end.
TEST(OracleRouter, MeasuresCoinsOfAnExpertThatIsFull) {
  Router r = router("top2", 0.5, 3, 3);  // one slot an expert
  r.plan.random_second = true;
  r.samples = samples_at(0, 0, 1, 3);
  const Tensor u = coins({5, hash_name(kName), 0, 0}, 1, 3, at::kCPU)[0];
  for (int64_t holder = 0; holder < 3; ++holder) {
    // Chances a hundredth beside the coins: none visits but by a rounding that moves it so far.
    std::vector<std::vector<double>> rows;
    double most = 0;
    for (int64_t s = 0; s < 3; ++s) {
      const double coin = u[s].item<double>();
      const double chance = std::clamp(s == holder ? coin + 0.01 : coin + 0.02, 0.02, 0.98);
      rows.push_back({1 - chance / 2, chance / 2, 0});
      if (s < holder) most = std::max(most, std::abs(chance - coin));
    }
    const Tensor p = gates(rows);
    std::vector<int64_t> second = {-1};
    second[0] = holder;
    EXPECT_NEAR(r.regret(p, slots({{0}, second, {-1}})).most, most, 1e-12) << holder;
  }
}

TEST(OracleRouter, RefusesDecisionsOfOtherExtents) {
  Router r = router("top1", 2, 2, 2);
  const Tensor p = gates({{0.6, 0.4}, {0.6, 0.4}});
  EXPECT_THROW(r.regret(p, slots({{0}, {-1}})), ConfigError);
  EXPECT_THROW(r.regret(p, slots({{0, 2}, {-1, -1}})), ConfigError);
  EXPECT_THROW(r.regret(p, slots({{0, 1}, {-1, -1}}), slots({{0}, {2}})), ConfigError);
}

// What one forward decided is what another takes.
TEST(OracleRouter, HandsDecisionsFromTypeToType) {
  const Plan plan = tests::small_plan({{"model.kind", "moe_gpt"}, {"model.experts", "4"}});
  const auto data = tests::data_of(plan);
  const auto model = oracle::make_model(plan.model, 1);
  const auto micro = tests::samples_of(plan, *data, 0);
  oracle::Tensors weights = tests::lively_weights(*model), half;
  for (const auto& [name, w] : weights) half[name] = w.to(at::kBFloat16);
  const auto routes = tests::routes_of(*model, half, micro);
  EXPECT_TRUE(routes[0].contains("blocks.1.moe.choices"));
  const auto g = oracle::gradients(*model, weights, micro, routes);
  // Rounding to 8 bits moves scores by a few times 2^-9, and some decisions with them.
  EXPECT_GT(g.regret.most, 0);
  EXPECT_LT(g.regret.most, 16 * 0x1.0p-9);
  EXPECT_THROW(oracle::gradients(*model, weights, micro, {oracle::Routes{}}), ConfigError);
}

}  // namespace
}  // namespace kuafu
