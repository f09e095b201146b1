// SPDX-License-Identifier: Apache-2.0
#include "kuafu/plan/plan.h"

namespace kuafu {

const std::vector<ModelKind>& builtin_model_kinds() {
  static const std::vector<ModelKind> kinds = {
      {.name = "gpt",
       .summary = "GPT-2: pre-norm, causal, tied output; options make it LLaMA or PaLM"},
      {.name = "moe_gpt",
       .summary = "GPT whose every moe_every-th MLP is a mixture of experts",
       .has_mixtures = true},
      {.name = "bert",
       .summary = "BERT: masked tokens and next sentence, every token sees every other",
       .input = ModelInput::kMaskedPairs,
       .is_causal = false},
      {.name = "vit",
       .summary = "vision transformer: patches and a class token",
       .input = ModelInput::kImages,
       .is_causal = false}};
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

}  // namespace kuafu
