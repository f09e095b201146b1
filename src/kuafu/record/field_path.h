// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace kuafu {

/// "memory.peak_bytes.0" in its parts.
std::vector<std::string> parts_of(std::string_view path);

/// What a document has at a path: "a number" or "a text"; empty where it is a list or a table, may be
/// any (inside of `plan` and `provenance`), or is no field.
std::string kind_at(std::string_view path);

}  // namespace kuafu
