// SPDX-License-Identifier: Apache-2.0
//
// Schemes, sequence modes, models and schedules that are wrong from 64 elements on, or from a fifth
// micro-batch on, as a plug-in.

#include <torch/version.h>

#include "kuafu/engine/plugin.h"
#include "tests/plugin/from_64.h"

extern "C" const kuafu::PluginInfo* kuafu_plugin() {
  static const kuafu::PluginInfo kInfo = {.abi = KUAFU_PLUGIN_ABI,
                                          .torch = TORCH_VERSION,
                                          .name = "from-64",
                                          .version = "1",
                                          .add = kuafu::tests::add_from_64};
  return &kInfo;
}
