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
  std::vector<int64_t> sizes;  ///< rank counts, where none are given
  /// Everything about one choice, until a size at which something is wrong. Throws ConfigError where
  /// none of the sizes is one that it has.
  std::function<std::vector<Finding>(const Registries&, const std::string& name,
                                     const std::vector<int64_t>& sizes, const Tell& tell)>
      check;
};

/// scheme, sequence, model, schedule, optimizer, policy.
const std::vector<Kind>& kinds();

}  // namespace kuafu::conformance
