// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "kuafu/conformance/findings.h"
#include "kuafu/engine/registries.h"

namespace kuafu::conformance {

/// A registry whose choices promise something.
struct Kind {
  std::string name;  ///< "scheme"
  std::string what;  ///< "tensor mode", for messages
  std::function<std::vector<std::string>(const Registries&)> names;
  std::vector<int64_t> sizes;  ///< rank counts, where none are given; none: it chooses its own
  /// Everything about one choice.
  std::function<std::vector<Finding>(const Registries&, const std::string& name,
                                     const std::vector<int64_t>& sizes)>
      check;
};

/// scheme, sequence, model, schedule.
const std::vector<Kind>& kinds();

}  // namespace kuafu::conformance
