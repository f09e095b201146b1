// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "kuafu/base/errors.h"
#include "kuafu/base/suggest.h"
#include "kuafu/optim/rule.h"
#include "kuafu/plan/kind_names.h"

namespace kuafu {
namespace {

constexpr int64_t kMostNorms = 64;

}  // namespace

void check_betas(const OptimizerPlan& plan) {
  KUAFU_REQUIRE(plan.beta1 >= 0 && plan.beta1 < 1 && plan.beta2 >= 0 && plan.beta2 < 1,
                "optimizer.beta1 = ", plan.beta1, ", beta2 = ", plan.beta2,
                "; allowed are 0 <= beta < 1");
}

void check_momentum(const OptimizerPlan& plan) {
  KUAFU_REQUIRE(plan.momentum >= 0 && plan.momentum < 1, "optimizer.momentum = ", plan.momentum,
                "; allowed are 0 <= momentum < 1");
}

Tensor within_bounds(const OptimizerPlan& plan, const Tensor& ratio, const Rates& rates) {
  const std::string what = plan.bounded();
  if (what == "ratio") return ratio.clamp(plan.ratio_min, plan.ratio_max);
  if (what != "rate") return ratio;
  return rates.lr > 0 ? (ratio / rates.lr).clamp_max(1.0) : at::ones_like(ratio);
}

double correction_of_rate(const OptimizerPlan& plan, int64_t t) {
  const auto steps = static_cast<double>(t);
  return std::sqrt(1 - std::pow(plan.beta2, steps)) / (1 - std::pow(plan.beta1, steps));
}

Tensor is_zero_layer(const Tensor& norms) {
  // A double: an integer is converted first, on the CPU but not on meta, and traces would differ.
  return at::minimum(norms.select(1, 0), norms.select(1, 1)).sign().neg() + 1.0;
}

bool holds_hidden_matrices(const Param& p) {
  return p.name.starts_with("blocks.") && !holds_vectors(p);
}

void register_optimizers(OptimizerRules& rules) {
  const std::map<std::string, Rule (*)(const OptimizerPlan&)> makers = {
#define KUAFU_OPTIMIZER(constant, name, rule, ...) {optimizer_kinds::constant, rule},
#include "kuafu/plan/optimizers.def"
  };
  for (const OptimizerKind& kind : builtin_optimizer_kinds()) {
    rules.add(kind.name, kind.summary, {kind.keys, code_of(makers, kind.name)});
  }
}

const OptimizerRules& builtin_optimizers() {
  static const OptimizerRules all = [] {
    OptimizerRules rules("optimizer");
    register_optimizers(rules);
    return rules;
  }();
  return all;
}

/// Names that checkpoints can have, each once.
void check_slots(const std::string& who, const std::vector<std::string>& slots) {
  for (size_t i = 0; i < slots.size(); ++i) {
    const std::string& slot = slots[i];
    const bool is_word = !slot.empty() && slot.find_first_not_of(
                                              "abcdefghijklmnopqrstuvwxyz"
                                              "0123456789_") == std::string::npos;
    KUAFU_REQUIRE(is_word && slot != "master", who, " has a slot ", in_quotes(slot),
                  slot == "master" ? ", the name of the f32 copies of half-precision weights" : "",
                  "; allowed: small letters, digits and _, as in \"velocity\"");
    const auto before = slots.begin() + static_cast<std::ptrdiff_t>(i);
    KUAFU_REQUIRE(std::find(slots.begin(), before, slot) == before, who, " has two slots ",
                  in_quotes(slot), "; rename one of them");
  }
}

void check_rule(const std::string& name, const Rule& rule) {
  const std::string who = text("optimizer ", in_quotes(name));
  KUAFU_REQUIRE(rule.update, who, " has no update; a rule is at least {.update = ...}");
  KUAFU_REQUIRE(!rule.ratios || rule.measure, who,
                " has ratios and no measure, which gives the sums that norms are made of; add "
                ".measure, or leave .ratios out");
  KUAFU_REQUIRE(!rule.measure || rule.ratios, who,
                " has a measure and no ratios: nothing would read its norms; add .ratios, or do "
                "its part in .update");
  KUAFU_REQUIRE(rule.num_norms >= 1 && rule.num_norms <= kMostNorms, who,
                " has num_norms = ", rule.num_norms, "; allowed: 1 to ", kMostNorms,
                ", of each layer; nearest: ", std::clamp<int64_t>(rule.num_norms, 1, kMostNorms));
  const bool has_stages = rule.direction && rule.whole;
  KUAFU_REQUIRE(
      has_stages == rule.has_matrices() && (has_stages || !(rule.direction || rule.whole)), who,
      rule.has_matrices() ? " has matrix_slots" : " has no matrix_slots", " and ",
      rule.direction ? "a direction" : "no direction", " and ", rule.whole ? "a whole" : "no whole",
      "; allowed: all three, or none of them");
  check_slots(who, rule.slots);
  check_slots(who, rule.matrix_slots);
}

Rule make_rule(const OptimizerPlan& plan, const OptimizerRules& rules) {
  Rule rule = rules.find(plan.kind).make(plan);
  check_rule(plan.kind, rule);
  return rule;
}

}  // namespace kuafu
