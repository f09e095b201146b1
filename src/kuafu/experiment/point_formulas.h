// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include "kuafu/base/config.h"
#include "kuafu/experiment/expand.h"
#include "kuafu/plan/plan.h"

namespace kuafu {

/// Whether a value is to be computed: "$key" or "= formula".
bool is_formula(const Json& value);

/// Values of a point that follow from its others. "$key" is the value of another key; "= formula"
/// is computed from other keys of the point, by their whole name or last word, and from the keys of
/// the base plan, defaults and `--set` included. What is whole becomes a whole number.
class PointFormulas {
 public:
  PointFormulas(const SuiteText& suite, Overrides overrides);

  /// Adds the formulas of the base, then computes every value. Throws ConfigError with key, line,
  /// formula and values: an unknown name (naming the nearest), a circle, no whole number where the
  /// key wants one, a division by zero.
  void follow(Point& point) const;

 private:
  friend class PointScope;
  /// The value of a plan key in the base; none where it has no such key.
  std::optional<Json> base_value(const std::string& key, bool is_comparison) const;

  const SuiteText& suite_;
  Overrides overrides_;
  /// The whole base plan, and the one without its parallel keys; read when a formula asks.
  mutable std::optional<ConfigValue> base_[2];
};

}  // namespace kuafu
