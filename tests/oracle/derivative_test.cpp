// SPDX-License-Identifier: Apache-2.0
//
// The oracle against mathematics alone: derivatives by differences, the loss of a model that knows
// nothing, sums over micro-batches.

#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "tests/oracle/cases.h"
#include "tests/support/tensors.h"

namespace kuafu {
namespace {

using tests::kEps;

class OracleModels : public testing::TestWithParam<tests::Family> {
 protected:
  const Plan plan_ = tests::small_plan(
      tests::keys::both({{"train.batch", "4"}, {"model.hidden", "16"}}, GetParam().overrides));
  const std::unique_ptr<Dataset> data_ = tests::data_of(plan_);
  const std::unique_ptr<oracle::Model> model_ = oracle::make_model(plan_.model, plan_.train.seed);
};

/// (f(w + h) - f(w - h)) / 2 h for element i of a weight.
template <class F>
double slope(oracle::Tensors weights, const std::string& name, int64_t i, double h, F f) {
  const auto at = [&](double by) {
    oracle::Tensors moved = weights;
    moved[name] = weights[name].clone();
    moved[name].view(-1)[i] += by;
    return f(moved);
  };
  return (at(h) - at(-h)) / (2 * h);
}

// The error of a central difference is h^2 times a third derivative: as h halves it falls to a
// quarter, so that the difference between both is three times what is left (h^4 terms apart, for
// which 1 more). Rounding: the loss is a chain of about 100 rounded sums of its own size.
// A difference across the kink of relu is the slope of neither side: gelu stands in its place.
TEST_P(OracleModels, GradientsAreSlopes) {
  ModelPlan smooth = plan_.model;
  if (smooth.mlp == "relu") smooth.mlp = "gelu_exact";
  const auto model = oracle::make_model(smooth, plan_.train.seed);
  const auto micro = tests::samples_of(plan_, *data_, 1);
  const oracle::Tensors weights = tests::lively_weights(*model);
  const auto routes = tests::routes_of(*model, weights, micro);
  const oracle::Gradients g = oracle::gradients(*model, weights, micro, routes);
  EXPECT_EQ(g.regret.most, 0);
  const auto loss = [&](const oracle::Tensors& w) {
    return tests::whole_loss(*model, w, micro, routes);
  };
  constexpr double kStep = 2e-4;
  const double rounding = 100 * kEps * loss(weights) / kStep;
  for (const auto& [name, w] : weights) {
    ASSERT_TRUE(g.gradients.contains(name)) << name;
    const Tensor gradient = g.gradients.at(name).contiguous().view(-1);
    const int64_t largest = gradient.abs().argmax().item<int64_t>();
    for (const int64_t i : {largest, w.numel() / 3}) {
      const double wide = slope(weights, name, i, kStep, loss);
      const double near = slope(weights, name, i, kStep / 2, loss);
      const double bound = std::abs(wide - near) + 2 * rounding;
      const double found = gradient[i].item<double>();
      EXPECT_LE(std::abs(found - near), bound) << name << " element " << i;
      // The bound says something: a factor of 1.001 in the largest element is caught.
      if (i == largest && std::abs(found) > 1e-4) {
        EXPECT_LT(bound, 1e-3 * std::abs(found)) << name;
      }
    }
  }
}

// The stream after the last norm has variance 1 and first weights 0.02^2: logits have s = 0.02
// sqrt(H), and the loss of a target is ln V + s^2 / 2 minus its logit, whose mean over at least as
// many as there are samples is within 5 s / sqrt(B) of zero.
TEST_P(OracleModels, KnowNothingAtFirst) {
  const auto micro = tests::samples_of(plan_, *data_, 0);
  const oracle::Tensors weights = oracle::initial_weights(*model_, plan_.train.seed);
  const double loss = oracle::gradients(*model_, weights, micro).loss;
  const ModelPlan& m = plan_.model;
  const double s = 0.02 * std::sqrt(m.hidden);
  const double near = 5 * s / std::sqrt(plan_.train.batch) + s * s / 2;
  if (m.kind == "bert") {
    EXPECT_NEAR(loss, std::log(m.vocab) + std::log(2), 2 * near);
  } else {
    EXPECT_NEAR(loss, std::log(m.kind == "vit" ? m.classes : m.vocab), near);
  }
}

// A gradient is a sum of terms: never more than the sum of their absolute values.
TEST_P(OracleModels, GradientsAreBelowTheSumOfTheirTerms) {
  const auto micro = tests::samples_of(plan_, *data_, 1);
  const oracle::Gradients g = oracle::gradients(*model_, tests::lively_weights(*model_), micro);
  EXPECT_EQ(g.absolute.size(), g.gradients.size());
  for (const auto& [name, gradient] : g.gradients) {
    const auto found = g.absolute.find(name);
    ASSERT_NE(found, g.absolute.end()) << name;
    ASSERT_EQ(found->second.sizes(), gradient.sizes()) << name;
    // Both are sums of at most 96 terms (tokens), rounded.
    const Tensor excess = gradient.abs() - found->second * (1 + 96 * kEps);
    EXPECT_LE(excess.max().item<double>(), 0) << name;
    EXPECT_GT(found->second.max().item<double>(), 0) << name;
  }
}

// Two orders of the same sums of at most 96 tokens through 3 blocks; see Higham, section 4.2.
TEST_P(OracleModels, MicroBatchesAddUpToTheBatch) {
  const oracle::Tensors weights = tests::lively_weights(*model_);
  const auto whole = oracle::gradients(*model_, weights, tests::samples_of(plan_, *data_, 1));
  const auto parts = oracle::gradients(*model_, weights, tests::samples_of(plan_, *data_, 1, 4));
  EXPECT_NEAR(parts.loss / whole.loss, 1, 96 * kEps);
  for (const auto& [name, gradient] : whole.gradients) {
    const double far = (parts.gradients.at(name) - gradient).abs().max().item<double>();
    const double terms = whole.absolute.at(name).max().item<double>();
    EXPECT_LE(far, 8 * 96 * 3 * kEps * terms) << name;
    const Tensor terms_far = (parts.absolute.at(name) - whole.absolute.at(name)).abs();
    EXPECT_LE(terms_far.max().item<double>(), 8 * 96 * 3 * kEps * terms) << name;
  }
}

/// The gradients of a step, a block at a time: each block's input is a leaf, its weights are those
/// that it names, and its backward begins with the gradient that the next block left.
oracle::Gradients block_by_block(const oracle::Model& model, const oracle::Tensors& weights,
                                 const oracle::Samples& samples) {
  oracle::Gradients sums;
  std::vector<oracle::Flow> inputs, outputs;
  std::vector<oracle::Extra> extras(model.blocks().size());
  std::vector<oracle::Tensors> leaves(extras.size());
  for (size_t b = 0; b < extras.size(); ++b) {
    for (const std::string& name : model.params_of(b)) {
      leaves[b][name] = weights.at(name).detach().clone().requires_grad_();
    }
    inputs.emplace_back();
    if (b > 0) inputs[b].push_back(outputs[b - 1][0].detach().requires_grad_());
    extras[b].absolute = &sums.absolute;
    outputs.push_back(model.forward(b, inputs[b], leaves[b], samples, extras[b]));
  }
  sums.loss = outputs.back()[0].item<double>();
  Tensor gradient = at::ones({}, at::kDouble);
  for (size_t b = extras.size(); b-- > 0;) {
    const Tensor& loss = extras[b].loss;
    Tensor root = (outputs[b][0] * gradient).sum();
    (loss.defined() ? root + loss : root).backward();
    for (const auto& [name, leaf] : leaves[b]) {
      Tensor& sum = sums.gradients[name];
      sum = sum.defined() ? sum + leaf.grad() : leaf.grad();
    }
    if (b > 0) gradient = inputs[b][0].grad();
  }
  return sums;
}

// The order of sums alone differs, where a table is used by two blocks.
TEST_P(OracleModels, BlocksCanBeDrivenOneByOne) {
  const oracle::Tensors weights = tests::lively_weights(*model_);
  const auto micro = tests::samples_of(plan_, *data_, 1);
  const auto whole = oracle::gradients(*model_, weights, micro);
  const auto parts = block_by_block(*model_, weights, micro[0]);
  EXPECT_EQ(parts.loss, whole.loss);
  ASSERT_EQ(parts.gradients.size(), whole.gradients.size());
  for (const auto& [name, gradient] : whole.gradients) {
    const Tensor far = (parts.gradients.at(name) - gradient).abs();
    EXPECT_LE((far - 4 * kEps * whole.absolute.at(name)).max().item<double>(), 0) << name;
    const Tensor terms_far = (parts.absolute.at(name) - whole.absolute.at(name)).abs();
    EXPECT_LE((terms_far - 4 * kEps * whole.absolute.at(name)).max().item<double>(), 0) << name;
  }
}

TEST_P(OracleModels, DropNothingInValidation) {
  auto micro = tests::samples_of(plan_, *data_, 1);
  const oracle::Tensors weights = tests::lively_weights(*model_);
  const auto training = oracle::gradients(*model_, weights, micro).loss;
  micro[0].is_training = false;
  const auto validation = oracle::gradients(*model_, weights, micro).loss;
  EXPECT_EQ(training != validation, plan_.model.dropout > 0);
}

INSTANTIATE_TEST_SUITE_P(All, OracleModels, testing::ValuesIn(tests::oracle_cases()),
                         [](const auto& info) { return info.param.name; });

// With one token a sample the gradient of a sample is one term, but for the table, which is used
// twice.
TEST(Oracle, TermsOfSamplesOfOneTokenAreTheirGradients) {
  for (const char* name : {"gpt", "gpt_parallel_blocks", "llama", "moe_top1", "moe_top3"}) {
    const auto& all = tests::oracle_cases();
    const auto found =
        std::find_if(all.begin(), all.end(), [&](const auto& f) { return f.name == name; });
    const Plan plan =
        tests::small_plan(tests::keys::both(found->overrides, {{"model.sequence", "1"}}));
    const auto data = tests::data_of(plan);
    const auto model = oracle::make_model(plan.model, 1);
    const oracle::Tensors weights = tests::lively_weights(*model);
    const auto samples = tests::samples_of(plan, *data, 0, plan.train.batch);
    const auto whole = oracle::gradients(*model, weights, tests::samples_of(plan, *data, 0));
    oracle::Tensors sums;
    for (const auto& sample : samples) {
      for (const auto& [weight, g] : oracle::gradients(*model, weights, {sample}).gradients) {
        sums[weight] = sums.contains(weight) ? sums[weight] + g.abs() : g.abs();
      }
    }
    sums.erase("embedding.tokens");
    // Per sample sums of up to 96 columns, chained as above; the largest sum stands for their terms.
    for (const auto& [weight, sum] : sums) {
      const Tensor far = (whole.absolute.at(weight) - sum).abs();
      // With one key a query has no gradient: two terms cancel, each of the size of the values' own.
      const bool is_query = weight.ends_with(".attn.q.weight");
      const std::string terms =
          is_query ? weight.substr(0, weight.size() - 8) + "kv.weight" : weight;
      EXPECT_LE(far.max().item<double>(), 8 * 96 * 3 * kEps * sums.at(terms).max().item<double>())
          << name << " " << weight;
    }
  }
}

TEST(Oracle, KnowsNoOtherModels) { EXPECT_EQ(oracle::make_model({.kind = "mamba"}, 1), nullptr); }

TEST(Oracle, ScalesTheLossInBackwardAlone) {
  const Plan plan = tests::small_plan();
  const auto data = tests::data_of(plan);
  const auto model = oracle::make_model(plan.model, 1);
  const auto micro = tests::samples_of(plan, *data, 0);
  const oracle::Tensors weights = tests::lively_weights(*model);
  const auto plain = oracle::gradients(*model, weights, micro);
  const auto scaled = oracle::gradients(*model, weights, micro, {}, 1024);
  EXPECT_EQ(plain.loss, scaled.loss);
  for (const auto& [name, g] : plain.gradients) {  // a power of two is exact
    EXPECT_TRUE(scaled.gradients.at(name).equal(g * 1024)) << name;
    EXPECT_TRUE(scaled.absolute.at(name).equal(plain.absolute.at(name) * 1024)) << name;
  }
}

}  // namespace
}  // namespace kuafu
