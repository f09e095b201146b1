// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace kuafu {

/// One named mesh axis and its number of ranks.
struct Axis {
  std::string name;
  int64_t size = 1;
  bool operator==(const Axis&) const = default;
};

/// Names of mesh axes, major first.
using Axes = std::vector<std::string>;

/// Names that stand for several axes of a mesh, major first: "data" = replica.expert.
using AxisAliases = std::map<std::string, Axes>;

/// "data.row", or "-" for none.
std::string to_string(const Axes& axes);

}  // namespace kuafu
