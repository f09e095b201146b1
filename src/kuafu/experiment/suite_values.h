// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kuafu/base/config.h"
#include "kuafu/base/errors.h"
#include "kuafu/experiment/suite_text.h"

namespace kuafu {

/// Values of a suite's TOML as C++, each with a message "origin:line: key: expected ..." (a
/// ConfigError) where it is something else.
class SuiteValues {
 public:
  explicit SuiteValues(std::string origin) : origin_(std::move(origin)) {}

  template <class... Args>
  void require(bool condition, int line, const Args&... message) const {
    KUAFU_REQUIRE(condition, origin_, ":", line, ": ", message...);
  }

  /// A number, true, false or text.
  Json scalar(const ConfigValue& value) const;
  /// A list of those; a single one is a list of one.
  std::vector<Json> scalars(const ConfigValue& value) const;
  /// Text that is not empty.
  std::string string(const ConfigValue& value, const std::string& key) const;
  std::vector<std::string> strings(const ConfigValue& value, const std::string& key) const;
  std::vector<int64_t> whole_numbers(const ConfigValue& value, const std::string& key,
                                     int64_t least) const;
  /// Above 0.
  double seconds(const ConfigValue& value, const std::string& key) const;
  /// 0 or more.
  double tolerance(const ConfigValue& value, const std::string& key) const;
  bool boolean(const ConfigValue& value, const std::string& key) const;
  /// A table whose leaves are single values, as dotted keys.
  Settings single_settings(const ConfigValue& table, const std::string& name) const;
  /// Appends the leaves of a value as choices, dotted keys under `key`.
  void collect(const ConfigValue& value, const std::string& key,
               std::vector<SweptKey>& choices) const;

 private:
  /// Finite and not negative; `expected`: what the error says was wanted.
  double number(const ConfigValue& value, const std::string& key, const char* expected) const;

  std::string origin_;
};

}  // namespace kuafu
