// SPDX-License-Identifier: Apache-2.0
//
// Plug-ins that claim to come from another build: they must be refused before anything of them
// runs.

#include <torch/version.h>

#include <cstdlib>

#include "kuafu/engine/plugin.h"

namespace {

#ifdef OTHER_ABI
constexpr uint32_t kAbi = KUAFU_PLUGIN_ABI + 1;
constexpr const char* kTorch = TORCH_VERSION;
#else
constexpr uint32_t kAbi = KUAFU_PLUGIN_ABI;
constexpr const char* kTorch = "1.0.0";
#endif

void add(kuafu::Registries&) { std::abort(); }  // nobody may call it

}  // namespace

extern "C" const kuafu::PluginInfo* kuafu_plugin() {
  static const kuafu::PluginInfo kInfo = {
      .abi = kAbi, .torch = kTorch, .name = "other build", .version = "1", .add = add};
  return &kInfo;
}
