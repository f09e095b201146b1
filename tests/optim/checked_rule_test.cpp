// SPDX-License-Identifier: Apache-2.0
//
// What a rule of a plug-in may not do: one error that says who, what it gave and what is allowed.

#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "kuafu/base/plugin_error.h"
#include "kuafu/optim/checked_rule.h"
#include "kuafu/optim/optimizer.h"
#include "tests/optim/axes.h"

namespace kuafu {
namespace {

/// w = w - lr g, with a slot and norms that it has no use for.
Rule sound() {
  return {.slots = {"u", "v"},
          .measure =
              [](RulePiece& p, const Rates&) {
                return at::ones({p.layers.layers, 3}, p.value.options().dtype(at::kDouble));
              },
          .num_norms = 3,
          .ratios = [](const Tensor& norms, const Rates&) { return norms.select(1, 0); },
          .update =
              [](RulePiece& p, const Rates& rates, const Tensor&) {
                p.slots[1].add_(p.grad);
                p.value.sub_(p.grad * rates.lr);
              }};
}

/// A step of the rule over a weight of 2 x 3; what it throws.
std::string thrown_by(const Rule& rule, const std::string& name = "w") {
  OptimizerRules rules("optimizer");
  rules.add("mine", "of a plug-in", {.make = [rule](const OptimizerPlan&) {
              return checked(rule, "plug-in x.so: optimizer \"mine\"");
            }});
  OptimizerPlan plan;
  plan.kind = "mine";
  Optimizer optimizer(plan, rules);
  const Mesh alone({}, 0);
  const Param weight = ParamFactory{.mesh = &alone}.make(name, {2, 3}, Layout{{Axes{}, Axes{}}}, {},
                                                         {.kind = Init::Kind::kOnes});
  std::vector<ParamShard> shards = {{.value = weight.value.detach(),
                                     .grad = at::ones({2, 3}),
                                     .param = &weight,
                                     .split_axes = {}}};
  try {
    optimizer.step(shards, 0.1);
  } catch (const PluginError& e) {
    return e.what();
  }
  return "";
}

using Measure = decltype(Rule::measure);
using Ratios = decltype(Rule::ratios);
using Update = decltype(Rule::update);
Rule with(Measure f) {
  Rule rule = sound();
  rule.measure = std::move(f);
  return rule;
}
Rule with(Ratios f) {
  Rule rule = sound();
  rule.ratios = std::move(f);
  return rule;
}
Rule with(Update f) {
  Rule rule = sound();
  rule.update = std::move(f);
  return rule;
}
Measure gives(const Tensor& sums) {
  return [sums](RulePiece&, const Rates&) { return sums; };
}
Ratios ratios_of(const Tensor& ratios) {
  return [ratios](const Tensor&, const Rates&) { return ratios; };
}
Update does(const std::function<void(RulePiece& p)>& f) {
  return [f](RulePiece& p, const Rates&, const Tensor&) { f(p); };
}

TEST(CheckedRule, OneThatKeepsToItsContractIsLeftAlone) { EXPECT_EQ(thrown_by(sound()), ""); }

TEST(CheckedRule, OneThatDoesNotIsToldWithWhatItGaveAndWhatIsAllowed) {
  const auto f64 = at::TensorOptions(at::kDouble);
  struct Case {
    Rule rule;
    std::string words;
  };
  for (const Case& c : std::vector<Case>{
           {with(gives({})), "measure gave no tensor; allowed: Double (1, 3)"},
           {with(gives(at::ones({1, 2}, f64))), "measure gave Double (1, 2); allowed: Double"},
           {with(gives(at::ones({3}, f64))), "measure gave Double (3); allowed: Double (1, 3)"},
           {with(gives(at::ones({1, 3}))), "measure gave Float (1, 3); allowed: Double (1, 3)"},
           {with(ratios_of({})), "ratios gave no tensor; allowed: Double (1)"},
           {with(ratios_of(at::ones({2}, f64))), "ratios gave Double (2); allowed: Double (1)"},
           {with(ratios_of(at::ones({}, f64))), "ratios gave Double (); allowed: Double (1)"},
           {with(does([](RulePiece& p) { p.slots[1] = p.grad * 2; })),
            "after update slot \"v\" is replaced by another tensor, Float (2, 3); allowed: "
            "changes"},
           {with(does([](RulePiece& p) { p.slots[0].resize_({7}); })),
            "after update slot \"u\" is changed from Float (2, 3) to Float (7)"},
           {with(does([](RulePiece& p) {
              p.slots[0].set_(at::ones({2, 3}));
            })),
            "after update slot \"u\" is given other memory"},
           {with(does([](RulePiece& p) { p.slots.pop_back(); })), "the piece has 1 slots"},
           {with(does([](RulePiece& p) { p.value = p.value - p.grad; })),
            "after update the value is replaced"},
           {with(does([](RulePiece&) { throw 42; })),
            "update threw something that is no std::exception; allowed"},
           {with(does([](RulePiece&) { throw std::runtime_error("no luck\nline 2"); })),
            "update threw an exception: no luck"},
           {with(does([](RulePiece&) { throw ConfigError("no such plan"); })),
            "update threw an exception: no such plan"},
           {with(does([](RulePiece& p) { p.value.add_(at::ones({5})); })),
            "update threw an error of LibTorch: The size of tensor"}}) {
    const std::string words = thrown_by(c.rule);
    EXPECT_TRUE(words.starts_with("plug-in x.so: optimizer \"mine\": " + c.words) ||
                (c.words.starts_with("the piece") && words.find(c.words) != std::string::npos))
        << words;
    EXPECT_EQ(words.find('\n'), std::string::npos) << words;
  }
}

TEST(CheckedRule, StagesOfMatricesAreHeldToTheShapesOfTheMatrix) {
  const auto with_stages = [](const Tensor& direction, const Tensor& step) {
    Rule rule = sound();
    rule.measure = {};
    rule.ratios = {};
    rule.matrix_slots = rule.slots;
    rule.direction = [direction](RulePiece&, const Rates&) { return direction; };
    rule.whole = [step](const Tensor&, const LayerSplit&) { return step; };
    return thrown_by(rule, "blocks.0.w");
  };
  const std::string who = "plug-in x.so: optimizer \"mine\": ";
  EXPECT_EQ(with_stages(at::ones({2, 3}), at::ones({2, 3})), "");
  EXPECT_EQ(
      with_stages({}, at::ones({2, 3})).find(who + "direction gave no tensor; allowed: Float"), 0u);
  EXPECT_EQ(with_stages(at::ones({3, 2}), at::ones({2, 3})).find(who + "direction gave Float (3"),
            0u);
  EXPECT_EQ(with_stages(at::ones({2, 3}), at::ones({6})).find(who + "whole gave Float (6)"), 0u);
}

// Whoever sets the budget or ended the other rank is to be told, not the plug-in.
TEST(CheckedRule, WantOfMemoryAndLostRanksStayWhatTheyAre) {
  EXPECT_THROW(thrown_by(with(does([](RulePiece&) { throw OutOfMemory(0, 1, 2, 3); }))),
               OutOfMemory);
  EXPECT_THROW(thrown_by(with(does([](RulePiece&) { throw RankLost("gone"); }))), RankLost);
}

TEST(CheckedRule, SoManyNormsAreAllowed) {
  for (const int64_t norms : {int64_t{-1}, int64_t{0}, int64_t{65}, int64_t{1} << 60}) {
    Rule rule = sound();
    rule.num_norms = norms;
    try {
      check_rule("mine", rule);
      ADD_FAILURE() << norms;
    } catch (const ConfigError& e) {
      EXPECT_NE(std::string(e.what()).find(text("num_norms = ", norms, "; allowed: 1 to 64")),
                std::string::npos)
          << e.what();
    }
  }
}

}  // namespace
}  // namespace kuafu
