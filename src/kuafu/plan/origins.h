// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "kuafu/plan/plan.h"

namespace kuafu::plan {

/// Where keys were given: "plan.toml:7: " by key; empty for a plan that no document wrote.
class Origins {
 public:
  void note(const std::string& key, const std::string& where) { where_[key] = where; }
  /// Whether the document or the command line gave it.
  bool has(const std::string& key) const { return where_.count(key) > 0; }
  /// Of the first of `keys` that was given.
  std::string of(const std::vector<std::string>& keys) const;
  /// The message behind the place of the first key it names that was given. As it is where it names
  /// none, or has a place already.
  std::string located(const std::string& message) const;

 private:
  std::map<std::string, std::string> where_;
};

/// Where a document and the command line give their keys. Throws as parse_values does.
Origins origins_of(std::string_view toml, std::string_view origin, const Overrides& overrides = {});

/// Keys that a message names in full, in the order of their first mention; "parallel.data" counts
/// as parallel.data.size.
std::vector<std::string> keys_named(std::string_view message);

/// Runs `body`; a ConfigError or Refused that leaves it has its message located. Other types, those
/// derived from ConfigError too, pass as they are, but for NotDivisible, which becomes a Refused.
void with_origins(const Origins& origins, const std::function<void()>& body);

}  // namespace kuafu::plan
