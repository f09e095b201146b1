// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "kuafu/record/json.h"

namespace kuafu {

/// Prints the document of a run that ended, in a few lines.
void print_summary(const Json& document, const std::string& stopped = "");

}  // namespace kuafu
