// SPDX-License-Identifier: Apache-2.0
#include "kuafu/plan/plan.h"

namespace kuafu {

const std::vector<ModelKind>& builtin_model_kinds() {
  static const std::vector<ModelKind> kinds = {
      {"gpt", "GPT-2: pre-norm, causal, tied output; options make it LLaMA or PaLM"},
      {"moe_gpt", "GPT whose every moe_every-th MLP is a mixture of experts"},
      {"bert", "BERT: masked tokens and next sentence, every token sees every other"},
      {"vit", "vision transformer: patches and a class token"}};
  return kinds;
}

std::vector<std::string> builtin_model_names() {
  std::vector<std::string> names;
  for (const ModelKind& kind : builtin_model_kinds()) names.push_back(kind.name);
  return names;
}

}  // namespace kuafu
