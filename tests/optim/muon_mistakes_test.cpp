// SPDX-License-Identifier: Apache-2.0
//
// What is known to go wrong with Muon: each mistake, made by hand, is far beyond what the comparison
// of matrices_test.cpp takes for rounding. Plans with these mistakes are mutants (tests/mutants).

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "kuafu/base/errors.h"
#include "tests/optim/matrices.h"

namespace kuafu {
namespace {

using testing::closed_form;
using tests::HeldMatrices;
using tests::kMatrixSteps;
using tests::kRounding;
using tests::matrix_gradient;
using tests::matrix_pieces;
using tests::muon_plan;
using tests::trained_alone;

/// A mistake moves some element at least so far.
constexpr double kMistake = 1e-3;

/// Muon's rule, changed.
OptimizerRules changed(const std::function<void(Rule&)>& change) {
  OptimizerRules rules("optimizer");
  rules.add("muon", "Muon with a mistake", {{}, [change](const OptimizerPlan& plan) {
                                              Rule rule = make_muon(plan);
                                              change(rule);
                                              return rule;
                                            }});
  return rules;
}

/// A hidden matrix by itself after steps of a rate, two of them where gradients come in halves.
Tensor matrix_after(const Tensor& start, const std::function<Tensor(int)>& gradient, int steps,
                    double lr, const OptimizerRules& rules = builtin_optimizers()) {
  Param p;
  p.name = "blocks.0.matrix";
  p.global = p.padded = shape_of(start);
  p.layout = Layout::replicated(2);
  p.value = start.clone();
  const auto optimizer = make_optimizer(muon_plan(), rules);
  for (int t = 0; t < steps; ++t) {
    std::vector<ParamShard> shards(1);
    shards[0].value = p.value;
    shards[0].grad = gradient(t);
    shards[0].param = &p;
    optimizer->step(shards, lr);
  }
  return p.value;
}

void expect_seen(const Tensor& wrong, const Tensor& right, const std::string& what) {
  EXPECT_GT((wrong - right).abs().max().item<double>(), kMistake) << what;
}

// Mistakes that were made elsewhere: momentum without an iteration, q, k and v as one matrix, the
// scale of a padded matrix, the scale of a shard.
TEST(MistakesOfMuon, OfTheRuleAreSeen) {
  const HeldMatrices whole = trained_alone();
  const auto no_iteration = changed([](Rule& rule) {
    rule.whole = [](const Tensor& u, const LayerSplit&) { return u.clone(); };
  });
  const auto as_one = changed([](Rule& rule) {
    rule.whole = [right = rule.whole](const Tensor& u, const LayerSplit&) { return right(u, {}); };
  });
  const auto scaled_as = [](double columns) {
    return changed([columns](Rule& rule) {
      rule.whole = [columns, right = rule.whole](const Tensor& u, const LayerSplit& layers) {
        const auto rows = static_cast<double>(u.size(0));
        const double is = std::max(1.0, static_cast<double>(u.size(1)) / rows);
        return right(u, layers) * std::sqrt(std::max(1.0, columns / rows) / is);
      };
    });
  };
  const auto of = [](const HeldMatrices& held, size_t i) { return held.shards[i].value; };
  expect_seen(of(trained_alone(no_iteration), 1), of(whole, 1), "no iteration");
  expect_seen(of(trained_alone(as_one), 0), of(whole, 0), "q, k, v as one matrix");
  expect_seen(of(trained_alone(scaled_as(12)), 4), of(whole, 4), "scale with padding");
  expect_seen(of(trained_alone(scaled_as(5)), 4), of(whole, 4), "scale of a shard");
}

// Orthogonalised shards, gradients that are summed in one part alone, an iteration a micro-batch.
TEST(MistakesOfMuon, OfWhereItRunsAreSeen) {
  constexpr size_t kTall = 1;
  const double lr = muon_plan().lr;
  const Tensor start = closed_form(matrix_pieces()[kTall].global, 1);
  const auto gradient = [](int t) { return matrix_gradient(kTall, t); };
  const Tensor right = matrix_after(start, gradient, kMatrixSteps, lr);
  EXPECT_LE((right - trained_alone().shards[kTall].value).abs().max().item<double>(), kRounding);

  const Tensor shard = matrix_after(
      start.narrow(0, 0, 12), [&](int t) { return gradient(t).narrow(0, 0, 12); }, kMatrixSteps,
      lr);
  expect_seen(shard, right.narrow(0, 0, 12), "an orthogonal shard");

  const auto partial = [&](int t) {
    const Tensor g = gradient(t).clone();
    g.narrow(0, 12, 12).mul_(0.5);
    return g;
  };
  expect_seen(matrix_after(start, partial, kMatrixSteps, lr), right, "partial gradients");

  const auto halves = [&](int t) {
    const Tensor g = gradient(t / 2) * 0.5, tilt = closed_form({24, 6}, 7) * 0.05;
    return t % 2 == 0 ? g + tilt : g - tilt;
  };
  expect_seen(matrix_after(start, halves, 2 * kMatrixSteps, lr / 2), right, "once a micro-batch");
}

TEST(RulesOfMatrices, HaveAllTheirStages) {
  const auto words = [](const std::function<void(Rule&)>& change) {
    try {
      make_optimizer(muon_plan(), changed(change));
    } catch (const ConfigError& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  EXPECT_EQ(words([](Rule&) {}), "");
  EXPECT_NE(words([](Rule& r) { r.whole = {}; }).find("has matrix_slots and a direction and no"),
            std::string::npos);
  EXPECT_NE(words([](Rule& r) { r.direction = {}; }).find("and no direction and a whole"),
            std::string::npos);
  EXPECT_NE(words([](Rule& r) { r.matrix_slots = {}; }).find("has no matrix_slots and a direction"),
            std::string::npos);
}

}  // namespace
}  // namespace kuafu
