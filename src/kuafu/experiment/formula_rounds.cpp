// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "kuafu/experiment/formula_value.h"
#include "kuafu/experiment/timing.h"

namespace kuafu {

std::optional<Value> over_rounds(const std::vector<Value>& rounds, Scale scale) {
  if (rounds.size() < 2) return std::nullopt;
  const bool is_log =
      scale == Scale::kRatio &&
      std::all_of(rounds.begin(), rounds.end(), [](const Value& v) { return v.low > 0; });
  std::vector<StepRatio> all;
  for (const Value& v : rounds) {
    const double width = is_log ? std::log(v.high / v.low) : v.high - v.low;
    if (!std::isfinite(width)) return std::nullopt;
    all.push_back({is_log ? std::log(v.number) : v.number, width / (2 * kNormal95)});
  }
  const auto [median, half] = spread_over_rounds(all);
  const double low = median - half, high = median + half;
  return is_log ? Value::within(std::exp(median), std::exp(low), std::exp(high))
                : Value::within(median, low, high);
}

}  // namespace kuafu
