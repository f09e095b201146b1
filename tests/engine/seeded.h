// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "kuafu/engine/placing/placement.h"

// Errors that are made on purpose in what schemes and models declare.
namespace kuafu::tests {

/// The axes longer than 1.
inline Axes long_axes(const std::vector<Axis>& axes) {
  Axes out;
  for (const Axis& axis : axes) {
    if (axis.size > 1) out.push_back(axis.name);
  }
  return out;
}

/// Every layout with one error of `axes` (longer than 1), and what it is.
inline std::vector<std::pair<std::string, Layout>> seeded(const Layout& layout, const Axes& axes) {
  std::vector<std::pair<std::string, Layout>> out;
  const Axes there = layout.all_axes();
  for (const std::string& axis : axes) {
    if (std::count(there.begin(), there.end(), axis) > 0) {
      Layout less = layout;
      for (Axes& dim : less.dims) std::erase(dim, axis);
      out.emplace_back("without " + axis, less);
      continue;
    }
    for (size_t d = 0; d < layout.dims.size(); ++d) {
      Layout more = layout;
      more.dims[d].push_back(axis);
      out.emplace_back(text("with ", axis, " in dim ", d), more);
    }
  }
  for (size_t a = 0; a < axes.size(); ++a) {
    for (size_t b = a + 1; b < axes.size(); ++b) {
      Layout other = layout;
      for (Axes& dim : other.dims) {
        for (std::string& axis : dim)
          axis = axis == axes[a] ? axes[b] : axis == axes[b] ? axes[a] : axis;
      }
      if (other != layout) out.emplace_back(text(axes[a], " for ", axes[b]), other);
    }
  }
  return out;
}

/// What the placement says; empty where it accepts the plan.
inline std::string refusal(const Plan& plan, const Registries& registries) {
  try {
    check_placement(plan, registries);
  } catch (const ConfigError& e) {
    return e.what();
  }
  return "";
}

/// A tensor mode and a small size of it.
struct Grid {
  const char* mode;
  const char* size;
  const char* depth;
};

}  // namespace kuafu::tests
