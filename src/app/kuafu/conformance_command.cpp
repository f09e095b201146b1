// SPDX-License-Identifier: Apache-2.0
#include "app/kuafu/guard.h"
#include "app/kuafu/options.h"
#include "app/kuafu/programs.h"
#include "kuafu/base/errors.h"

namespace kuafu {

int conformance_command(const ConformanceCall& call) {
  require_card(call.device);
  std::vector<std::string> words = {worker_path(), "conformance"};
  words.insert(words.end(), call.schemes.begin(), call.schemes.end());
  for (const auto& name : call.sequences) words.insert(words.end(), {"--sequence", name});
  for (const auto& name : call.models) words.insert(words.end(), {"--model", name});
  for (const auto& name : call.schedules) words.insert(words.end(), {"--schedule", name});
  for (const auto& name : call.optimizers) words.insert(words.end(), {"--optimizer", name});
  for (const auto& name : call.policies) words.insert(words.end(), {"--policy", name});
  for (const auto& plugin : call.plugins) words.insert(words.end(), {"--plugin", plugin});
  std::string sizes;
  for (const int64_t size : call.sizes) sizes += text(sizes.empty() ? "" : ",", size);
  if (!sizes.empty()) words.insert(words.end(), {"--sizes", sizes});
  if (call.timeout_s > 0) words.insert(words.end(), {"--timeout", text(call.timeout_s)});
  if (!call.device.empty()) words.insert(words.end(), {"--device", call.device});
  if (!call.json.empty()) words.insert(words.end(), {"--json", call.json});
  return run_conformance(words, call.json);
}

}  // namespace kuafu
