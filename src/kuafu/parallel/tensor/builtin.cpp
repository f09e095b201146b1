// SPDX-License-Identifier: Apache-2.0
#include "kuafu/parallel/tensor/interface.h"
#include "kuafu/plan/kind_names.h"

namespace kuafu {

void register_tensor_schemes(Registry<TensorScheme>& schemes) {
  const TensorModes modes = builtin_tensor_modes();
  const auto add = [&](const std::string& name, auto make) {
    const TensorMode& mode = code_of(modes, name);
    schemes.add(name, mode.summary, TensorScheme{mode, make});
  };
#define KUAFU_TENSOR_MODE(constant, name, axes, scheme, summary) \
  add(tensor_modes::constant, scheme);
#include "kuafu/plan/tensor_modes.def"
}

}  // namespace kuafu
