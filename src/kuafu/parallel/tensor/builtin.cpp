// SPDX-License-Identifier: Apache-2.0
#include "kuafu/parallel/tensor/interface.h"

namespace kuafu {

void register_tensor_schemes(Registry<TensorScheme>& schemes) {
  const TensorModes modes = builtin_tensor_modes();
  const auto add = [&](const std::string& name, auto make) {
    const TensorMode& mode = modes.at(name);
    schemes.add(name, mode.summary, TensorScheme{mode, make});
  };
  add("none", make_serial);
  add("1d", make_megatron_1d);
  add("1d-sp", make_megatron_sp);
  add("2d", make_tesseract_2p5d);
  add("2.5d", make_tesseract_2p5d);
  add("3d", make_cube_3d);
}

}  // namespace kuafu
