// SPDX-License-Identifier: Apache-2.0
//
// Oracle and engine, two programs that share a generator of random numbers and nothing else, on one
// rank in f64.

#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include <algorithm>

#include "kuafu/comm/worlds.h"
#include "tests/oracle/cases.h"
#include "tests/support/tensors.h"

namespace kuafu {
namespace {

using tests::kEps;

class OracleAndEngine : public testing::TestWithParam<tests::Family> {};

// Rounding of one sum is at most its length times eps of its absolute terms [Higham, section 4.2]:
// 96 tokens, 144 columns or less. Each block chains 8 of them, two blocks and a head.
constexpr double kTolerance = 8 * 144 * 3 * kEps;

void expect_equal_gradients(const Engine& engine, const std::vector<Param*>& params,
                            const oracle::Gradients& g) {
  for (const Param* p : params) {
    ASSERT_TRUE(g.gradients.contains(p->name)) << p->name;
    const Tensor expected = g.gradients.at(p->name), found = engine.gradient(*p);
    ASSERT_EQ(found.sizes(), expected.sizes()) << p->name;
    const double far = (found - expected).abs().max().item<double>();
    EXPECT_LE(far, kTolerance * g.absolute.at(p->name).max().item<double>()) << p->name;
  }
}

TEST_P(OracleAndEngine, Agree) {
  const Plan plan = tests::small_plan(GetParam().overrides);
  const Registries registries = builtin_registries();
  const auto world = make_self();
  const auto data = tests::data_of(plan);
  Engine engine(plan, registries, *world, *data, {});
  const auto model = oracle::make_model(plan.model, plan.train.seed);
  oracle::Tensors weights = oracle::initial_weights(*model, plan.train.seed);
  oracle::State state;
  const std::vector<Param*> params = engine.params();
  ASSERT_EQ(params.size(), weights.size());
  for (const Param* p : params) {
    ASSERT_TRUE(weights.contains(p->name)) << p->name;
    EXPECT_TRUE(engine.value(*p).equal(weights.at(p->name))) << p->name;
  }

  double largest = 0;  // of all sums of absolute terms
  for (int64_t step = 0; step < plan.train.steps; ++step) {
    const auto g = oracle::gradients(*model, weights, tests::samples_of(plan, *data, step));
    EXPECT_NEAR(engine.forward_backward() / g.loss, 1, kTolerance) << "step " << step;
    expect_equal_gradients(engine, params, g);
    for (const auto& [name, terms] : g.absolute) {
      largest = std::max(largest, terms.max().item<double>());
    }
    const double norm = oracle::norm_of(g.gradients);
    EXPECT_NEAR(engine.update() / norm, 1, kTolerance);
    oracle::update(plan.optimizer, oracle::learning_rate(plan.optimizer, step, plan.train.steps),
                   norm, g.gradients, weights, state);
  }
  // An error d of a gradient moves a weight by at most lr d / epsilon a step.
  const double moved = 3 * plan.optimizer.lr * kTolerance * largest / plan.optimizer.epsilon;
  for (const Param* p : params) {
    const Tensor& expected = weights.at(p->name);
    const double far = (engine.value(*p) - expected).abs().max().item<double>();
    EXPECT_LE(far, moved + kTolerance * expected.abs().max().item<double>()) << p->name;
  }
}

/// With an epsilon of AdamW that no gradient's rounding reaches: where a gradient is zero in exact
/// arithmetic (key biases) an adaptive optimizer divides rounding by it.
std::vector<tests::Family> adamw_cases() {
  std::vector<tests::Family> all = tests::oracle_cases();
  all.push_back({"warmup", {{"optimizer.warmup", "2"}}});
  all.push_back({"micro_batches", {{"train.micro_batch", "2"}}});
  for (tests::Family& f : all) {
    f.overrides = tests::keys::both(
        {{"optimizer.epsilon", "1e-3"}, {"optimizer.schedule", "cosine"}}, f.overrides);
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(All, OracleAndEngine, testing::ValuesIn(adamw_cases()),
                         [](const auto& info) { return info.param.name; });

INSTANTIATE_TEST_SUITE_P(Sgd, OracleAndEngine,
                         testing::Values(tests::Family{"clipped", {{"optimizer.kind", "sgd"}}},
                                         tests::Family{
                                             "unclipped",
                                             {{"optimizer.kind", "sgd"}, {"optimizer.clip", "0"}}}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace kuafu
