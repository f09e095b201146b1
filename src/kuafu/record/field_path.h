// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace kuafu {

/// "memory.peak_bytes.0" in its parts.
std::vector<std::string> parts_of(std::string_view path);

}  // namespace kuafu
