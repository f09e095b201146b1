// SPDX-License-Identifier: Apache-2.0
#include "app/worker/plan_json.h"

#include <sstream>

#include <toml++/toml.h>

namespace kuafu {

nlohmann::ordered_json plan_json(const Plan& plan) {
  std::ostringstream out;
  out << toml::json_formatter(toml::parse(to_toml(plan)));
  return nlohmann::ordered_json::parse(out.str());
}

}  // namespace kuafu
