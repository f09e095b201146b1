// SPDX-License-Identifier: Apache-2.0
#include "kuafu/experiment/timing.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <system_error>

#include "kuafu/base/errors.h"
#include "kuafu/base/worlds.h"
#include "kuafu/record/schema.h"
#include "kuafu/record/table.h"

namespace kuafu {
namespace {

constexpr double kMiddleHalf = 0.6744897501960817;  ///< of a normal lies within so many of them
constexpr double kUnknown = std::numeric_limits<double>::infinity();
constexpr double kPi = 3.14159265358979323846;

/// Where a probability that falls from x = 0 on reaches `wanted`, by bisection.
double where_it_falls_to(double wanted, double most, const std::function<double(double)>& tail) {
  double low = 0, high = most;
  for (int i = 0; i < 200; ++i) {
    const double middle = (low + high) / 2;
    (tail(middle) > wanted ? low : high) = middle;
  }
  return low;
}

/// Where a standard normal lies above with probability `tail`.
double normal_quantile(double tail) {
  return where_it_falls_to(tail, 40, [](double x) { return 0.5 * std::erfc(x / std::sqrt(2.0)); });
}

/// Probability that a Student t lies within +- x: its finite sums for whole degrees of freedom.
/// [Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.3 and 26.7.4]
double student_within(double x, int64_t degrees) {
  const double angle = std::atan(x / std::sqrt(static_cast<double>(degrees)));
  const double cosine = std::cos(angle);
  const bool is_odd = degrees % 2 == 1;
  double term = is_odd ? cosine : 1, sum = 0;
  for (int64_t k = is_odd ? 1 : 0; k <= degrees - 2; k += 2) {
    sum += term;
    term *= cosine * cosine * static_cast<double>(k + 1) / static_cast<double>(k + 2);
  }
  const double within = std::sin(angle) * sum;
  return is_odd ? 2 / kPi * (angle + within) : within;
}

double median_of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  return n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

/// Median of the rounds' medians, and an interval of 95 % of what it estimates.
///
/// With x_r the logarithm of round r's median: x_r = mu + p_r + w_r, where p_r is how this process and
/// this moment differ from others and w_r the error within the process. The sample variance s^2 of the
/// x_r over n rounds estimates var(p) + var(w), so both are in +- t s / sqrt(n), the interval of their
/// mean, with t Student's for n - 1 degrees of freedom. Two corrections, both to the wide side:
/// - of few rounds s may come out small by chance. var(w) is known from the steps of each process, and
///   nothing known of n processes is closer than z sqrt(var(w) / n), z = 1.96: the wider one counts;
/// - the median of n normal values has a larger standard error than their mean: by 1.16 for 3, 1.20
///   for 5, sqrt(pi / 2) = 1.25 in the limit, which is taken for all n from 3 on (for 2 both are one).
Spread spread_of(const std::vector<StepRatio>& rounds) {
  const auto n = static_cast<double>(rounds.size());
  std::vector<double> logs;
  double mean = 0, square = 0, within = 0;
  for (const StepRatio& r : rounds) {
    logs.push_back(r.log);
    mean += r.log / n;
    if (std::isfinite(r.error))
      within += r.error * r.error / n;  // what is not known widens nothing
  }
  for (const double x : logs) square += (x - mean) * (x - mean) / (n - 1);
  const double of_median = rounds.size() > 2 ? std::sqrt(kPi / 2) : 1;
  const double t = student_95(static_cast<int64_t>(rounds.size()) - 1);
  const double half =
      of_median * std::max(t * std::sqrt(square / n), kNormal95 * std::sqrt(within / n));
  return {median_of(logs), half};
}

Json over_rounds(const std::vector<StepRatio>& rounds) {
  const auto [log, half] = spread_of(rounds);
  return {{"median", std::exp(log)}, {"ci95", {std::exp(log - half), std::exp(log + half)}}};
}

Json of_one_ratio(const StepRatio& ratio) {
  if (!std::isfinite(ratio.error)) return {{"median", std::exp(ratio.log)}, {"ci95", nullptr}};
  const double half = kNormal95 * ratio.error;
  return {{"median", std::exp(ratio.log)},
          {"ci95", {std::exp(ratio.log - half), std::exp(ratio.log + half)}}};
}

std::optional<StepRatio> of_one(const Json& document) {
  const Json median = value_at(document, "step_time_s.median");
  const Json low = value_at(document, "step_time_s.ci95.0");
  const Json high = value_at(document, "step_time_s.ci95.1");
  if (!median.is_number() || median <= 0) return std::nullopt;
  if (!low.is_number() || !high.is_number())
    return StepRatio{std::log(median.get<double>()), kUnknown};
  if (low <= 0 || high < low) return std::nullopt;
  return StepRatio{std::log(median.get<double>()),
                   std::log(high.get<double>() / low.get<double>()) / (2 * kNormal95)};
}

/// Which give no interval (kNoInterval).
bool is_of_two_rounds(const Json& timed) { return value_at(timed, "step_time_s.rounds") == 2; }

}  // namespace

Pass pass_of(const Json& entry) {
  const Json sweep = value_at(entry, "sweep");
  return {entry["round"].get<int64_t>(),
          sweep.is_string() ? sweep.get<std::string>() : std::string()};
}

std::optional<StepRatio> step_ratio(const Json& a, const Json& b) {
  const auto before = of_one(a), after = of_one(b);
  if (!before || !after) return std::nullopt;
  return StepRatio{after->log - before->log, std::hypot(before->error, after->error)};
}

Spread spread_over_rounds(const std::vector<StepRatio>& rounds) {
  KUAFU_CHECK(rounds.size() > 1, "an interval over ", rounds.size(), " rounds");
  return spread_of(rounds);
}

double student_95(int64_t degrees) {
  KUAFU_CHECK(degrees > 0, "a Student t of ", degrees, " degrees of freedom");
  return where_it_falls_to(0.05, 100, [&](double x) { return 1 - student_within(x, degrees); });
}

Json timing_of(const Json& rounds) {
  std::vector<StepRatio> times;
  std::vector<double> tokens;  // of a step
  Json only = nullptr;
  for (const Json& round : rounds) {
    const Json median = value_at(round, "step_time_s.median");
    if (round["status"] != "ok" || !median.is_number() || median <= 0) continue;
    only = round["step_time_s"];
    const std::optional<StepRatio> time = of_one(round);
    times.push_back(time ? *time : StepRatio{std::log(median.get<double>()), 0});
    const Json rate = value_at(round, "tokens_per_s");
    if (rate.is_number()) tokens.push_back(rate.get<double>() * median.get<double>());
  }
  if (times.empty()) return nullptr;
  const Json time = times.size() == 1 ? only : over_rounds(times);
  return {{"rounds", times.size()},
          {"step_time_s", time},
          {"tokens_per_s",
           tokens.empty() ? Json(nullptr) : Json(tokens.front() / time["median"].get<double>())}};
}

Json paired_step_ratio(const Json& a, const Json& b) {
  std::vector<StepRatio> ratios;
  const Json of_a = value_at(a, "rounds"), of_b = value_at(b, "rounds");
  if (!of_a.is_array() || !of_b.is_array()) {
    if (const auto ratio = step_ratio(a["document"], b["document"])) ratios.push_back(*ratio);
  }
  for (size_t i = 0; i < of_a.size(); ++i) {
    for (size_t j = 0; j < of_b.size(); ++j) {
      if (pass_of(of_a[i]) != pass_of(of_b[j])) continue;
      if (const auto ratio = step_ratio(of_a[i], of_b[j])) ratios.push_back(*ratio);
    }
  }
  Json paired = {{"rounds", ratios.size()}};
  if (ratios.empty()) {
    const Json all_a = timed_document(a), all_b = timed_document(b);
    auto apart = step_ratio(all_a, all_b);
    if (!apart) return nullptr;
    if (is_of_two_rounds(all_a) || is_of_two_rounds(all_b)) apart->error = kUnknown;
    paired.update(of_one_ratio(*apart));
    return paired;
  }
  paired.update(ratios.size() == 1 ? of_one_ratio(ratios.front()) : over_rounds(ratios));
  return paired;
}

double largest_foreign_share(const Json& line) {
  double largest = 0;
  const auto see = [&](const Json& share) {
    if (share.is_number()) largest = std::max(largest, share.get<double>());
  };
  see(value_at(line, "document.load.foreign_share"));
  const Json rounds = value_at(line, "rounds");
  for (size_t i = 0; i < rounds.size(); ++i) {
    see(value_at(rounds, text(i, ".load.foreign_share")));
  }
  return largest;
}

Json timed_document(const Json& line) {
  Json document = line["document"];
  const Json timing = value_at(line, "timing");
  if (!timing.is_object() || !value_at(document, "step_time_s").is_object()) return document;
  document["step_time_s"].update(timing["step_time_s"]);
  document["step_time_s"]["rounds"] = timing["rounds"];
  document["tokens_per_s"] = value_at(timing, "tokens_per_s");
  if (const double share = largest_foreign_share(line); share > 0) {
    document["load"]["foreign_share"] = share;
  }
  return document;
}

bool is_estimated(const Json& document) {
  const Json world = value_at(document, "world");
  return world.is_string() && is_estimated_world(world.get<std::string>());
}

std::string shown_step_time(const Json& document) {
  const Json median = value_at(document, "step_time_s.median");
  const Json low = value_at(document, "step_time_s.ci95.0");
  const Json high = value_at(document, "step_time_s.ci95.1");
  if (!median.is_number()) return "-";
  const auto ms = [](const Json& v) { return human_number(v.get<double>() * 1e3, 3); };
  if (is_estimated(document)) return text(kEstimatedMark, ms(median));
  if (!low.is_number() || !high.is_number() || is_of_two_rounds(document)) {
    return ms(median) + " [-]";
  }
  return text(ms(median), " [", ms(low), ", ", ms(high), "]");
}

double process_scatter(const std::vector<StepRatio>& ratios, Errors errors) {
  if (ratios.size() < kFewestRatios) return 0;
  double square = 0, of_errors = 0;
  std::vector<double> sizes, squares;
  for (const StepRatio& r : ratios) {
    square += r.log * r.log;
    const double known = std::isfinite(r.error) ? r.error : 0;
    of_errors += known * known;
    sizes.push_back(std::abs(r.log));
    squares.push_back(known * known);
  }
  const auto n = static_cast<double>(ratios.size());
  if (errors == Errors::kMixed) return std::sqrt(square / n);
  if (errors == Errors::kOfOneProcess) return std::sqrt(std::max(0.0, (square - of_errors) / n));
  const double deviation = median_of(sizes) / kMiddleHalf;
  return std::sqrt(std::max(0.0, deviation * deviation - median_of(squares)));
}

std::vector<Timing> judge_times(const std::vector<StepRatio>& ratios, double smallest_effect,
                                Errors errors) {
  const double scatter = process_scatter(ratios, errors), effect = std::log1p(smallest_effect);
  const double width =
      normal_quantile(0.025 / static_cast<double>(std::max<size_t>(1, ratios.size())));
  const bool knows_processes = ratios.size() >= kFewestRatios || errors == Errors::kOfRounds;
  std::vector<Timing> verdicts;
  for (const StepRatio& r : ratios) {
    const double half = width * std::hypot(r.error, scatter);
    const double low = r.log - half, high = r.log + half;
    const bool may_differ = knows_processes || r.error == 0;
    verdicts.push_back(low > effect && may_differ         ? Timing::kSlower
                       : high < -effect && may_differ     ? Timing::kFaster
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
