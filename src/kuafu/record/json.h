// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json.hpp>

namespace kuafu {

/// A JSON value whose objects keep the order in which their fields were written.
using Json = nlohmann::ordered_json;

}  // namespace kuafu
