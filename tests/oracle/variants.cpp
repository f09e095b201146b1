// SPDX-License-Identifier: Apache-2.0
//
// Variants of one key, each with its formula.

#include "tests/oracle/variants.h"

#include <algorithm>
#include <cmath>

namespace kuafu::variants {

double norm(const V& v) { return std::sqrt((v * v).sum()); }
V decayed(const V& w, const V& g) { return g + kDecay * w; }
double by_sum_of_norms(const V& w, const V& g) {
  return kCoefficient * norm(w) / (norm(g) + kDecay * norm(w));
}
V sign(const V& g, double epsilon) { return g / (std::abs(g) + epsilon); }
V first_moments(const V& g) {
  return (1 - kBeta1) * g / (std::sqrt(1 - kBeta2) * std::abs(g) + kEpsilon);
}

OptimizerPlan plan_of(const std::string& kind, const std::function<void(OptimizerPlan&)>& change) {
  OptimizerPlan plan{.kind = kind, .lr = kRate, .weight_decay = kDecay, .clip = 0};
  plan.momentum = kMomentum;
  plan.coefficient = kCoefficient;
  plan.beta1 = kBeta1, plan.beta2 = kBeta2, plan.epsilon = kEpsilon;
  change(plan);
  return plan;
}

namespace {

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
             const double x = iterated(s / ((is_polar ? 1.01 : 1) * s + 1e-7), is_polar);
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
}  // namespace

std::vector<Forms> forms_of_keys() {
  std::vector<Forms> all = {sgd_forms(), adam_forms(), muon_forms(), clip_forms()};
  for (const auto& more : {lamb_forms(), lars_forms(), exclusion_forms()}) {
    all.insert(all.end(), more.begin(), more.end());
  }
  return all;
}

}  // namespace kuafu::variants
