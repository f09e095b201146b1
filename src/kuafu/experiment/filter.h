// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kuafu/experiment/suite.h"

namespace kuafu {

/// Things with keys of which some are picked: how many, and how to read them.
struct Pickable {
  size_t size = 0;
  std::function<std::optional<std::string>(size_t i, const std::string& key)> value;
  std::vector<std::string> keys;  ///< what they differ in
};

/// Which of them have all the given values: "2", one of "2,4", or a pattern with `*` and `?`. A value
/// that has a comma itself is given whole. `option` is named in messages: "--filter".
/// Throws ConfigError with the nearest where none has the key or a value of the list, and where none
/// is left.
std::vector<size_t> picked(const Pickable& from, const Overrides& filters, std::string_view option);

/// Of all cases, each once, in their order.
std::vector<std::string> setting_names(const std::vector<Case>& cases);

/// Keeps the cases whose settings or plan have all the given values, as case_value() reads them.
std::vector<Case> filtered(const std::vector<Case>& cases, const Overrides& filters);

}  // namespace kuafu
