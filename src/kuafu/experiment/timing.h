// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "kuafu/record/json.h"

namespace kuafu {

/// What the step times of a pair of cases say of B against A.
enum class Timing : uint8_t {
  kSame,          ///< the interval of B / A lies within the smallest effect
  kSlower,        ///< it lies above it
  kFaster,        ///< it lies below it
  kInconclusive,  ///< it spans one of its ends
  kNotCompared
};

/// B / A of two medians, as logarithm.
struct StepRatio {
  double log = 0;
  double error = 0;  ///< standard error, from the 95 % intervals of the two medians
};

/// None where a document has no step time, or an interval that begins at 0.
std::optional<StepRatio> step_ratio(const Json& a, const Json& b);

/// How much ratios of one process a side scatter beyond their own errors: the root of their mean
/// square, less that of the errors. Around 1, not around their mean: a machine that was slower as a
/// whole in one of the runs is scatter too. 0 of fewer than kFewestRatios.
double process_scatter(const std::vector<StepRatio>& ratios);
inline constexpr size_t kFewestRatios = 4;

/// The verdict of each ratio. Its interval, error and scatter together, is of 95 % for all of them at
/// once (Bonferroni). `smallest_effect` 0.05: from 1 / 1.05 to 1.05 is the same.
std::vector<Timing> judge_times(const std::vector<StepRatio>& ratios, double smallest_effect);

/// A share from 0 to 1, of "5%" or "0.05". Throws ConfigError naming the option.
double parse_share(std::string_view share, std::string_view option);

}  // namespace kuafu
