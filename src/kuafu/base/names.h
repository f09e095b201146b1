// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace kuafu {

inline constexpr size_t kLongestName = 64;

/// Whether plans, files and tables can have what a plug-in brings by this name: a letter or
/// digit, then letters, digits, '_' and '-' (of ASCII), at most kLongestName in all.
bool is_plain_name(std::string_view name);

/// `"two rings" is no name: it has " "; allowed: ...; nearest: "two_rings"`, for messages. Names in
/// other bytes than UTF-8, and long ones, are quoted as far as they go.
std::string problem_of_name(std::string_view name);

/// The plain name that a name nearly is: "2.5D ring" -> "2_5D_ring".
std::string plain_name_near(std::string_view name);

}  // namespace kuafu
