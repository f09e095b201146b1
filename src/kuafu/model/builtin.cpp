// SPDX-License-Identifier: Apache-2.0
#include <map>

#include "kuafu/model/blocks.h"
#include "kuafu/plan/kind_names.h"

namespace kuafu {

void register_models(Registry<MakeModel>& models) {
  const std::map<std::string, MakeModel> makers = {
#define KUAFU_MODEL(constant, name, model, ...) {model_kinds::constant, model},
#include "kuafu/plan/models.def"
  };
  for (const ModelKind& kind : builtin_model_kinds()) {
    models.add(kind.name, kind.summary, code_of(makers, kind.name));
  }
}

}  // namespace kuafu
