// SPDX-License-Identifier: Apache-2.0
#include "kuafu/engine/plugin.h"

#include <dlfcn.h>

#include <string_view>

#include <torch/csrc/api/include/torch/version.h>

#include "kuafu/base/errors.h"

namespace kuafu {

void load_plugin(const std::string& path, Registries& registries) {
  // A bare name would be searched in system folders: a plug-in is a file.
  const std::string file = path.find('/') == std::string::npos ? "./" + path : path;
  void* library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  KUAFU_REQUIRE(library != nullptr, "cannot load plug-in ", path, ": ", dlerror());
  using Entry = const PluginInfo* (*)();
  const auto entry = reinterpret_cast<Entry>(dlsym(library, "kuafu_plugin"));
  KUAFU_REQUIRE(entry != nullptr, path,
                " is no Kuafu plug-in: it has no symbol kuafu_plugin (extern \"C\" const "
                "kuafu::PluginInfo* kuafu_plugin())");
  const PluginInfo* info = entry();
  KUAFU_REQUIRE(info != nullptr && info->abi == KUAFU_PLUGIN_ABI, "plug-in ", path, " has ABI ",
                info == nullptr ? 0 : info->abi, ", this build has ", KUAFU_PLUGIN_ABI,
                "; rebuild the plug-in with this build's headers and compiler");
  KUAFU_REQUIRE(std::string_view(info->torch) == TORCH_VERSION, "plug-in ", info->name,
                " was built with LibTorch ", info->torch, ", this build with ", TORCH_VERSION,
                "; rebuild the plug-in");
  info->add(registries);
  try {
    check_optimizers(registries);
  } catch (const ConfigError& error) {
    throw ConfigError(text("plug-in ", path, ": ", error.what()));
  }
}

}  // namespace kuafu
