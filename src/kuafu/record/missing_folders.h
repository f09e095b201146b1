// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace kuafu {

// A call that makes folders and fails leaves none of them.

/// `folder` and those above it that are not there, the innermost first.
std::vector<std::string> missing_folders(const std::string& folder);
/// Removes those of them that hold nothing, in this order, as far as they are there by now.
void remove_empty_folders(const std::vector<std::string>& folders);

}  // namespace kuafu
