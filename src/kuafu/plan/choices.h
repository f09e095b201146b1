// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "kuafu/memory/policy_kinds.h"
#include "kuafu/parallel/pipeline/choose.h"
#include "kuafu/plan/plan.h"

namespace kuafu {

/// What a plan may name: what this build brings, and what plug-ins add.
struct Choices {
  TensorModes tensor = builtin_tensor_modes();
  std::vector<std::string> models = builtin_model_names(), sequence = builtin_sequence_names(),
                           schedules = pipeline::schedule_names();
  std::vector<OptimizerKind> optimizers = builtin_optimizer_kinds();
  std::vector<memory::PolicyKind> policies = memory::builtin_policy_kinds();
  std::vector<std::string> plugins = {};  ///< files that were given, for messages
};

/// parse_plan and load_plan of plan.h where plug-ins may have added to any of the choices.
Plan parse_plan(std::string_view toml, std::string_view origin, const Choices& choices,
                const Overrides& overrides = {});
Plan load_plan(const std::string& path, const Choices& choices, const Overrides& overrides = {});

}  // namespace kuafu
