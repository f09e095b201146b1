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
  add(tensor_modes::kNone, make_serial);
  add(tensor_modes::k1d, make_megatron_1d);
  add(tensor_modes::k1dSp, make_megatron_sp);
  add(tensor_modes::k2d, make_tesseract_2p5d);
  add(tensor_modes::k2p5d, make_tesseract_2p5d);
  add(tensor_modes::k3d, make_cube_3d);
}

}  // namespace kuafu
