// SPDX-License-Identifier: Apache-2.0
#include "kuafu/engine/registries.h"

namespace kuafu {

TensorModes Registries::tensor_modes() const {
  TensorModes modes;
  for (const auto& entry : tensor.entries()) modes[entry.name] = entry.make.mode;
  return modes;
}

Choices Registries::choices() const {
  return {.tensor = tensor_modes(),
          .models = models.names(),
          .sequence = sequence.names(),
          .schedules = schedules.names()};
}

Registries builtin_registries() {
  Registries all;
  register_tensor_schemes(all.tensor);
  register_sequence_modes(all.sequence);
  register_models(all.models);
  pipeline::register_schedules(all.schedules);
  oracle::register_models(all.oracles);
  return all;
}

}  // namespace kuafu
