// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace kuafu {

/// What may be the cause where a library ended a process without a word of ours: "; the system gives
/// a process at most 684 MiB (ulimit -v), ...". Empty where the system sets no limit.
std::string limit_of_memory();

}  // namespace kuafu
