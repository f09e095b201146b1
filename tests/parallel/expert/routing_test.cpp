// SPDX-License-Identifier: Apache-2.0
//
// Routers against plain loops; capacity, drops, ties, coins.

#include "kuafu/parallel/expert/routing.h"

#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "kuafu/base/philox.h"
#include "tests/parallel/expert/oracle.h"
#include "tests/support/tensors.h"

namespace kuafu {
namespace {

using tests::kEps;
using tests::RouterOracle;

/// (B, S, E), a function of the index and `salt`; `levels` > 0 rounds to that many, so that ties
/// come.
Tensor logits_of(int64_t b, int64_t s, int64_t e, uint64_t salt, int64_t levels = 0) {
  const CounterRandom random(3, salt);
  const Tensor t = at::empty({b, s, e}, at::kDouble);
  double* out = t.mutable_data_ptr<double>();
  for (int64_t i = 0; i < t.numel(); ++i) {
    const double u = random.uniform(static_cast<uint64_t>(i));
    out[i] = levels > 0 ? std::floor(u * static_cast<double>(levels)) : 3 * u;
  }
  return t;
}

std::vector<std::vector<double>> sample_of(const Tensor& logits, int64_t b) {
  std::vector<std::vector<double>> rows;
  for (int64_t s = 0; s < logits.size(1); ++s) {
    const double* row = logits[b][s].const_data_ptr<double>();
    rows.emplace_back(row, row + logits.size(2));
  }
  return rows;
}

struct RouterCase {
  const char* name;
  int64_t top_k, capacity;
  bool has_coin;
  int64_t levels;
};

class Routers : public testing::TestWithParam<RouterCase> {};

TEST_P(Routers, EqualThePlainLoops) {
  const RouterCase c = GetParam();
  const int64_t b = 3, s = 10, e = 4;
  const Tensor logits = logits_of(b, s, e, 1, c.levels);
  ops::RouteSpec spec{.top_k = c.top_k, .capacity = c.capacity, .slots = c.capacity + 1};
  if (c.has_coin) spec.coin = coins({7, 9, 2, 5}, b, s, at::kCPU);
  const ops::RouteOut out = ops::route(logits, spec);
  double balance = 0, z = 0;
  std::vector<int64_t> taken(e), choices(e);
  int64_t dropped = 0;
  for (int64_t i = 0; i < b; ++i) {
    RouterOracle oracle{.top_k = c.top_k, .capacity = c.capacity};
    if (c.has_coin) {
      const double* u = spec.coin[i].const_data_ptr<double>();
      oracle.coin = {u, u + s};
    }
    oracle.run(sample_of(logits, i));
    for (int64_t j = 0; j < e; ++j) {
      const auto& slots = oracle.slots[static_cast<size_t>(j)];
      for (int64_t k = 0; k < spec.slots; ++k) {
        const bool is_used = k < static_cast<int64_t>(slots.size());
        const auto at = static_cast<size_t>(k);
        EXPECT_EQ(out.token[i][j][k].item<int64_t>(), is_used ? slots[at] : -1);
        const double gate = is_used ? oracle.gates[static_cast<size_t>(j)][at] : 0;
        EXPECT_NEAR(out.gates[i][j][k].item<double>(), gate,
                    8 * kEps);  // a softmax of 4, a quotient
      }
      taken[static_cast<size_t>(j)] += static_cast<int64_t>(slots.size());
      choices[static_cast<size_t>(j)] += oracle.choices[static_cast<size_t>(j)];
    }
    balance += oracle.balance;
    z += oracle.z;
    dropped += oracle.dropped;
  }
  for (int64_t j = 0; j < e; ++j) {
    EXPECT_EQ(out.counts[j].item<int64_t>(), taken[static_cast<size_t>(j)]);
    EXPECT_EQ(out.counts[e + j].item<int64_t>(), choices[static_cast<size_t>(j)]);
  }
  EXPECT_EQ(out.counts[2 * e].item<int64_t>(), dropped);
  // Sums of B S E terms, of B S terms up to 3^2 ln(4 e^3).
  EXPECT_NEAR(out.losses[0].item<double>(), balance, 120 * 4 * kEps);
  EXPECT_NEAR(out.losses[1].item<double>(), z, 30 * 30 * kEps * 8);
}

INSTANTIATE_TEST_SUITE_P(
    All, Routers,
    testing::Values(RouterCase{"top1", 1, 2, false, 0}, RouterCase{"top1_roomy", 1, 10, false, 0},
                    RouterCase{"top2", 2, 4, false, 0}, RouterCase{"top2_coin", 2, 4, true, 0},
                    RouterCase{"top2_ties", 2, 4, false, 2}, RouterCase{"top3", 3, 7, false, 0},
                    RouterCase{"all_experts", 4, 10, false, 0},
                    // Of experts that choose, ties are tried below: equal scores of unequal rows
                    // differ in the last bit with the order of a sum.
                    RouterCase{"choice", 0, 3, false, 0},
                    RouterCase{"choice_all", 0, 10, false, 0}),
    [](const auto& info) { return info.param.name; });

/// A run that diverges ends by its loss, not by a choice of no expert.
TEST_P(Routers, ChooseWhateverTheScores) {
  const RouterCase c = GetParam();
  const int64_t b = 3, s = 10, e = 4;
  const double nan = std::nan(""), infinity = std::numeric_limits<double>::infinity();
  Tensor logits = logits_of(b, s, e, 1, c.levels);
  logits[0].fill_(nan);
  logits[1][3][2] = nan;
  logits[1][5].fill_(infinity);
  logits[2][0][1] = -infinity;
  ops::RouteSpec spec{.top_k = c.top_k, .capacity = c.capacity, .slots = c.capacity + 1};
  if (c.has_coin) spec.coin = coins({7, 9, 2, 5}, b, s, at::kCPU);
  for (const Tensor& scores : {logits, logits.to(at::kFloat)}) {
    const ops::RouteOut out = ops::route(scores, spec);
    EXPECT_TRUE(out.chosen.ge(0).logical_and(out.chosen.lt(e)).all().item<bool>());
    EXPECT_TRUE(out.token.ge(-1).logical_and(out.token.lt(s)).all().item<bool>());
    const Tensor times = std::get<0>(at::sort(out.token[0], 1));
    EXPECT_TRUE(times.slice(1, 1)
                    .ne(times.slice(1, 0, -1))
                    .logical_or(times.slice(1, 1).eq(-1))
                    .all()
                    .item<bool>())
        << "a token twice in an expert's slots";
    EXPECT_TRUE(out.losses[1].isnan().item<bool>());
  }
}

TEST(Router, TiesGoToTheLowestExpertAndTheEarliestToken) {
  const Tensor same = at::zeros({1, 4, 3}, at::kDouble);
  const ops::RouteOut tokens = ops::route(same, {.top_k = 1, .capacity = 2, .slots = 2});
  EXPECT_EQ(tokens.token[0][0][0].item<int64_t>(), 0);
  EXPECT_EQ(tokens.token[0][0][1].item<int64_t>(), 1);
  EXPECT_EQ(tokens.token[0][1][0].item<int64_t>(), -1);
  EXPECT_EQ(tokens.counts[6].item<int64_t>(), 2);  // tokens 2 and 3 found expert 0 full
  const ops::RouteOut experts = ops::route(same, {.top_k = 0, .capacity = 2, .slots = 2});
  for (int64_t e = 0; e < 3; ++e) {
    EXPECT_EQ(experts.token[0][e][0].item<int64_t>(), 0);
    EXPECT_EQ(experts.token[0][e][1].item<int64_t>(), 1);
  }
  EXPECT_EQ(experts.counts[6].item<int64_t>(), 2);  // nobody chose tokens 2 and 3
}

TEST(Router, EverySampleIsItsOwnGroup) {
  const Tensor logits = logits_of(4, 8, 4, 2);
  const ops::RouteSpec spec{.top_k = 2, .capacity = 3, .slots = 3};
  const ops::RouteOut all = ops::route(logits, spec);
  for (int64_t b = 0; b < 4; ++b) {
    const ops::RouteOut one = ops::route(logits.narrow(0, b, 1), spec);
    EXPECT_TRUE(tests::is_same(one.token, all.token.narrow(0, b, 1)));
    EXPECT_TRUE(tests::is_same(one.gates, all.gates.narrow(0, b, 1)));
  }
}

/// Gradients by LibTorch's autograd through dense gates: the same decisions, no slots.
TEST(Router, GradientEqualsAutograd) {
  for (const RouterCase& c :
       {RouterCase{"top1", 1, 2, false, 0}, RouterCase{"top2", 2, 4, false, 0},
        RouterCase{"top3", 3, 5, false, 0}, RouterCase{"choice", 0, 3, false, 0}}) {
    const Tensor mine = logits_of(2, 9, 4, 5).requires_grad_();
    const Tensor theirs = mine.detach().clone().requires_grad_();
    const ops::LossWeights weights{.balance = 0.7, .z = 0.2};
    const Routed routed =
        route(mine, {.top_k = c.top_k, .capacity = c.capacity, .slots = c.capacity}, weights);
    const Tensor seen = logits_of(2, 4, c.capacity, 6);  // what multiplies the gates
    ((routed.gates * seen).sum() + routed.loss).backward();

    const Tensor p = at::softmax(theirs, -1);
    Tensor gates = p;
    if (c.top_k > 1) {
      const Tensor best = std::get<1>(at::topk(p.detach(), c.top_k, -1));
      gates = p / p.gather(-1, best).sum(-1, true);
    }
    const Tensor place = routed.token.clamp_min(0).transpose(1, 2);  // (B, C, E)
    const Tensor by_slot = gates.gather(1, place).transpose(1, 2) * routed.token.ge(0);
    Tensor loss = (by_slot * seen).sum() + 0.2 * at::logsumexp(theirs, {-1}).square().sum();
    if (c.top_k > 0) {
      const Tensor share = at::one_hot(p.detach().argmax(-1), 4).to(at::kDouble).mean(1);
      loss = loss + 0.7 * 4 * (share * p.mean(1)).sum();
    }
    loss.backward();
    EXPECT_NEAR(routed.loss.item<double>() + (routed.gates * seen).sum().item<double>(),
                loss.item<double>(), 1e3 * kEps)
        << c.name;
    EXPECT_LT(tests::relative_error(mine.grad(), theirs.grad()), 1e3 * kEps) << c.name;
  }
}

TEST(Router, CoinsDependOnTheGlobalTokenOnly) {
  const Tensor all = coins({7, 9, 2, 0}, 6, 5, at::kCPU);
  EXPECT_TRUE(tests::is_same(coins({7, 9, 2, 4}, 2, 5, at::kCPU), all.narrow(0, 4, 2)));
  EXPECT_FALSE(tests::is_same(coins({7, 9, 3, 4}, 2, 5, at::kCPU), all.narrow(0, 4, 2)));
}

// Two tokens of six are taken. Scores within the tie's share of the second best are equal, so that
// rounding, here 8 eps, does not decide: the first of them are taken, beside the one clearly above.
template <class T>
void expect_first_of_ties(at::ScalarType type) {
  const T eps = std::numeric_limits<T>::epsilon();
  for (const T noise : {T{0}, 8 * eps, -8 * eps}) {
    const Tensor logits = at::zeros({1, 6, 2}, type);
    auto at = logits.accessor<T, 3>();
    const std::vector<T> first = {0, 1, 1 + noise, 2, 1 - noise, 1 + 2 * noise};
    for (int64_t t = 0; t < 6; ++t) at[0][t][0] = first[static_cast<size_t>(t)];
    const Routed routed = route(logits, {.top_k = 0, .capacity = 2, .slots = 2}, {});
    EXPECT_EQ(routed.token[0][0][0].item<int64_t>(), 3) << noise;
    EXPECT_EQ(routed.token[0][0][1].item<int64_t>(), 1) << noise;
  }
}
TEST(Router, ExpertsTakeTheFirstOfScoresThatDifferByRounding) {
  expect_first_of_ties<double>(at::kDouble);
  expect_first_of_ties<float>(at::kFloat);
}

TEST(Router, CapacityIsTheFactorTimesTheEvenShare) {
  ModelPlan plan;
  plan.sequence = 100;
  plan.experts = 8;
  plan.router = "top2";
  plan.capacity_factor = 1.25;
  EXPECT_EQ(expert_capacity(plan), 32);  // 1.25 x 2 x 100 / 8 = 31.25
  plan.capacity_factor = 1.2;
  EXPECT_EQ(expert_capacity(plan), 30);  // exactly, whatever 1.2 is in binary
  plan.router = "expert_choice";
  EXPECT_EQ(expert_capacity(plan), 15);
  plan.capacity_factor = 100;
  EXPECT_EQ(expert_capacity(plan), 100);
  plan.capacity_factor = 1e-6;
  EXPECT_EQ(expert_capacity(plan), 1);
}

TEST(RouterTally, CountsARecomputedMicroBatchOnce) {
  RouterTally tally("moe", {});
  const Routed routed = route(logits_of(2, 6, 3, 1), {.top_k = 1, .capacity = 2, .slots = 2}, {});
  tally.add(routed, 0, 0);
  tally.add(routed, 0, 0);
  EXPECT_TRUE(tests::is_same(tally.counts(), routed.counts.unsqueeze(0)));
  tally.add(routed, 0, 2);
  EXPECT_TRUE(tests::is_same(tally.counts(), routed.counts.unsqueeze(0) * 2));
}

TEST(RouterTally, KeepsTheStepsApart) {
  RouterTally tally("moe", {});
  const Routed a = route(logits_of(2, 6, 3, 1), {.top_k = 1, .capacity = 2, .slots = 2}, {});
  const Routed b = route(logits_of(2, 6, 3, 2), {.top_k = 1, .capacity = 2, .slots = 2}, {});
  tally.add(a, 4, 0);
  tally.add(b, 5, 0);
  tally.add(b, 5, 2);
  EXPECT_EQ(tally.steps(), 2);
  EXPECT_TRUE(tests::is_same(tally.counts(), at::stack({a.counts, b.counts * 2})));
}

TEST(RouterTally, KeepsTheRoutesOfTheLastStepWhereAsked) {
  RouterTally tally("moe", {});
  const Routed a = route(logits_of(2, 6, 3, 1), {.top_k = 1, .capacity = 2, .slots = 2}, {});
  const Routed b = route(logits_of(2, 6, 3, 2), {.top_k = 1, .capacity = 2, .slots = 2}, {});
  tally.add(a, 4, 0);
  EXPECT_TRUE(tally.routes().empty());
  tally.keep_routes();
  tally.add(a, 5, 0);
  tally.add(b, 6, 2);
  tally.add(b, 6, 2);
  tally.add(a, 6, 6);
  ASSERT_EQ(tally.routes().size(), 2u);
  EXPECT_EQ(tally.routes()[0].first, 2);
  EXPECT_TRUE(tests::is_same(tally.routes()[0].slots, b.token));
  EXPECT_TRUE(tests::is_same(tally.routes()[1].choices, a.chosen));
}

}  // namespace
}  // namespace kuafu
