// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <string>
#include <utility>
#include <vector>

#include "kuafu/base/errors.h"
#include "kuafu/base/suggest.h"

namespace kuafu {

/// What a plug-in brought does what it may not: the message names the plug-in, what it gave and what
/// is allowed. No ConfigError: what a user gave is right.
class PluginError : public Error {
 public:
  using Error::Error;
};

/// f(). What it throws that is no std::exception can only come from one of these plug-ins, and
/// becomes a PluginError.
template <class F>
auto with_plugins(const std::vector<std::string>& plugins, F&& f) {
  try {
    return std::forward<F>(f)();
  } catch (const std::exception&) {
    throw;
  } catch (...) {
    throw PluginError(text(plugins.size() > 1 ? "one of the plug-ins " : "plug-in ", join(plugins),
                           " threw something that is no std::exception; allowed: "
                           "kuafu::ConfigError for what a user can mend, or another "
                           "std::exception"));
  }
}

}  // namespace kuafu
