// SPDX-License-Identifier: Apache-2.0
//
// Optimizers that a plug-in brings: what is refused when they are registered, and what certificates
// find out about them.

#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <memory>

#include "kuafu/comm/worlds.h"
#include "kuafu/conformance/optimizers.h"
#include "kuafu/conformance/trial_runs.h"
#include "tests/record/support.h"
#include "tests/support/plans.h"

namespace kuafu {
namespace {

using tests::keys::both;

/// u = mu u + g + wd w; w = w - lr u / 2. The rule takes `share` of it for a half.
Rule half_steps(const OptimizerPlan& plan, double share = 0.5) {
  const auto update = [mu = plan.momentum, share](RulePiece& p, const Rates& rates, const Tensor&) {
    const Tensor g = p.grad.to(p.value.scalar_type()) * p.grad_factor;
    p.slots[0].mul_(mu).add_(g + p.weight_decay * p.value);
    p.value.sub_(p.slots[0] * (share * rates.lr));
  };
  return {.slots = {"u"}, .update = update};
}
Tensor half_formula(const oracle::Step& s, const Tensor& g, const Tensor& theta) {
  Tensor& u = s.slot("u", theta);
  u = s.plan.momentum * u + g + s.lambda * theta;
  return theta - s.alpha * 0.5 * u;
}

/// Steps of each layer have 1 / 100 of its length: w = w - lr / 100 |w| / |g| g.
Rule even_steps(const OptimizerPlan&) {
  const auto measure = [](RulePiece& p, const Rates&) {
    return ops::lars_norms(p.value, p.grad, p.grad_factor, p.layers);
  };
  const auto ratios = [](const Tensor& norms, const Rates&) {
    const Tensor none = is_zero_layer(norms);
    return norms.select(1, 0) * 0.01 / (norms.select(1, 1) + none) * (-none + 1) + none;
  };
  const auto update = [](RulePiece& p, const Rates& rates, const Tensor& ratio) {
    ops::lars(p.value, p.grad, p.slots[0], ratio * rates.lr, {1, 0, p.weight_decay, p.grad_factor},
              p.layers);
  };
  return {.slots = {"last"}, .measure = measure, .ratios = ratios, .update = update};
}
Tensor even_formula(const oracle::Step& s, const Tensor& g, const Tensor& theta) {
  Tensor ratio = at::ones_like(theta);
  if (s.is_scaled) {
    const Tensor w = oracle::norms_of_layers(theta, s.shape),
                 n = oracle::norms_of_layers(g, s.shape);
    ratio = at::where(w.gt(0).logical_and(n.gt(0)), 0.01 * w / n, ratio);
  }
  Tensor& last = s.slot("last", theta);
  last = s.alpha * ratio * (g + s.lambda * theta);
  return theta - last;
}

Registries with(const std::string& name, OptimizerRule rule, oracle::UpdateRule formula) {
  Registries all = builtin_registries();
  all.optimizers.add(name, "of a plug-in", std::move(rule));
  if (formula.update) all.updates.add(name, "of a plug-in", std::move(formula));
  return all;
}
OptimizerRule made_by(Rule rule) {
  return {.make = [rule](const OptimizerPlan&) { return rule; }};
}
Registries halves(double share = 0.5) {
  const auto make = [share](const OptimizerPlan& plan) { return half_steps(plan, share); };
  return with("half", {.keys = {"momentum"}, .make = make}, {half_formula});
}
Registries evens() { return with("even", {.make = even_steps}, {even_formula, true}); }

Plan placed(const Registries& registries, const std::string& kind, const Overrides& more) {
  const Overrides settings = {{"optimizer.kind", kind}, {"model.hidden", "36"},
                              {"model.heads", "6"},     {"model.mlp", "swiglu"},
                              {"train.batch", "4"},     {"data.kind", "synthetic"},
                              {"model.sequence", "6"},  {"train.steps", "3"}};
  return conformance::placed_plan(registries, both(settings, more));
}
/// The verdict, and what it says.
std::string verdict_of(const Registries& registries, const std::string& kind,
                       const Overrides& more) {
  const Plan plan = placed(registries, kind, more);
  RunOptions options;
  options.is_certified = true;
  options.make_data = conformance::made_up_data;
  Certificate c;
  run_on_threads(static_cast<int>(num_ranks(plan)), [&](Communicator& world) {
    const RankResult result = run_rank(plan, registries, world, options);
    if (world.rank() == 0) c = result.certificate;
  });
  return text(c.verdict, ": ", c.describe(), "; native ", c.native.describe());
}
void expect_equal(const Registries& registries, const std::string& kind, const Overrides& more) {
  const std::string said = verdict_of(registries, kind, more);
  EXPECT_TRUE(said.starts_with("equal")) << said;
}

TEST(OwnOptimizer, ThatCannotBeOneIsRefusedWithTheReason) {
  const Rule sound = half_steps({});
  const auto changed = [&](auto change) {
    Rule rule = sound;
    change(rule);
    return made_by(rule);
  };
  struct Case {
    OptimizerRule rule;
    oracle::UpdateRule formula;
    std::string words;
  };
  const oracle::UpdateRule formula{half_formula};
  const std::vector<Case> cases = {
      {changed([](Rule& r) { r.slots = {"master"}; }), formula, "a slot \"master\", the name of"},
      {changed([](Rule& r) { r.slots = {"a.b"}; }), formula, "a slot \"a.b\"; allowed: small"},
      {changed([](Rule& r) { r.slots = {""}; }), formula, "a slot \"\"; allowed"},
      {changed([](Rule& r) {
         r.slots = {"u", "u"};
       }),
       formula, "two slots \"u\""},
      {changed([](Rule& r) { r.update = {}; }), formula, "has no update"},
      {changed([](Rule& r) { r.ratios = even_steps({}).ratios; }), formula,
       "ratios and no measure"},
      {changed([](Rule& r) { r.measure = even_steps({}).measure; }), formula,
       "measure and no ratio"},
      {changed([](Rule& r) { r.num_norms = 0; }), formula, "num_norms = 0"},
      {{.make = {}}, formula, "has no make"},
      {{.keys = {"momentun"}, .make = even_steps}, formula, "nearest: \"momentum\""},
      {{.make = even_steps}, formula, "is_by_layers = false"},
      {made_by(sound), {half_formula, true}, "is_by_layers = true"},
      {made_by(sound), {}, "has no formula"}};
  for (const Case& c : cases) {
    try {
      check_optimizers(with("mine", c.rule, c.formula));
      ADD_FAILURE() << "taken: " << c.words;
    } catch (const ConfigError& e) {
      const std::string words = e.what();
      EXPECT_NE(words.find("optimizer \"mine\""), std::string::npos) << words;
      EXPECT_NE(words.find(c.words), std::string::npos) << words;
    }
  }
  EXPECT_THROW(with("lamb", made_by(sound), formula), ConfigError);
  Registries formula_alone = builtin_registries();
  formula_alone.updates.add("mine", "alone", formula);
  EXPECT_THROW(check_optimizers(formula_alone), ConfigError);
  EXPECT_NO_THROW(check_optimizers(halves()));
  EXPECT_NO_THROW(check_optimizers(evens()));
  EXPECT_NO_THROW(check_optimizers(builtin_registries()));
}

TEST(OwnOptimizer, IsNamedAndReadsTheKeysThatItNames) {
  const Registries all = halves();
  const auto parse = [&](const Overrides& settings) {
    return parse_plan("", "plan.toml", all.choices(), settings);
  };
  EXPECT_EQ(parse({{"optimizer.kind", "half"}, {"optimizer.momentum", "0.5"}}).optimizer.kind,
            "half");
  for (const auto& [settings, words] : std::vector<std::pair<Overrides, std::string>>{
           {{{"optimizer.kind", "hafl"}}, "nearest: \"half\""},
           {{{"optimizer.kind", "half"}, {"optimizer.beta1", "0.5"}},
            "no effect with optimizer.kind = \"half\""},
           {{{"optimizer.momentum", "0.5"}},
            "set optimizer.kind = \"sgd\", \"lars\", \"muon\" or \"half\""}}) {
    try {
      parse(settings);
      ADD_FAILURE() << "taken: " << words;
    } catch (const ConfigError& e) {
      EXPECT_NE(std::string(e.what()).find(words), std::string::npos) << e.what();
    }
  }
}

TEST(OwnOptimizer, IsCertifiedUnderShards) {
  const Overrides cut = {{"parallel.tensor.mode", "1d"},
                         {"parallel.tensor.size", "2"},
                         {"parallel.data", "2"},
                         {"parallel.zero", "2"},
                         {"train.micro_batch", "1"}};
  expect_equal(halves(), "half", both(cut, {{"optimizer.lr", "0.1"}, {"model.dtype", "bf16"}}));
  expect_equal(evens(), "even", both(cut, {{"optimizer.lr", "0.5"}, {"model.dtype", "f32"}}));
}

TEST(OwnOptimizer, UnderStalenessIsReplayedByItsFormulaOrRefused) {
  const Overrides stale = {{"parallel.data", "2"},
                           {"parallel.data.mode", "parameter_server"},
                           {"parallel.data.staleness", "1"},
                           {"optimizer.clip", "0"},
                           {"optimizer.lr", "0.3"}};
  expect_equal(halves(), "half", stale);
  const std::string wrong = verdict_of(halves(0.7), "half", stale);
  EXPECT_TRUE(wrong.starts_with("different")) << wrong;
  EXPECT_THROW(placed(evens(), "even", stale), Refused);
}

// A step of 0.01 % more than the formula's is some 800 roundings of the step in f32.
TEST(OwnOptimizer, ThatIsNotItsFormulaIsRefuted) {
  const std::string why = verdict_of(halves(0.50005), "half", {{"optimizer.lr", "0.1"}});
  EXPECT_TRUE(why.starts_with("different")) << why;
  const auto other_slot = [](const OptimizerPlan& plan) {
    Rule rule = half_steps(plan);
    rule.slots = {"other"};
    return rule;
  };
  const Registries renamed =
      with("half", {.keys = {"momentum"}, .make = other_slot}, {half_formula});
  const std::string slots = verdict_of(renamed, "half", {});
  EXPECT_NE(slots.find("no rank holds u of"), std::string::npos) << slots;
}

/// even_steps() that takes its ratios of the sums of this rank's pieces alone.
Rule even_steps_of_a_shard(const OptimizerPlan& plan) {
  Rule rule = even_steps(plan);
  const auto sums = std::make_shared<std::map<const void*, Tensor>>();
  rule.measure = [measure = rule.measure, sums](RulePiece& p, const Rates& rates) {
    return (*sums)[p.value.const_data_ptr()] = measure(p, rates);
  };
  rule.update = [update = rule.update, ratios = rule.ratios, sums](RulePiece& p, const Rates& rates,
                                                                   const Tensor& right) {
    const bool is_left_out = p.value.numel() == 0 || right.eq(1).all().item<bool>();
    if (is_left_out) return update(p, rates, right);
    const Tensor own = ratios(sums->at(p.value.const_data_ptr()).sqrt(), rates);
    update(p, rates, own);
  };
  return rule;
}
Rule even_steps_below_a_bound(const OptimizerPlan& plan) {
  Rule rule = even_steps(plan);
  rule.ratios = [ratios = rule.ratios](const Tensor& norms, const Rates& rates) {
    const Tensor right = ratios(norms, rates);
    return right.clamp_max(0.5 * right.max().item<double>());
  };
  return rule;
}

/// m = mu m + (1 - mu) g; w = w - lr m / (1 - mu^t). The rule may leave the quotient out.
Registries means(bool is_corrected) {
  const auto make = [is_corrected](const OptimizerPlan& plan) -> Rule {
    const auto update = [mu = plan.momentum, is_corrected](RulePiece& p, const Rates& rates,
                                                           const Tensor&) {
      const Tensor g = p.grad.to(p.value.scalar_type()) * p.grad_factor;
      p.slots[0].mul_(mu).add_(g, 1 - mu);
      const double share = is_corrected ? 1 - std::pow(mu, static_cast<double>(rates.step)) : 1;
      p.value.sub_((p.slots[0] / share + p.weight_decay * p.value) * rates.lr);
    };
    return {.slots = {"m"}, .update = update};
  };
  const auto formula = [](const oracle::Step& s, const Tensor& g, const Tensor& theta) {
    Tensor& m = s.slot("m", theta);
    m = s.plan.momentum * m + (1 - s.plan.momentum) * g;
    const double share = 1 - std::pow(s.plan.momentum, static_cast<double>(s.t));
    return theta - s.alpha * (m / share + s.lambda * theta);
  };
  return with("mean", {.keys = {"momentum"}, .make = make}, {formula});
}

/// even_steps() that leaves steps of f32 weights below 28 of their roundings out.
Rule even_steps_without_small_ones(const OptimizerPlan& plan) {
  Rule rule = even_steps(plan);
  rule.update = [update = rule.update](RulePiece& p, const Rates& rates, const Tensor& ratio) {
    const Tensor before = p.value.clone();
    update(p, rates, ratio);
    if (before.scalar_type() != at::kFloat) return;
    const Tensor is_small = (p.value - before).abs() < 28 * 0x1p-24 * before.abs();
    p.value.copy_(at::where(is_small, before, p.value));
  };
  return rule;
}

// Each lost step is within the bound of its element, and the norm of the weights stands still.
TEST(OwnOptimizer, ThatLeavesSmallStepsOutIsRefuted) {
  const Overrides slow = {{"optimizer.lr", "1e-4"}, {"model.dtype", "f32"}};  // steps: 17 roundings
  expect_equal(evens(), "even", slow);
  const std::string why = verdict_of(
      with("even", {.make = even_steps_without_small_ones}, {even_formula, true}), "even", slow);
  EXPECT_NE(why.find("; native different"), std::string::npos) << why;
  EXPECT_NE(why.find("the step of"), std::string::npos) << why;
}

/// A rule of this build that decays f32 weights by `share` of what it should. `is_own`: as a rule whose
/// roundings nobody has derived.
Registries decaying_by(double share, bool is_own, const std::string& kind = "adamw") {
  const Registries built_in = builtin_registries();
  const OptimizerRule original = built_in.optimizers.find(kind);
  const auto make = [share, original](const OptimizerPlan& plan) {
    Rule rule = original.make(plan);
    const auto of_share = [share](RulePiece& p, const auto& body) {
      const double decay = p.weight_decay;
      if (p.value.scalar_type() == at::kFloat) p.weight_decay *= share;
      body();
      p.weight_decay = decay;
    };
    rule.update = [update = rule.update, of_share](RulePiece& p, const Rates& rates,
                                                   const Tensor& ratios) {
      of_share(p, [&] { update(p, rates, ratios); });
    };
    if (!rule.measure) return rule;
    rule.measure = [measure = rule.measure, of_share](RulePiece& p, const Rates& rates) {
      Tensor norms;
      of_share(p, [&] { norms = measure(p, rates); });
      return norms;
    };
    return rule;
  };
  oracle::UpdateRule formula = built_in.updates.find(kind);
  if (is_own) formula.rounding = {};
  return with("decaying", {.keys = original.keys, .make = make}, formula);
}

// A decay of 1e-6 is 17 roundings of each weight, within the bounds of all of them.
TEST(OwnOptimizer, ThatLeavesTheDecayOutIsRefuted) {
  const Overrides slow = {{"optimizer.lr", "1e-4"}, {"optimizer.weight_decay", "0.01"}};
  for (const bool is_own : {true, false}) {
    for (const char* type : {"f32", "bf16"}) {
      const Overrides plan = both(slow, {{"model.dtype", type}});
      expect_equal(decaying_by(1, is_own), "decaying", plan);
      for (const double share : {0, -1}) {
        const std::string why = verdict_of(decaying_by(share, is_own), "decaying", plan);
        EXPECT_NE(why.find("; native different"), std::string::npos) << share << type << why;
        EXPECT_NE(why.find("along the weights, the step of"), std::string::npos) << why;
      }
    }
  }
}

// The same of rules by layers, whose ratio makes rate x decay of a layer 2e-6 and more.
TEST(OwnOptimizer, OfLayersThatLeavesTheDecayOutIsRefuted) {
  for (const bool is_own : {true, false}) {
    for (const auto& [kind, lr] : {std::pair{"lamb", "0.02"}, {"lars", "1"}}) {
      const Overrides plan = {
          {"optimizer.lr", lr}, {"optimizer.weight_decay", "0.01"}, {"model.dtype", "f32"}};
      expect_equal(decaying_by(1, is_own, kind), "decaying", plan);
      for (const double share : {0, -1}) {
        const std::string why = verdict_of(decaying_by(share, is_own, kind), "decaying", plan);
        EXPECT_NE(why.find("; native different"), std::string::npos) << kind << is_own << why;
      }
    }
  }
}

/// v = mu v + (1 - mu) g^2; w = w - lr g / (sqrt(v / (1 - mu^t)) + 1e-8). The rule computes the
/// correction of f32 values in f32, as many an implementation does; `share` of it.
Registries roots_corrected_in_f32(double share) {
  const auto make = [share](const OptimizerPlan& plan) -> Rule {
    const auto update = [mu = plan.momentum, share](RulePiece& p, const Rates& rates,
                                                    const Tensor&) {
      const Tensor g = p.grad.to(p.value.scalar_type()) * p.grad_factor;
      p.slots[0].mul_(mu).add_(g * g, 1 - mu);
      const auto t = static_cast<double>(rates.step);
      const float narrow = 1 - std::pow(static_cast<float>(mu), static_cast<float>(t));
      const bool is_wide = p.value.scalar_type() == at::kDouble;
      const double corrected = is_wide ? 1 - std::pow(mu, t) : share * static_cast<double>(narrow);
      p.value.sub_(g / ((p.slots[0] / corrected).sqrt() + 1e-8) * rates.lr);
    };
    return {.slots = {"v"}, .update = update};
  };
  const auto formula = [](const oracle::Step& s, const Tensor& g, const Tensor& theta) {
    const double mu = s.plan.momentum;
    Tensor& v = s.slot("v", theta);
    v = mu * v + (1 - mu) * g * g;
    const double share = 1 - std::pow(mu, static_cast<double>(s.t));
    return theta - s.alpha * g / ((v / share).sqrt() + 1e-8);
  };
  return with("root", {.keys = {"momentum"}, .make = make}, {formula});
}

// 1 - 0.999 in f32 is some 200 roundings off, at a large rate far above those of the weights.
TEST(OwnOptimizer, MayCorrectItsMomentsInF32) {
  const Overrides fast = {{"optimizer.lr", "1"},
                          {"train.steps", "1"},
                          {"model.dtype", "f32"},
                          {"optimizer.momentum", "0.999"}};
  expect_equal(roots_corrected_in_f32(1), "root", fast);
  const std::string why = verdict_of(roots_corrected_in_f32(1 + 0x1p-11), "root", fast);
  EXPECT_NE(why.find("; native different"), std::string::npos) << why;
}

// What implementations of LARS and LAMB get wrong, in rules of one's own.
TEST(OwnOptimizer, MutantsAreRefutedInEveryType) {
  const Overrides zero = {{"parallel.data", "2"}, {"parallel.zero", "1"}, {"optimizer.lr", "0.5"}};
  const auto refuted = [&](const Registries& all, const std::string& kind) {
    for (const char* type : {"f32", "f64"}) {
      const std::string why = verdict_of(all, kind, both(zero, {{"model.dtype", type}}));
      EXPECT_TRUE(why.starts_with("different")) << kind << " in " << type << ": " << why;
    }
  };
  expect_equal(evens(), "even", zero);
  refuted(with("even", {.make = even_steps_of_a_shard}, {even_formula, true}), "even");
  refuted(with("even", {.make = even_steps_below_a_bound}, {even_formula, true}), "even");
  expect_equal(means(true), "mean", zero);
  refuted(means(false), "mean");
}

/// Muon whose steps are `share` as long.
Registries shortened_muon(double share) {
  const Registries built_in = builtin_registries();
  const auto make = [share](const OptimizerPlan& plan) {
    Rule rule = make_muon(plan);
    rule.update = [update = rule.update, share](RulePiece& p, const Rates& rates,
                                                const Tensor& ratios) {
      update(p, {.lr = share * rates.lr, .step = rates.step}, ratios);
    };
    return rule;
  };
  return with("shortened", {.keys = built_in.optimizers.find("muon").keys, .make = make},
              built_in.updates.find("muon"));
}

// An iteration on the transpose gives strides of it.
TEST(OwnOptimizer, MayGiveStepsOfMatricesThatAreNotContiguous) {
  const Registries built_in = builtin_registries();
  const auto make = [](const OptimizerPlan& plan) {
    Rule rule = make_muon(plan);
    rule.whole = [whole = rule.whole](const Tensor& d, const LayerSplit& layers) {
      return whole(d, layers).t().contiguous().t();
    };
    return rule;
  };
  const Registries strided =
      with("strided", {.keys = built_in.optimizers.find("muon").keys, .make = make},
           built_in.updates.find("muon"));
  expect_equal(strided, "strided", {{"parallel.data", "2"}, {"parallel.zero", "1"}});
}

// Gradients of bf16 are clipped inside the update, in f32: the part of the run's own type says it.
TEST(OwnOptimizer, WrongStepsOfMuonInClippedBf16AreRefutedInThatType) {
  const Overrides clipped = {
      {"model.dtype", "bf16"}, {"optimizer.clip", "0.01"}, {"optimizer.lr", "0.02"}};
  expect_equal(shortened_muon(1), "shortened", clipped);
  const std::string why = verdict_of(shortened_muon(0.98), "shortened", clipped);
  EXPECT_NE(why.find("; native different"), std::string::npos) << why;
}

TEST(OwnOptimizer, PassesConformanceAndAForgetfulOneDoesNot) {
  const auto failed = [](const Registries& all, const std::string& name) {
    std::string first;
    for (const conformance::Finding& f : conformance::check_optimizer(all, name, {1})) {
      if (!f.is_ok && first.empty()) first = f.check + ": " + f.detail;
    }
    return first;
  };
  // Momentum kept by the rule itself is no state that anything saves or cuts.
  const auto forgetful = [](const OptimizerPlan&) -> Rule {
    const auto steps = std::make_shared<int64_t>(0);
    return {
        .slots = {}, .update = [steps](RulePiece& p, const Rates& rates, const Tensor&) {
          p.value.sub_(p.grad.to(p.value.scalar_type()) * (p.grad_factor * rates.lr / ++*steps));
        }};
  };
  const auto formula = [](const oracle::Step& s, const Tensor& g, const Tensor& theta) {
    return theta - s.alpha * g / static_cast<double>(s.t);
  };
  EXPECT_EQ(failed(with("forgetful", {.make = forgetful}, {formula}), "forgetful").substr(0, 6),
            "state:");
  EXPECT_THROW(conformance::check_optimizer(halves(), "half", {64}), ConfigError);
}

// Its slots have other names now: also where the run was saved under another horizon (--stop-at).
TEST(OwnOptimizer, WhoseSavedStateIsAnotherBuildsIsRefused) {
  const auto build = [](const char* slot) {
    return with(
        "mine",
        made_by({.slots = {slot}, .update = [](RulePiece&, const Rates&, const Tensor&) {}}),
        {half_formula});
  };
  const auto run = [&](const char* slot, const Overrides& more, SaveOptions save) {
    const Registries registries = build(slot);
    RunOptions options;
    options.make_data = conformance::made_up_data;
    options.checkpoint = std::move(save);
    const Plan plan = placed(registries, "mine", more);
    run_on_threads(1, [&](Communicator& world) { run_rank(plan, registries, world, options); });
  };
  const Overrides whole = {{"optimizer.schedule", "cosine"}};
  const Overrides part = {{"train.steps", "2"}, {"optimizer.schedule_steps", "3"}};
  for (const Overrides& stopped : {whole, both(whole, part)}) {
    const test::TemporaryFolder folder;
    run("v", stopped, {.folder = folder.path(), .every = 2});
    std::filesystem::remove_all(folder / "step-00000003");
    EXPECT_NO_THROW(run("v", whole, {.folder = folder.path(), .resumes = true}));
    std::filesystem::remove_all(folder / "step-00000003");
    try {
      run("w2", whole, {.folder = folder.path(), .resumes = true});
      ADD_FAILURE() << "not refused";
    } catch (const ConfigError& e) {
      EXPECT_NE(std::string(e.what()).find("has no tensor mine.w2."), std::string::npos)
          << e.what();
    }
  }
}

// By own ops, which tell the rank's book, and by ATen's.
TEST(OwnOptimizer, RulesOfThisBuildMakeNoOpsThatNothingBooks) {
  for (const std::string& name : builtin_optimizer_names()) {
    const auto found = conformance::check_optimizer(builtin_registries(), name, {1});
    EXPECT_TRUE(std::any_of(found.begin(), found.end(), [](const auto& f) {
      return f.check == "ops" && f.is_ok;
    })) << name;
  }
}

}  // namespace
}  // namespace kuafu
