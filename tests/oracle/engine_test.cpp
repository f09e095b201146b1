// SPDX-License-Identifier: Apache-2.0
//
// Oracle and engine, two programs that share a generator of random numbers and nothing else, on one
// rank in f64.

#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>

#include "kuafu/comm/worlds.h"
#include "tests/oracle/cases.h"
#include "tests/support/tensors.h"

namespace kuafu {
namespace {

using tests::kEps;

class OracleAndEngine : public testing::TestWithParam<tests::Family> {};

// A sum of n terms is rounded n times, by 2^-53 of its absolute terms at most and at random: its
// error is within l sqrt(n) 2^-53 of them, but for a chance of 2 exp(-l^2 / 2) [Higham & Mary, SIAM
// J. Sci. Comput. 41 (2019), theorem 2.4]. Here n is 144 columns or 96 tokens; each of two blocks
// and a head chains 8 such sums, whose errors add up as squares; l = 4, for both sides.
const double kTolerance = 4 * std::sqrt(144 * 8 * 3) * kEps;
// A weight is rounded a dozen times a step.
constexpr double kUpdateTolerance = 3 * 12 * kEps;

oracle::Tensors values_of(const Engine& engine, const std::vector<Param*>& params) {
  oracle::Tensors values;
  for (const Param* p : params) values[p->name] = engine.value(*p).detach().clone();
  return values;
}

/// Weights that all matter.
void enliven(const std::vector<Param*>& params, const oracle::Tensors& weights) {
  const at::NoGradGuard no_grad;
  for (Param* p : params) p->value.copy_(weights.at(p->name));
}

/// The engine's gradients, after comparing them.
oracle::Tensors equal_gradients(const Engine& engine, const std::vector<Param*>& params,
                                const oracle::Gradients& g) {
  oracle::Tensors all;
  for (const Param* p : params) {
    const Tensor found = engine.gradient(*p), expected = g.gradients.at(p->name);
    EXPECT_EQ(found.sizes(), expected.sizes()) << p->name;
    const double far = (found - expected).abs().max().item<double>();
    EXPECT_LE(far, kTolerance * g.absolute.at(p->name).max().item<double>()) << p->name;
    all[p->name] = found.detach().clone();
  }
  return all;
}

// Each step from the engine's own weights, each update from its own gradients: so no difference of
// one step is amplified by the next.
TEST_P(OracleAndEngine, Agree) {
  const Plan plan = tests::small_plan(GetParam().overrides);
  const Registries registries = builtin_registries();
  const auto world = make_self();
  const auto data = tests::data_of(plan);
  Engine engine(plan, registries, *world, *data, {});
  const auto model = oracle::make_model(plan.model, plan.train.seed);
  const std::vector<Param*> params = engine.params();
  const oracle::Tensors first = oracle::initial_weights(*model, plan.train.seed);
  ASSERT_EQ(params.size(), first.size());
  for (const Param* p : params) {
    ASSERT_TRUE(first.contains(p->name)) << p->name;
    EXPECT_TRUE(engine.value(*p).equal(first.at(p->name))) << p->name;
  }
  oracle::Tensors weights = tests::lively_weights(*model);
  enliven(params, weights);

  oracle::State state;
  for (int64_t step = 0; step < plan.train.steps; ++step) {
    const auto g =
        oracle::gradients(*model, values_of(engine, params), tests::samples_of(plan, *data, step));
    EXPECT_NEAR(engine.forward_backward() / g.loss, 1, kTolerance) << "step " << step;
    const oracle::Tensors found = equal_gradients(engine, params, g);
    const double norm = oracle::norm_of(found);
    EXPECT_NEAR(engine.update() / norm, 1, kTolerance);
    oracle::update(plan.optimizer, oracle::learning_rate(plan.optimizer, step, plan.train.steps),
                   norm, found, weights, state);
    for (const Param* p : params) {
      const Tensor& expected = weights.at(p->name);
      const double far = (engine.value(*p) - expected).abs().max().item<double>();
      EXPECT_LE(far, kUpdateTolerance * expected.abs().max().item<double>()) << p->name;
    }
  }
}

std::vector<tests::Family> cases() {
  std::vector<tests::Family> all = tests::oracle_cases();
  all.push_back(
      {"cosine_warmup",
       {{"optimizer.schedule", "cosine"}, {"optimizer.warmup", "1"}, {"train.steps", "4"}}});
  all.push_back({"micro_batches", {{"train.micro_batch", "2"}}});
  all.push_back({"sgd", {{"optimizer.kind", "sgd"}}});
  all.push_back({"sgd_unclipped", {{"optimizer.kind", "sgd"}, {"optimizer.clip", "0"}}});
  return all;
}

INSTANTIATE_TEST_SUITE_P(All, OracleAndEngine, testing::ValuesIn(cases()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace kuafu
