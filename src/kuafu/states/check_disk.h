// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace kuafu {

/// Throws ConfigError, by the name of the key, where memory.disk_path is no folder that slots can
/// lie in on this machine.
void check_disk(const std::string& folder);

}  // namespace kuafu
