// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "kuafu/base/config.h"
#include "kuafu/plan/keys.h"

namespace kuafu::plan {

/// Stores `value` under `key`. `where` opens the message: "plan.toml:7: ".
/// Throws ConfigError with the value given, what is allowed and the nearest legal value where the
/// type is wrong or the value is out of range.
void assign(const Key& key, const ConfigValue& value, std::string_view where, Plan& plan);

/// Throws ConfigError where a plan filled by a program holds a value that no document could give.
void check_values(const Plan& plan);

}  // namespace kuafu::plan
