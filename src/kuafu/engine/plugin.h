// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "kuafu/engine/registries.h"

namespace kuafu {

/// What a plug-in must have been built with to be loaded: compiler, LibTorch and the interface
/// version, folded into one number. Grows with every change of a public header.
inline constexpr uint32_t kPluginInterface = 23;
#define KUAFU_PLUGIN_ABI                                                   \
  (::kuafu::kPluginInterface * 100000000u + __GNUC__ * 1000000u + 20000u + \
   __cplusplus / 100 % 10000)

/// A shared object exports one C symbol: `extern "C" const kuafu::PluginInfo* kuafu_plugin()`.
struct PluginInfo {
  uint32_t abi;       ///< KUAFU_PLUGIN_ABI
  const char* torch;  ///< TORCH_VERSION
  const char* name;
  const char* version;
  void (*add)(Registries& registries);
};

/// Loads a plug-in and lets it add to the registries; it stays loaded until the process ends.
/// Throws ConfigError: missing file, no kuafu_plugin symbol, another ABI or LibTorch (both values
/// shown), a name that is taken or none (names.h), an optimizer that cannot be one. What a rule of it
/// does wrong later, in a step or in a certificate, is a PluginError.
void load_plugin(const std::string& path, Registries& registries);

}  // namespace kuafu
