// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>
#include <valarray>
#include <vector>

#include "kuafu/plan/plan.h"

// Forms of rules on a layer of two numbers, where each has a closed formula after a step or two.
namespace kuafu::variants {

using V = std::valarray<double>;

constexpr double kRate = 0.1, kDecay = 0.3, kEpsilon = 0.1, kCoefficient = 0.5, kMost = 0.4;
constexpr double kMomentum = 0.9, kBeta1 = 0.9, kBeta2 = 0.999;
inline const V kWeight = {1.2, -1.6}, kGradient = {0.6, 0.25};

struct Variant {
  std::string name;
  OptimizerPlan plan;
  std::function<V(const V& w, const V& g)> after;  ///< the weight after all steps
};
struct Forms {
  std::string name;
  std::vector<Variant> variants;
  std::vector<int64_t> shape = {1, 2};
  std::vector<double> rates = {kRate};  ///< of the steps, all by one gradient
  V weight = kWeight;                   ///< where they begin
};

double norm(const V& v);
/// g + d w.
V decayed(const V& w, const V& g);
/// The ratio of LARS as the paper has it.
double by_sum_of_norms(const V& w, const V& g);
/// Adam's first direction: moments of one gradient, corrected.
V sign(const V& g, double epsilon);
/// Not corrected.
V first_moments(const V& g);

OptimizerPlan plan_of(const std::string& kind, const std::function<void(OptimizerPlan&)>& change);

/// Each has the variants of one key.
std::vector<Forms> forms_of_keys();

/// Each has all implementations of LAMB, or of LARS, in one situation.
std::vector<Forms> implementations_of_lamb();
std::vector<Forms> implementations_of_lars();

}  // namespace kuafu::variants
