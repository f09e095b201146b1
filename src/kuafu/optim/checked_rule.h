// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>

#include "kuafu/optim/rule.h"

namespace kuafu {

/// f(), which is `what` of a plug-in's: of what it throws, want of memory and lost ranks stay what
/// they are; all else becomes a PluginError "`who`: `what` threw: ..." in one line.
void run_foreign(const std::string& who, const std::string& what, const std::function<void()>& f);

/// A rule whose parts are held to what Rule says of them, each time: shapes and types of what they
/// give, slots and values that stay where they are. Throws PluginError beginning with `who`.
Rule checked(Rule rule, const std::string& who);

}  // namespace kuafu
