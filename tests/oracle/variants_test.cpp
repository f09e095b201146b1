// SPDX-License-Identifier: Apache-2.0
//
// Variants of rules: on a layer of two numbers each has a closed formula after a step or two, and the
// rules and the oracle differ between every two variants by what the formulas say.

#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <valarray>
#include <vector>

#include "kuafu/optim/optimizer.h"
#include "kuafu/oracle/oracle.h"

namespace kuafu {
namespace {

using V = std::valarray<double>;

constexpr double kRate = 0.1, kDecay = 0.3, kEpsilon = 0.1, kCoefficient = 0.5, kMost = 0.4;
constexpr double kMomentum = 0.9, kBeta1 = 0.9, kBeta2 = 0.999;
const V kWeight = {1.2, -1.6}, kGradient = {0.6, 0.25};

double norm(const V& v) { return std::sqrt((v * v).sum()); }
V decayed(const V& w, const V& g) { return g + kDecay * w; }

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
};

OptimizerPlan plan_of(const std::string& kind, const std::function<void(OptimizerPlan&)>& change) {
  OptimizerPlan plan{.kind = kind, .lr = kRate, .weight_decay = kDecay, .clip = 0};
  plan.momentum = kMomentum;
  plan.coefficient = kCoefficient;
  plan.beta1 = kBeta1, plan.beta2 = kBeta2, plan.epsilon = kEpsilon;
  change(plan);
  return plan;
}

/// By the factor of g + d w in the first step.
Variant sgd(const std::string& name, double factor, const std::function<void(OptimizerPlan&)>& f) {
  return {name, plan_of("sgd", f),
          [factor](const V& w, const V& g) -> V { return w - kRate * factor * decayed(w, g); }};
}
Forms sgd_forms() {
  return {"sgd",
          {sgd("heavy ball", 1, [](OptimizerPlan&) {}),
           sgd("dampened", 0.75, [](OptimizerPlan& o) { o.dampening = 0.25; }),
           sgd("nesterov", 1 + kMomentum, [](OptimizerPlan& o) { o.nesterov = true; })}};
}

/// Adam's first direction: moments of one gradient, corrected.
V sign(const V& g, double epsilon) { return g / (std::abs(g) + epsilon); }
/// Not corrected.
V first_moments(const V& g) {
  return (1 - kBeta1) * g / (std::sqrt(1 - kBeta2) * std::abs(g) + kEpsilon);
}

Forms adam_forms() {
  Forms all{"adam", {}};
  for (const bool in_rate : {false, true}) {
    const auto change = [in_rate](OptimizerPlan& o) {
      o.correction_in = in_rate ? "rate" : "moments";
    };
    const double epsilon = in_rate ? kEpsilon / std::sqrt(1 - kBeta2) : kEpsilon;
    all.variants.push_back({in_rate ? "adam, rate" : "adam", plan_of("adam", change),
                            [epsilon](const V& w, const V& g) -> V {
                              return w - kRate * sign(decayed(w, g), epsilon);
                            }});
    all.variants.push_back({in_rate ? "adamw, rate" : "adamw", plan_of("adamw", change),
                            [epsilon](const V& w, const V& g) -> V {
                              return w - kRate * (sign(g, epsilon) + kDecay * w);
                            }});
  }
  return all;
}

/// A step of LAMB by its ratio and direction.
using Ratio = std::function<double(double w, double r)>;
Variant lamb(const std::string& name, const std::function<void(OptimizerPlan&)>& change,
             const std::function<V(const V& w, const V& g)>& direction, const Ratio& ratio,
             double factor = 1) {
  return {name, plan_of("lamb", change), [=](const V& w, const V& g) -> V {
            const V r = direction(w, g);
            return w - kRate * factor * ratio(norm(w), norm(r)) * r;
          }};
}
V corrected(const V& w, const V& g) { return sign(g, kEpsilon) + kDecay * w; }
V uncorrected(const V& w, const V& g) { return first_moments(g) + kDecay * w; }
V plain(const V&, const V& g) { return sign(g, kEpsilon); }
double quotient(double w, double r) { return w / r; }
double one(double, double) { return 1; }

std::vector<Forms> lamb_forms() {
  const auto set = [](std::string OptimizerPlan::*key, const std::string& value) {
    return [key, value](OptimizerPlan& o) {
      o.bound = "none";
      o.*key = value;
    };
  };
  const auto bounded = [](const std::string& what) {
    return [what](OptimizerPlan& o) {
      o.bound = what;
      if (what != "none") o.ratio_max = kMost;
    };
  };
  const auto undecayed = [&](const std::string& layers) {
    return [layers](OptimizerPlan& o) {
      o.bound = "none";
      o.scaled_layers = layers;
      o.weight_decay = 0;
    };
  };
  const double k = std::sqrt(1 - kBeta2) / (1 - kBeta1);
  constexpr auto layers = &OptimizerPlan::scaled_layers;
  return {{"lamb, correction",
           {lamb("moments", set(&OptimizerPlan::correction_in, "moments"), corrected, quotient),
            lamb("rate", set(&OptimizerPlan::correction_in, "rate"), uncorrected, quotient, k),
            lamb(
                "none",
                [](OptimizerPlan& o) {
                  o.bound = "none";
                  o.bias_correction = false;
                },
                uncorrected, quotient)}},
          {"lamb, bound",
           {lamb("none", bounded("none"), corrected, quotient),
            lamb("ratio", bounded("ratio"), corrected,
                 [](double w, double r) { return std::min(w / r, kMost); }),
            lamb("weights", bounded("weights"), corrected,
                 [](double w, double r) { return std::min(w, kMost) / r; })}},
          // A vector, which does not decay.
          {"lamb, vectors",
           {lamb("included", set(layers, "included"), plain, one),
            lamb("all", set(layers, "all"), plain, quotient)},
           {2}},
          {"lamb, vectors that do not decay",
           {lamb("decayed", set(layers, "decayed"), plain, one),
            lamb("all", set(layers, "all"), plain, quotient)},
           {2}},
          {"lamb without decay",
           {lamb("included", undecayed("included"), plain, quotient),
            lamb("decayed", undecayed("decayed"), plain, one)}}};
}

double by_sum_of_norms(const V& w, const V& g) {
  return kCoefficient * norm(w) / (norm(g) + kDecay * norm(w));
}
Variant lars(const std::string& name, const std::function<void(OptimizerPlan&)>& change,
             const std::function<double(const V& w, const V& g)>& ratio) {
  return {name, plan_of("lars", change),
          [ratio](const V& w, const V& g) -> V { return w - kRate * ratio(w, g) * decayed(w, g); }};
}
std::vector<Forms> lars_forms() {
  const auto nothing = [](OptimizerPlan&) {};
  // Of two steps at two rates: the first leaves velocities that the second reads.
  const auto twice = [](double first, double second) {
    return [=](const V& w, const V& g) -> V {
      const V x = by_sum_of_norms(w, g) * decayed(w, g), w1 = w - kRate * x;
      return w1 - (first * kMomentum * x + second * by_sum_of_norms(w1, g) * decayed(w1, g));
    };
  };
  return {
      {"lars, denominator",
       {lars("sum of norms", nothing, by_sum_of_norms),
        lars(
            "norm of sum", [](OptimizerPlan& o) { o.denominator = "norm_of_sum"; },
            [](const V& w, const V& g) { return kCoefficient * norm(w) / norm(decayed(w, g)); })}},
      {"lars, bound",
       {lars("none", nothing, by_sum_of_norms),
        lars(
            "ratio",
            [](OptimizerPlan& o) {
              o.bound = "ratio";
              o.ratio_max = kMost;
            },
            [](const V& w, const V& g) { return std::min(by_sum_of_norms(w, g), kMost); }),
        lars(
            "rate", [](OptimizerPlan& o) { o.bound = "rate"; },
            [](const V& w, const V& g) { return std::min(by_sum_of_norms(w, g) / kRate, 1.0); })}},
      {"lars, elements",
       {lars("as they are", nothing, by_sum_of_norms),
        {"clipped", plan_of("lars", [](OptimizerPlan& o) { o.clip_elements = 0.5; }),
         [](const V& w, const V& g) -> V {
           V x = decayed(w, g);
           for (double& e : x) e = std::clamp(e, -0.5, 0.5);
           return w - kRate * by_sum_of_norms(w, g) * x;
         }}}},
      {"lars, rate",
       {{"velocity", plan_of("lars", nothing), twice(kRate, 3 * kRate)},
        {"step", plan_of("lars", [](OptimizerPlan& o) { o.rate_in = "step"; }),
         twice(3 * kRate, 3 * kRate)},
        {"step_with_ratio",
         plan_of("lars", [](OptimizerPlan& o) { o.rate_in = "step_with_ratio"; }),
         [](const V& start, const V& g) -> V {
           V w = start, v = {0, 0};
           for (const double rate : {kRate, 3 * kRate}) {
             v = kMomentum * v + decayed(w, g);
             w -= rate * by_sum_of_norms(w, g) * v;
           }
           return w;
         }}},
       {1, 2},
       {kRate, 3 * kRate}}};
}

/// The one singular value of a matrix of one row.
double iterated(double x, bool is_polar) {
  constexpr double kEach[5][3] = {{8.28721201814563, -23.595886519098837, 17.300387312530933},
                                  {4.107059111542203, -2.9478499167379106, 0.5448431082926601},
                                  {3.9486908534822946, -2.908902115962949, 0.5518191394370137},
                                  {3.3184196573706015, -2.488488024314874, 0.51004894012372},
                                  {2.300652019954817, -1.6689039845747493, 0.4188073119525673}};
  for (const auto& [a, b, c] : kEach) {
    const double y = is_polar ? x / 1.01 : x, s = y * y;
    x = y * (is_polar ? a + s * (b + s * c) : 3.4445 + s * (-4.7750 + s * 2.0315));
  }
  return x;
}
Forms muon_forms() {
  Forms all{"muon", {}};
  for (const bool is_polar : {false, true}) {
    for (const bool is_by_size : {false, true}) {
      const auto change = [=](OptimizerPlan& o) {
        o.coefficients = is_polar ? "polar" : "constant";
        o.matrix_scale = is_by_size ? "size" : "shape";
      };
      all.variants.push_back(
          {std::string(is_polar ? "polar" : "constant") + (is_by_size ? ", size" : ", shape"),
           plan_of("muon", change), [=](const V& w, const V& g) -> V {
             const double s = norm(g), scale = (is_by_size ? 0.2 : 1) * std::sqrt(2.0);
             const double x = iterated(s / (s + 1e-7), is_polar);
             return w - kRate * (scale * x * g / s + kDecay * w);
           }});
    }
  }
  return all;
}

/// What decays and has a trust ratio: a vector does where nothing is left out.
std::vector<Forms> exclusion_forms() {
  const auto excluding = [](const std::string& what) {
    return [what](OptimizerPlan& o) {
      o.exclude = what;
      if (o.kind == "lamb") o.bound = "none";
    };
  };
  const auto adamw = [&](const std::string& what, double decay) -> Variant {
    return {what, plan_of("adamw", excluding(what)), [decay](const V& w, const V& g) -> V {
              return w - kRate * (sign(g, kEpsilon) + decay * w);
            }};
  };
  const Variant lars_of_vectors = {"vectors", plan_of("lars", excluding("vectors")),
                                   [](const V& w, const V& g) -> V { return w - kRate * g; }};
  return {{"adamw, exclusion", {adamw("none", kDecay), adamw("vectors", 0)}, {2}},
          {"lamb, exclusion",
           {lamb("none", excluding("none"), corrected, quotient),
            lamb("vectors", excluding("vectors"), plain, one)},
           {2}},
          {"lars, exclusion",
           {lars("none", excluding("none"), by_sum_of_norms), lars_of_vectors},
           {2}}};
}

/// Where the global norm, here of one layer, is above it.
Forms clip_forms() {
  constexpr double kClip = 0.25;
  const auto by = [](const std::string& name, double clip) -> Variant {
    const auto change = [clip](OptimizerPlan& o) { o.clip = clip; };
    return {name, plan_of("sgd", change), [clip](const V& w, const V& g) -> V {
              return w - kRate * decayed(w, g * (clip > 0 ? clip / norm(g) : 1));
            }};
  };
  return {"clip", {by("off", 0), by("of the norm", kClip)}};
}

/// What implementations of LAMB do differently, several keys at once; their bounds are small here, so that
/// they are met.
struct Implementation {
  std::string name;
  std::string correction_in = "moments";  ///< empty: m and v are not corrected
  std::string bound = "none";
  double clip = 0;
  bool has_vectors = false;  ///< vectors decay and have a ratio, too
};
Variant lamb_of(const Implementation& is, bool is_vector) {
  const auto change = [is](OptimizerPlan& o) {
    o.bias_correction = !is.correction_in.empty();
    if (o.bias_correction) o.correction_in = is.correction_in;
    o.bound = is.bound;
    if (is.bound != "none") o.ratio_max = kMost;
    o.clip = is.clip;
    o.exclude = is.has_vectors ? "none" : "vectors";
  };
  const bool is_in_rate = is.correction_in == "rate";
  return {is.name, plan_of("lamb", change), [=](const V& w, const V& gradient) -> V {
            const V g = gradient * (is.clip > 0 ? std::min(1.0, is.clip / norm(gradient)) : 1);
            V r = is.correction_in == "moments" ? sign(g, kEpsilon) : first_moments(g);
            const bool is_left_out = is_vector && !is.has_vectors;
            if (!is_left_out) r += kDecay * w;
            const double most_weight = is.bound == "weights" ? kMost : HUGE_VAL;
            const double most_ratio = is.bound == "ratio" ? kMost : HUGE_VAL;
            const double ratio =
                is_left_out ? 1 : std::min(std::min(norm(w), most_weight) / norm(r), most_ratio);
            const double warm_up = is_in_rate ? std::sqrt(1 - kBeta2) / (1 - kBeta1) : 1;
            return w - kRate * warm_up * ratio * r;
          }};
}

struct LarsImplementation {
  std::string name;
  std::string rate_in = "velocity";
  bool is_norm_of_sum = false;
  std::string bound = "none";
  double most_element = 0;
};
/// Two steps by one gradient at two rates.
Variant lars_of(const LarsImplementation& is) {
  const auto change = [is](OptimizerPlan& o) {
    o.rate_in = is.rate_in;
    o.denominator = is.is_norm_of_sum ? "norm_of_sum" : "sum_of_norms";
    o.bound = is.bound;
    if (is.bound == "ratio") o.ratio_max = kMost;
    o.clip_elements = is.most_element;
  };
  return {is.name, plan_of("lars", change), [is](const V& start, const V& g) -> V {
            V w = start, v = {0, 0};
            for (const double rate : {kRate, 3 * kRate}) {
              double ratio = by_sum_of_norms(w, g);
              if (is.is_norm_of_sum) ratio = kCoefficient * norm(w) / norm(decayed(w, g));
              if (is.bound == "ratio") ratio = std::min(ratio, kMost);
              if (is.bound == "rate") ratio = std::min(ratio / rate, 1.0);
              V x = decayed(w, g);
              if (is.most_element > 0) {
                for (double& e : x) e = std::clamp(e, -is.most_element, is.most_element);
              }
              const double inside = is.rate_in == "velocity" ? rate * ratio
                                    : is.rate_in == "step"   ? ratio
                                                             : 1;
              v = kMomentum * v + inside * x;
              w -= rate * ratio / inside * v;
            }
            return w;
          }};
}

/// Those that are known to be used, each with all that it does differently.
std::vector<Forms> implementation_forms() {
  const Implementation fused = {.name = "fused, clips first", .clip = 0.25};
  const Implementation in_rate = {.name = "corrected in the rate", .correction_in = "rate"};
  const Implementation everywhere = {.name = "ratio on every tensor", .has_vectors = true};
  const Implementation ignored = {.name = "correction ignored", .correction_in = ""};
  const Implementation bounded = {
      .name = "corrected in the rate, ratio bounded", .correction_in = "rate", .bound = "ratio"};
  const Implementation first = {.name = "weight norm bounded", .bound = "weights"};
  Forms matrix{"implementations of lamb", {}}, vector{"the same, vectors", {}, {2}};
  for (const auto& is : {fused, in_rate, everywhere, ignored, bounded, first}) {
    matrix.variants.push_back(lamb_of(is, false));
  }
  for (const auto& is : {fused, in_rate, everywhere, ignored}) {
    vector.variants.push_back(lamb_of(is, true));
  }
  Forms lars{"implementations of lars", {}, {1, 2}, {kRate, 3 * kRate}};
  for (const LarsImplementation& is :
       {LarsImplementation{"the paper's"},
        LarsImplementation{"both outside, bounded, clipped", "step_with_ratio", false, "ratio",
                           0.5},
        LarsImplementation{"rate outside", "step"},
        LarsImplementation{"norm of sum", "velocity", true},
        LarsImplementation{"rate outside, bounded", "step", false, "rate"}}) {
    lars.variants.push_back(lars_of(is));
  }
  return {matrix, vector, lars};
}

std::vector<Forms> all_forms() {
  std::vector<Forms> all = {sgd_forms(), adam_forms(), muon_forms(), clip_forms()};
  for (const auto& more : {lamb_forms(), lars_forms(), exclusion_forms(), implementation_forms()})
    all.insert(all.end(), more.begin(), more.end());
  return all;
}

at::Tensor tensor_of(const V& v, const std::vector<int64_t>& shape) {
  return at::tensor(std::vector<double>(std::begin(v), std::end(v)), at::kDouble).view(shape);
}
V values_of(const at::Tensor& t) {
  return {t.flatten()[0].item<double>(), t.flatten()[1].item<double>()};
}

const std::string kName = "blocks.0.w";

V by_rule(const Forms& forms, const Variant& variant) {
  Param p;
  p.name = kName;
  p.global = p.padded = forms.shape;
  p.layout = Layout::replicated(forms.shape.size());
  std::vector<ParamShard> shards = {
      {tensor_of(kWeight, forms.shape), tensor_of(kGradient, forms.shape), &p, {}}};
  shards[0].grad_factor = clip_factor(norm(kGradient), variant.plan.clip);
  const auto optimizer = make_optimizer(variant.plan);
  for (const double rate : forms.rates) optimizer->step(shards, rate);
  return values_of(shards[0].value);
}

V by_oracle(const Forms& forms, const Variant& variant) {
  oracle::Tensors w = {{kName, tensor_of(kWeight, forms.shape)}};
  const oracle::Tensors g = {{kName, tensor_of(kGradient, forms.shape)}};
  oracle::State state;
  for (const double rate : forms.rates) {
    oracle::update(variant.plan, rate, norm(kGradient), g, w, state,
                   {{kName, {.shape = forms.shape}}});
  }
  return values_of(w.at(kName));
}

// Some dozen roundings of numbers near one, which five iterations make at most 1,000 times as large.
constexpr double kTolerance = 1e-12;
// Nothing that rounding could be taken for.
constexpr double kLeastDifference = 1e-3;

void expect_differences(V (*run)(const Forms&, const Variant&)) {
  for (const Forms& forms : all_forms()) {
    for (size_t i = 0; i < forms.variants.size(); ++i) {
      for (size_t j = 0; j < i; ++j) {
        const Variant &a = forms.variants[i], &b = forms.variants[j];
        const V predicted = a.after(kWeight, kGradient) - b.after(kWeight, kGradient);
        const V found = run(forms, a) - run(forms, b);
        EXPECT_GT(std::abs(predicted).max(), kLeastDifference)
            << forms.name << ": " << a.name << ", " << b.name;
        EXPECT_LT(V(std::abs(found - predicted)).max(), kTolerance)
            << forms.name << ": " << a.name << ", " << b.name;
      }
    }
  }
}

TEST(VariantsOfRules, DifferByWhatTheirFormulasSay) { expect_differences(by_rule); }

TEST(VariantsOfRules, DifferInTheOracleByWhatTheirFormulasSay) { expect_differences(by_oracle); }

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
