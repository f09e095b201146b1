// SPDX-License-Identifier: Apache-2.0
//
// Variants of rules: rules and oracle differ between every two of them by what the formulas of
// variants.cpp and implementations.cpp say.

#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "kuafu/base/suggest.h"
#include "kuafu/optim/optimizer.h"
#include "kuafu/oracle/oracle.h"
#include "kuafu/plan/keys.h"
#include "tests/oracle/variants.h"

namespace kuafu {
namespace {

using variants::by_sum_of_norms;
using variants::decayed;
using variants::Forms;
using variants::forms_of_keys;
using variants::implementations_of_lamb;
using variants::implementations_of_lars;
using variants::kGradient;
using variants::kMomentum;
using variants::kRate;
using variants::kWeight;
using variants::norm;
using variants::plan_of;
using variants::V;
using variants::Variant;

at::Tensor tensor_of(const V& v, const std::vector<int64_t>& shape) {
  return at::tensor(std::vector<double>(std::begin(v), std::end(v)), at::kDouble).view(shape);
}
V values_of(const at::Tensor& t) {
  return {t.flatten()[0].item<double>(), t.flatten()[1].item<double>()};
}

const std::string kParameter = "blocks.0.w";

V by_rule(const Forms& forms, const Variant& variant) {
  Param p;
  p.name = kParameter;
  p.global = p.padded = forms.shape;
  p.layout = Layout::replicated(forms.shape.size());
  std::vector<ParamShard> shards = {
      {tensor_of(forms.weight, forms.shape), tensor_of(kGradient, forms.shape), &p, {}}};
  shards[0].grad_factor = clip_factor(norm(kGradient), variant.plan.clip);
  const auto optimizer = make_optimizer(variant.plan);
  for (const double rate : forms.rates) optimizer->step(shards, rate);
  return values_of(shards[0].value);
}

V by_oracle(const Forms& forms, const Variant& variant) {
  oracle::Tensors w = {{kParameter, tensor_of(forms.weight, forms.shape)}};
  const oracle::Tensors g = {{kParameter, tensor_of(kGradient, forms.shape)}};
  oracle::State state;
  for (const double rate : forms.rates) {
    oracle::update(variant.plan, rate, norm(kGradient), g, w, state,
                   {{kParameter, {.shape = forms.shape}}});
  }
  return values_of(w.at(kParameter));
}

// Some dozen roundings of numbers near one, which five iterations make at most 1,000 times as large.
constexpr double kTolerance = 1e-12;
// Nothing that rounding could be taken for.
constexpr double kLeastDifference = 1e-3;

using Run = V (*)(const Forms&, const Variant&);

/// The largest difference that is predicted of two variants, which `run` finds.
double difference(Run run, const Forms& forms, const Variant& a, const Variant& b) {
  const V predicted = a.after(forms.weight, kGradient) - b.after(forms.weight, kGradient);
  const V found = run(forms, a) - run(forms, b);
  EXPECT_LT(V(std::abs(found - predicted)).max(), kTolerance)
      << forms.name << ": " << a.name << ", " << b.name;
  return std::abs(predicted).max();
}

void expect_differences(Run run) {
  for (const Forms& forms : forms_of_keys()) {
    for (size_t i = 0; i < forms.variants.size(); ++i) {
      for (size_t j = 0; j < i; ++j) {
        const Variant &a = forms.variants[i], &b = forms.variants[j];
        EXPECT_GT(difference(run, forms, a, b), kLeastDifference)
            << forms.name << ": " << a.name << ", " << b.name;
      }
    }
  }
}

TEST(VariantsOfRules, DifferByWhatTheirFormulasSay) { expect_differences(by_rule); }

TEST(VariantsOfRules, DifferInTheOracleByWhatTheirFormulasSay) { expect_differences(by_oracle); }

/// In each situation by what is predicted, and in one of them by more than rounding.
void expect_apart(Run run, const std::vector<Forms>& situations) {
  const size_t count = situations.at(0).variants.size();
  for (size_t i = 0; i < count; ++i) {
    for (size_t j = 0; j < i; ++j) {
      double largest = 0;
      for (const Forms& forms : situations) {
        const auto& variants = forms.variants;
        largest = std::max(largest, difference(run, forms, variants.at(i), variants.at(j)));
      }
      const auto& names = situations[0].variants;
      EXPECT_GT(largest, kLeastDifference) << names[i].name << ", " << names[j].name;
    }
  }
}

TEST(Implementations, DifferByWhatTheirOptionsSay) {
  expect_apart(by_rule, implementations_of_lamb());
  expect_apart(by_rule, implementations_of_lars());
}

TEST(Implementations, DifferInTheOracleByWhatTheirOptionsSay) {
  expect_apart(by_oracle, implementations_of_lamb());
  expect_apart(by_oracle, implementations_of_lars());
}

/// Values of a key in these forms, as a plan has them.
std::set<std::string> values_in(const std::vector<Forms>& all, const plan::Key& key) {
  std::set<std::string> values;
  for (const Forms& forms : all) {
    for (const Variant& v : forms.variants) {
      Plan plan;
      plan.optimizer = v.plan;
      values.insert(plan::print(key, plan));
    }
  }
  return values;
}

/// Options that implementations of a rule must differ in; numbers that belong to the rule are none.
std::vector<std::string> options_of(const OptimizerKind& kind) {
  std::vector<std::string> options = kind.keys;
  std::erase_if(options, [&](const std::string& key) {
    // The least ratio of LARS that is known is 0, the default.
    if (key == "ratio_min") return kind.name == "lars";
    return key == "beta1" || key == "beta2" || key == "epsilon" || key == "momentum";
  });
  options.emplace_back("exclude");
  if (kind.name == "lamb") options.emplace_back("clip");
  return options;
}

// Each choice is that of one of them; a number has another value than its default in one.
TEST(Implementations, SetEveryOption) {
  for (const OptimizerKind& kind : builtin_optimizer_kinds()) {
    const bool is_lamb = kind.name == "lamb";
    if (!is_lamb && kind.name != "lars") continue;
    const auto all = is_lamb ? implementations_of_lamb() : implementations_of_lars();
    const std::string refused = is_lamb ? "rate" : "weights";  // a bound of the other alone
    for (const std::string& name : options_of(kind)) {
      const plan::Key& key = *plan::find_key("optimizer." + name);
      std::set<std::string> values = values_in(all, key);
      for (const std::string& choice : key.choices) {
        if (choice == "auto" || (name == "bound" && choice == refused)) continue;
        const bool is_there = values.contains(in_quotes(choice));
        EXPECT_TRUE(is_there) << kind.name << ", " << key.name << " = " << choice;
      }
      values.insert(plan::print(key, Plan{}));
      EXPECT_GT(values.size(), 1U) << kind.name << ", " << key.name;
    }
  }
}

// The warm-up that a correction moved to the rate makes of a constant rate, as it is reported of
// implementations.
TEST(VariantsOfRules, CorrectedInTheRateWarmUp) {
  const OptimizerPlan plan;
  const std::vector<std::pair<int64_t, double>> reported = {
      {1, 0.32}, {12, 0.15}, {100, 0.31}, {1000, 0.80}};
  for (const auto& [t, factor] : reported) {
    EXPECT_NEAR(correction_of_rate(plan, t), factor, 0.005) << t;
  }
}

// At a rate of 0 nothing moves, and a velocity without the rate goes on by the whole gradient.
TEST(VariantsOfRules, RatesAtMostThatOfZeroAreItsLimit) {
  const OptimizerPlan plan = plan_of("lars", [](OptimizerPlan& o) {
    o.bound = "rate";
    o.rate_in = "step";
  });
  const Forms forms{"", {{"", plan, {}}}, {1, 2}, {0, kRate}};
  const V x = decayed(kWeight, kGradient);
  const double second = std::min(by_sum_of_norms(kWeight, kGradient) / kRate, 1.0);
  const V expected = kWeight - kRate * (kMomentum + second) * x;
  EXPECT_LT(V(std::abs(by_rule(forms, forms.variants[0]) - expected)).max(), kTolerance);
  EXPECT_LT(V(std::abs(by_oracle(forms, forms.variants[0]) - expected)).max(), kTolerance);
}

}  // namespace
}  // namespace kuafu
