// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>
#include <vector>

namespace kuafu {

/// A file of templates/, as CMake found it: "scheme/plan.toml".
struct Template {
  std::string_view path, text;
};

/// All of them.
const std::vector<Template>& templates();

}  // namespace kuafu
