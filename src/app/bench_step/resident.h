// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

// Memory of this process as Linux tells it. Throws ConfigError where /proc does not.
namespace kuafu {

/// Bytes resident now.
int64_t resident_bytes();
/// Most bytes resident since restart_resident_peak().
int64_t resident_peak();
void restart_resident_peak();

}  // namespace kuafu
