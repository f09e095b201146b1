// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "kuafu/base/errors.h"
#include "kuafu/base/suggest.h"

namespace kuafu {

/// Ends the message of a name that is not known, where a plug-in may bring it: how to give one, or
/// that those given do not.
inline std::string plugin_hint(const std::vector<std::string>& given) {
  if (given.empty()) return "; or give the plug-in that has it with --plugin FILE";
  return text(given.size() == 1 ? "; plug-in " : "; plug-ins ", join(given),
              given.size() == 1 ? " has" : " have", " none of that name");
}

}  // namespace kuafu
