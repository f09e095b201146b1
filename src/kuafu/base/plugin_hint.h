// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

namespace kuafu {

/// Ends the message of a name that is not known, where a plug-in may bring it.
inline constexpr std::string_view kOrPlugin = "; or give the plug-in that has it with --plugin";

}  // namespace kuafu
