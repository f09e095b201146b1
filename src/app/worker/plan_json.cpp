// SPDX-License-Identifier: Apache-2.0
#include "app/worker/plan_json.h"

#include <sstream>

#include <toml++/toml.h>

namespace kuafu {

namespace {

/// With what "auto" became, where the kind is one of ours.
Plan without_auto(Plan plan) {
  OptimizerPlan& o = plan.optimizer;
  for (const OptimizerKind& kind : builtin_optimizer_kinds()) {
    if (kind.name != o.kind) continue;
    o.exclude = o.leaves_vectors_out(kind.is_by_layers) ? "vectors" : "none";
    o.bound = o.bounded();
  }
  return plan;
}

}  // namespace

nlohmann::ordered_json plan_json(const Plan& plan) {
  std::ostringstream out;
  out << toml::json_formatter(toml::parse(whole_toml(without_auto(plan))));
  return nlohmann::ordered_json::parse(out.str());
}

}  // namespace kuafu
