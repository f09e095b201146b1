// SPDX-License-Identifier: Apache-2.0
//
// Implementations of LAMB and LARS that are known to be used, each with all that it does otherwise:
// where clamp, correction, decay, exclusion and rate stand. Bounds are so near here that they are met.
// What users of an implementation leave out by groups of parameters is `exclude`.

#include <algorithm>
#include <cmath>

#include "kuafu/base/errors.h"
#include "tests/oracle/variants.h"

namespace kuafu::variants {
namespace {

constexpr double kClip = 0.25, kLeast = 0.25;

struct Situation {
  std::string name;
  std::vector<int64_t> shape = {1, 2};
  double decay = kDecay;
  V weight = kWeight;

  bool is_of_vectors() const { return shape.size() == 1; }
};

struct Implementation {
  std::string name;
  std::function<void(OptimizerPlan&)> options;
};

std::vector<Implementation> those_of_lamb() {
  const auto set = [](const std::string& correction_in, const std::string& bound,
                      const std::string& exclude, const std::string& scaled_layers, double clip) {
    return [=](OptimizerPlan& o) {
      o.bias_correction = !correction_in.empty();
      if (o.bias_correction) o.correction_in = correction_in;
      o.bound = bound;
      if (bound != "none") o.ratio_max = kMost;
      o.exclude = exclude;
      o.scaled_layers = scaled_layers;
      o.clip = clip;
    };
  };
  const auto deepspeed = [=](OptimizerPlan& o) {
    set("rate", "ratio", "vectors", "included", 0)(o);
    o.ratio_min = kLeast;
  };
  return {{"the paper", set("moments", "weights", "vectors", "included", 0)},
          {"apex, timm", set("moments", "none", "vectors", "decayed", kClip)},
          {"DeepSpeed", deepspeed},
          {"ColossalAI", set("rate", "none", "vectors", "included", 0)},
          {"cybertronai", set("", "weights", "vectors", "included", 0)},
          {"bitsandbytes", set("", "none", "vectors", "included", 0)},
          {"optax", set("moments", "none", "none", "included", 0)},
          {"optax, vectors without decay", set("moments", "none", "vectors", "all", 0)}};
}

std::vector<Implementation> those_of_lars() {
  const auto set = [](const std::string& rate_in, const std::string& denominator,
                      const std::string& bound, const std::string& exclude, double clip_elements) {
    return [=](OptimizerPlan& o) {
      o.rate_in = rate_in;
      o.denominator = denominator;
      o.bound = bound;
      if (bound == "ratio") o.ratio_max = kMost;
      if (bound == "rate") o.coefficient = kCoefficient / 5;
      o.exclude = exclude;
      o.clip_elements = clip_elements;
    };
  };
  return {{"the paper", set("velocity", "sum_of_norms", "none", "none", 0)},
          {"optax", set("velocity", "norm_of_sum", "none", "none", 0)},
          {"timm", set("step", "sum_of_norms", "none", "vectors", 0)},
          {"apex LARC", set("step", "sum_of_norms", "rate", "none", 0)},
          {"ColossalAI", set("step_with_ratio", "sum_of_norms", "ratio", "vectors", 0.5)}};
}

/// A step by the options of a plan.
V after_lamb(const OptimizerPlan& o, bool is_vector, const V& w, const V& gradient) {
  const V g = gradient * (o.clip > 0 ? std::min(1.0, o.clip / norm(gradient)) : 1);
  const bool is_left_out = is_vector && o.exclude == "vectors";
  const double decay = is_left_out ? 0 : o.weight_decay;
  const bool is_in_moments = o.bias_correction && o.correction_in == "moments";
  const V r = (is_in_moments ? sign(g, kEpsilon) : first_moments(g)) + decay * w;
  bool has_ratio = !is_left_out;
  if (o.scaled_layers == "decayed") has_ratio = decay > 0;
  if (o.scaled_layers == "all") has_ratio = true;
  double above = norm(w), ratio = 1;
  if (o.bound == "weights") above = std::clamp(above, o.ratio_min, o.ratio_max);
  if (has_ratio) ratio = above / norm(r);
  if (has_ratio && o.bound == "ratio") ratio = std::clamp(ratio, o.ratio_min, o.ratio_max);
  const bool is_in_rate = o.bias_correction && o.correction_in == "rate";
  const double rate = is_in_rate ? kRate * std::sqrt(1 - kBeta2) / (1 - kBeta1) : kRate;
  return w - rate * ratio * r;
}

const std::vector<double> kTwoRates = {kRate, 3 * kRate};

/// Two steps by the options of a plan.
V after_lars(const OptimizerPlan& o, bool is_vector, const V& start, const V& g) {
  const bool is_left_out = is_vector && o.exclude == "vectors";
  const double decay = is_left_out ? 0 : o.weight_decay;
  V w = start, v = {0, 0};
  for (const double rate : kTwoRates) {
    V x = g + decay * w;
    const double below = o.denominator == "norm_of_sum" ? norm(x) : norm(g) + decay * norm(w);
    double ratio = o.coefficient * norm(w) / below;
    if (o.bound == "ratio") ratio = std::clamp(ratio, o.ratio_min, o.ratio_max);
    if (o.bound == "rate") ratio = std::min(ratio / rate, 1.0);
    if (is_left_out) ratio = 1;
    if (o.clip_elements > 0) {
      for (double& e : x) e = std::clamp(e, -o.clip_elements, o.clip_elements);
    }
    double inside = 1;
    if (o.rate_in == "velocity") inside = rate * ratio;
    if (o.rate_in == "step") inside = ratio;
    v = kMomentum * v + inside * x;
    w -= rate * ratio / inside * v;
  }
  return w;
}

using After = V (*)(const OptimizerPlan& o, bool is_vector, const V& w, const V& g);

Forms forms_in(const Situation& s, const std::string& kind, const std::vector<Implementation>& all,
               After after) {
  Forms forms{text(kind, ", ", s.name), {}, s.shape};
  forms.weight = s.weight;
  for (const Implementation& is : all) {
    OptimizerPlan plan = plan_of(kind, is.options);
    plan.weight_decay = s.decay;
    const bool is_vector = s.is_of_vectors();
    forms.variants.push_back(
        {is.name, plan, [=](const V& w, const V& g) -> V { return after(plan, is_vector, w, g); }});
  }
  return forms;
}

}  // namespace

std::vector<Forms> implementations_of_lamb() {
  std::vector<Forms> all;
  for (const Situation& s :
       {Situation{"matrices"}, Situation{"small matrices", {1, 2}, kDecay, kWeight * 0.1},
        Situation{"vectors", {2}}, Situation{"matrices without decay", {1, 2}, 0}}) {
    all.push_back(forms_in(s, "lamb", those_of_lamb(), after_lamb));
  }
  return all;
}

std::vector<Forms> implementations_of_lars() {
  std::vector<Forms> all;
  for (const Situation& s : {Situation{"matrices"}, Situation{"vectors", {2}}}) {
    all.push_back(forms_in(s, "lars", those_of_lars(), after_lars));
    all.back().rates = kTwoRates;
  }
  return all;
}

}  // namespace kuafu::variants
