// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
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

inline constexpr double kNormal95 = 1.959963984540054;  ///< of a 95 % interval, in standard errors

/// B / A of two medians, as logarithm.
struct StepRatio {
  double log = 0;
  double error = 0;  ///< standard error, from the 95 % intervals of the two medians; infinite where
                     ///< too few steps give one
};

/// A pass over the cases: one round of one call of `kuafu suite`. Runs of a pass follow each other;
/// equal rounds of two calls may lie days apart.
struct Pass {
  int64_t round = 0;
  std::string sweep;  ///< the call, 16 hex digits; empty in records from before it was told

  auto operator<=>(const Pass&) const = default;
};
/// That of an entry of a line's `rounds`.
Pass pass_of(const Json& entry);

/// None where a document has no step time, or an interval that begins at 0.
std::optional<StepRatio> step_ratio(const Json& a, const Json& b);

/// Where a Student t of so many degrees of freedom lies within +- this in 95 % of cases.
/// @pre degrees > 0
double student_95(int64_t degrees);

/// The median of what each round gives, and half the width of its 95 % interval: what the rounds
/// differ by, never less than what the errors within them leave open. `log` may be any value.
/// @pre two rounds or more
struct Spread {
  double median = 0, half = 0;
};
Spread spread_over_rounds(const std::vector<StepRatio>& rounds);

/// The step time of a case over its rounds: {"rounds": those that are ok, "step_time_s": {median, ci95},
/// "tokens_per_s"}; null where none of them was timed. With one round it is the process's own; with
/// several the interval holds what steps of a process and what processes and rounds differ by. `ci95` is null
/// where neither gives one.
Json timing_of(const Json& rounds);

/// Step times of line B over those of line A, each over the other of its pass, so that what a slow
/// minute does to both falls out: {"rounds": those that both have, "median", "ci95"}, as timing_of()
/// of these ratios; of one round the interval is that of the two processes. Where no pass timed both,
/// "rounds" is 0, and the ratio is that of their medians over all rounds with what both intervals allow.
/// Null where one has no time at all. Lines from before rounds are one round each.
Json paired_step_ratio(const Json& a, const Json& b);

/// The document of a case's line with the step time and tokens/s of all its rounds, where the line
/// has them; `step_time_s.rounds` says over how many.
Json timed_document(const Json& line);

/// Largest share of the cores that others had while the case was timed, in any of its rounds; 0 where
/// nobody knows.
double largest_foreign_share(const Json& line);

/// Whether times are prices of the cost model (the simulated world), which nobody measured. They have
/// no interval, and the mark before them.
bool is_estimated(const Json& document);
inline constexpr std::string_view kEstimatedMark = "~";

/// "3.21 [3.10, 3.40]", in ms; "~3.21" of an estimate; "3.21 [-]" over two rounds, which give no interval
/// (kNoInterval) or too few steps for one; "-" where there is none.
std::string shown_step_time(const Json& document);

/// Student's t of one degree of freedom: what two rounds differ by says nothing of the next.
inline constexpr std::string_view kNoInterval =
    "two rounds give no interval: that of 95 % would be 12.7 standard errors wide to each side; "
    "three "
    "or more do (--repeats 3)";

/// What the errors of ratios hold: the steps within one process a side, several rounds of both, or one
/// process on a side and several rounds on the other (kMixed). An infinite error is not known: nothing
/// is taken off for it, and its ratio is inconclusive.
enum class Errors : uint8_t { kOfOneProcess, kOfRounds, kMixed };

/// How much ratios scatter beyond their own errors, around 1, not around their mean: a machine that was
/// slower as a whole in one of the runs is scatter too. Of one process a side it is the root of their
/// mean square, less that of the errors: processes differ, and nothing else tells by how much. Where
/// rounds are mixed nothing is taken off: errors of two rounds are 12.7 standard errors wide, as likely as
/// not far more than the ratios scatter by, and with them the scatter of the one process would go. Errors
/// of rounds hold that, and what is left is how the two runs differ as a whole: the median of the
/// |log|, which is 0.6745 standard deviations of a normal, so that a case that is slower does not hide
/// itself. 0 of fewer than kFewestRatios.
double process_scatter(const std::vector<StepRatio>& ratios, Errors errors = Errors::kOfOneProcess);
inline constexpr size_t kFewestRatios = 4;

/// The verdict of each ratio. Its interval, error and scatter together, is of 95 % for all of them at
/// once (Bonferroni). `smallest_effect` 0.05: from 1 / 1.05 to 1.05 is the same. Where nothing tells how
/// much a process differs from the next, fewer than kFewestRatios without rounds, none is slower or
/// faster but what has no error: prices, which no process takes.
std::vector<Timing> judge_times(const std::vector<StepRatio>& ratios, double smallest_effect,
                                Errors errors = Errors::kOfOneProcess);

/// A share from 0 to 1, of "5%" or "0.05". Throws ConfigError naming the option.
double parse_share(std::string_view share, std::string_view option);

}  // namespace kuafu
