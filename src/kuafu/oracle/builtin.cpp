// SPDX-License-Identifier: Apache-2.0
#include <map>

#include "kuafu/oracle/formulas.h"
#include "kuafu/oracle/transformer.h"
#include "kuafu/plan/kind_names.h"

namespace kuafu::oracle {

void register_models(Registry<MakeModel>& models) {
  const std::map<std::string, MakeModel> makers = {
#define KUAFU_MODEL(constant, name, model, oracle, ...) {model_kinds::constant, oracle},
#include "kuafu/plan/models.def"
  };
  for (const std::string& kind : builtin_model_names()) {
    models.add(kind, "after the papers' listings", code_of(makers, kind));
  }
}

std::unique_ptr<Model> make_model(const ModelPlan& plan, uint64_t seed) {
  Registry<MakeModel> models("oracle");
  register_models(models);
  return models.contains(plan.kind) ? models.find(plan.kind)(plan, seed) : nullptr;
}

void register_updates(UpdateRules& rules) {
  const std::map<std::string, UpdateRule (*)()> formulas = {
#define KUAFU_OPTIMIZER(constant, name, rule, formula, ...) {optimizer_kinds::constant, formula},
#include "kuafu/plan/optimizers.def"
  };
  for (const OptimizerKind& kind : builtin_optimizer_kinds()) {
    rules.add(kind.name, kind.summary, code_of(formulas, kind.name)());
  }
}

const UpdateRules& builtin_updates() {
  static const UpdateRules all = [] {
    UpdateRules rules("formula of an optimizer");
    register_updates(rules);
    return rules;
  }();
  return all;
}

}  // namespace kuafu::oracle
