// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <string>

namespace kuafu {

/// What happened, in human units: of memory, what was asked for, and the budget where there is one.
std::string reason_of(const std::exception& cause);

/// what(), or its first 2,000 characters: that of a plug-in may be of any length.
std::string what_of(const std::exception& cause);

}  // namespace kuafu
