// SPDX-License-Identifier: Apache-2.0
#include "kuafu/plan/kind_names.h"
#include "kuafu/plan/plan.h"

namespace kuafu {

const std::vector<ModelKind>& builtin_model_kinds() {
  static const std::vector<ModelKind> kinds = {
#define KUAFU_MODEL(constant, name_, model, oracle, ...) \
  {.name = model_kinds::constant, __VA_ARGS__},
#include "kuafu/plan/models.def"
  };
  return kinds;
}

std::vector<std::string> builtin_model_names() {
  std::vector<std::string> names;
  for (const ModelKind& kind : builtin_model_kinds()) names.push_back(kind.name);
  return names;
}

namespace {

const ModelKind& facts_of(const std::string& name) {
  static const ModelKind plugins;
  for (const ModelKind& kind : builtin_model_kinds()) {
    if (kind.name == name) return kind;
  }
  return plugins;
}

}  // namespace

ModelInput ModelPlan::input() const { return facts_of(kind).input; }
bool ModelPlan::is_causal() const { return facts_of(kind).is_causal; }
bool ModelPlan::has_mixtures() const { return facts_of(kind).has_mixtures; }
int64_t ModelPlan::first_position() const { return facts_of(kind).first_position; }

}  // namespace kuafu
