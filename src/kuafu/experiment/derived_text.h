// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "kuafu/base/config.h"
#include "kuafu/experiment/derived.h"
#include "kuafu/experiment/suite_values.h"

namespace kuafu {

/// Reads rows of `[[column]]`, `[[claim]]` and `[[figure]]`, checked for their form: keys, types,
/// formulas that parse, scripts that are there. Names are checked when the cases are known
/// (derived_check.h). Throws ConfigError "origin:line: ...".
class DerivedReader : private SuiteValues {
 public:
  explicit DerivedReader(const std::string& origin) : SuiteValues(origin), origin_(origin) {}

  Column column(const ConfigValue& table) const;
  Claim claim(const ConfigValue& table) const;
  FigureSpec figure(const ConfigValue& table) const;

 private:
  std::string formula(const ConfigValue& value, const std::string& key) const;
  Picked picked(const ConfigValue& value) const;
  void check_figure(const FigureSpec& figure, const ConfigValue& table) const;
  void check_script(const FigureSpec& figure, const ConfigValue& table) const;
  [[noreturn]] void unknown(const ConfigValue& value, const std::string& section,
                            const std::string& key, const std::vector<std::string>& known) const;

  std::string origin_;
};

}  // namespace kuafu
