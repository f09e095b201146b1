// SPDX-License-Identifier: Apache-2.0
#include "kuafu/engine/registries.h"

#include <algorithm>

#include "kuafu/base/suggest.h"
#include "kuafu/plan/keys.h"

namespace kuafu {
namespace {

const std::string kSection = "optimizer.";

/// Keys of [optimizer] that a kind has to name to read.
std::vector<std::string> coefficients() {
  std::vector<std::string> names;
  for (const plan::Key& key : plan::keys()) {
    if (key.governor == kSection + "kind") names.push_back(key.name.substr(kSection.size()));
  }
  return names;
}

/// What the rule is where no key is given.
Rule default_rule(const OptimizerRules& rules, const std::string& name) {
  OptimizerPlan plan;
  plan.kind = name;
  return make_rule(plan, rules);
}

}  // namespace

TensorModes Registries::tensor_modes() const {
  TensorModes modes;
  for (const auto& entry : tensor.entries()) modes[entry.name] = entry.make.mode;
  return modes;
}

Choices Registries::choices() const {
  std::vector<OptimizerKind> kinds;
  for (const auto& entry : optimizers.entries()) {
    const Rule rule = default_rule(optimizers, entry.name);
    kinds.push_back(
        {entry.name, entry.summary, entry.make.keys, rule.is_by_layers(), rule.has_matrices()});
  }
  return {.tensor = tensor_modes(),
          .models = models.names(),
          .sequence = sequence.names(),
          .schedules = schedules.names(),
          .optimizers = kinds,
          .policies = memory::kinds_of(policies)};
}

void check_optimizers(const Registries& registries) {
  const std::vector<std::string> known = coefficients();
  for (const auto& entry : registries.optimizers.entries()) {
    const std::string who = text("optimizer ", in_quotes(entry.name));
    KUAFU_REQUIRE(entry.make.make, who, " has no make, which gives its rule");
    for (const std::string& key : entry.make.keys) {
      KUAFU_REQUIRE(std::find(known.begin(), known.end(), key) != known.end(), who, " reads a key ",
                    in_quotes(key), " that [optimizer] has not; allowed: ", join(in_quotes(known)),
                    "; nearest: ", in_quotes(nearest(key, known)));
    }
    const Rule rule = default_rule(registries.optimizers, entry.name);
    KUAFU_REQUIRE(
        registries.updates.contains(entry.name) && registries.updates.find(entry.name).update, who,
        " has no formula for certificates to hold it against; add one of that name "
        "to registries.updates");
    KUAFU_REQUIRE(registries.updates.find(entry.name).is_by_layers == rule.is_by_layers(), who,
                  rule.is_by_layers() ? " is by layers" : " is not by layers",
                  " and its formula says ",
                  "is_by_layers = ", rule.is_by_layers() ? "false" : "true",
                  ": \"auto\" of optimizer.exclude would leave out other layers");
  }
  for (const std::string& name : registries.updates.names()) {
    KUAFU_REQUIRE(
        registries.optimizers.contains(name), "the formula of an optimizer ", in_quotes(name),
        " has no rule; nearest: ", in_quotes(nearest(name, registries.optimizers.names())));
  }
}

void check_rule(const Plan& plan, const Registries& registries) {
  const std::string& kind = plan.optimizer.kind;
  if (!registries.optimizers.contains(kind)) return;
  const Rule rule = make_rule(plan.optimizer, registries.optimizers);
  const Rule usual = default_rule(registries.optimizers, kind);
  KUAFU_REQUIRE(
      rule.is_by_layers() == usual.is_by_layers() && rule.has_matrices() == usual.has_matrices(),
      "optimizer ", in_quotes(kind), " is", rule.is_by_layers() ? "" : " not",
      " by layers with these keys and is", usual.is_by_layers() ? "" : " not",
      " with their defaults; a rule's ratios and matrix_slots may not depend on its keys");
}

void check_policies(const Registries& registries) {
  for (const auto& entry : registries.policies.entries()) {
    memory::check_policy(entry.name, entry.make);
  }
}

Registries builtin_registries() {
  Registries all;
  register_tensor_schemes(all.tensor);
  register_sequence_modes(all.sequence);
  register_models(all.models);
  pipeline::register_schedules(all.schedules);
  oracle::register_models(all.oracles);
  register_optimizers(all.optimizers);
  oracle::register_updates(all.updates);
  memory::register_policies(all.policies);
  return all;
}

}  // namespace kuafu
