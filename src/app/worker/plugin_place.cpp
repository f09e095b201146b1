// SPDX-License-Identifier: Apache-2.0
#include "app/worker/plugin_place.h"

#include <string>
#include <utility>

#include "kuafu/base/plugin_error.h"
#include "kuafu/plan/keys.h"

namespace kuafu {
namespace {

/// What errors of plug-ins call a choice, and the key that makes it.
constexpr std::pair<const char*, const char*> kChoices[] = {
    {"optimizer", "optimizer.kind"},
    {"model", "model.kind"},
    {"tensor mode", "parallel.tensor.mode"},
    {"sequence mode", "parallel.sequence.mode"},
    {"pipeline schedule", "parallel.pipeline.schedule"},
    {"memory policy", "memory.policy"}};

/// "plan.toml:3: optimizer.kind = "mine": " before the words, where they are of the plan's choice.
std::string placed(const std::string& words, const Plan& plan, const plan::Origins& origins) {
  if (!words.starts_with("plug-in ")) return words;
  for (const auto& [kind, name] : kChoices) {
    const std::string value = plan::print(*plan::find_key(name), plan);
    if (words.find(text(": ", kind, " ", value)) == std::string::npos) continue;
    return text(origins.of({name}), name, " = ", value, ": ", words);
  }
  return words;
}

}  // namespace

void with_plugin_place(const Plan& plan, const std::function<plan::Origins()>& origins,
                       const std::function<void()>& body) {
  try {
    body();
  } catch (const PluginError& e) {
    throw PluginError(placed(e.what(), plan, origins()));
  }
}

}  // namespace kuafu
