// SPDX-License-Identifier: Apache-2.0
#include "kuafu/experiment/timing.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <string>
#include <system_error>

#include "kuafu/base/errors.h"
#include "kuafu/record/schema.h"

namespace kuafu {
namespace {

constexpr double kNormal95 = 1.959963984540054;  ///< of a 95 % interval, in standard errors

/// Where a standard normal lies above with probability `tail`, by bisection.
double normal_quantile(double tail) {
  double low = 0, high = 40;
  for (int i = 0; i < 100; ++i) {
    const double middle = (low + high) / 2;
    (0.5 * std::erfc(middle / std::sqrt(2.0)) > tail ? low : high) = middle;
  }
  return low;
}

std::optional<StepRatio> of_one(const Json& document) {
  const Json median = value_at(document, "step_time_s.median");
  const Json low = value_at(document, "step_time_s.ci95.0");
  const Json high = value_at(document, "step_time_s.ci95.1");
  if (!median.is_number() || !low.is_number() || !high.is_number()) return std::nullopt;
  if (low <= 0 || median <= 0 || high < low) return std::nullopt;
  return StepRatio{std::log(median.get<double>()),
                   std::log(high.get<double>() / low.get<double>()) / (2 * kNormal95)};
}

}  // namespace

std::optional<StepRatio> step_ratio(const Json& a, const Json& b) {
  const auto before = of_one(a), after = of_one(b);
  if (!before || !after) return std::nullopt;
  return StepRatio{after->log - before->log, std::hypot(before->error, after->error)};
}

double process_scatter(const std::vector<StepRatio>& ratios) {
  if (ratios.size() < kFewestRatios) return 0;
  double square = 0;
  for (const StepRatio& r : ratios) square += r.log * r.log - r.error * r.error;
  return std::sqrt(std::max(0.0, square / static_cast<double>(ratios.size())));
}

std::vector<Timing> judge_times(const std::vector<StepRatio>& ratios, double smallest_effect) {
  const double scatter = process_scatter(ratios), effect = std::log1p(smallest_effect);
  const double width =
      normal_quantile(0.025 / static_cast<double>(std::max<size_t>(1, ratios.size())));
  std::vector<Timing> verdicts;
  for (const StepRatio& r : ratios) {
    const double half = width * std::hypot(r.error, scatter);
    const double low = r.log - half, high = r.log + half;
    verdicts.push_back(low > effect                       ? Timing::kSlower
                       : high < -effect                   ? Timing::kFaster
                       : low >= -effect && high <= effect ? Timing::kSame
                                                          : Timing::kInconclusive);
  }
  return verdicts;
}

double parse_share(std::string_view share, std::string_view option) {
  const bool is_percent = share.ends_with('%');
  const std::string_view number = share.substr(0, share.size() - (is_percent ? 1 : 0));
  double value = 0;
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), value);
  const bool is_number = error == std::errc() && end == number.data() + number.size();
  if (is_percent) value /= 100;
  const std::string hint = is_number && !is_percent && value > 1 && value <= 100
                               ? text("; did you mean ", share, "%?")
                               : "";
  KUAFU_REQUIRE(is_number && value >= 0 && value <= 1, option, " ", share,
                ": expected a share from 0% to 100%, such as 5% or 0.05", hint);
  return value;
}

}  // namespace kuafu
