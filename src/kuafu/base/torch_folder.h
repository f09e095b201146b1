// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdlib>
#include <string>

#include "kuafu/base/build_folders.h"

namespace kuafu {

/// The folder of LibTorch's Python package: KUAFU_TORCH_DIR, for programs that were built on another
/// machine, else the one that this build was made with.
inline std::string torch_folder() {
  const char* const given = std::getenv("KUAFU_TORCH_DIR");
  const bool is_given = given != nullptr && *given != '\0';
  return is_given ? std::string(given) : std::string(build_info::kTorchDir);
}

}  // namespace kuafu
