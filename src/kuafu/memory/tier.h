// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace kuafu::memory {

/// Memories that states of a model lie in. Kernels of a device read that one alone.
enum class Tier : uint8_t { kDevice, kHost, kDisk };
/// "device", "host", "disk".
const char* name_of(Tier tier);

}  // namespace kuafu::memory
