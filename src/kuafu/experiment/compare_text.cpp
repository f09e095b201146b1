// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "kuafu/base/errors.h"
#include "kuafu/experiment/compare.h"
#include "kuafu/record/table.h"

namespace kuafu {
namespace {

const char* describe(Timing timing) {
  switch (timing) {
    case Timing::kSame:
      return "same";
    case Timing::kSlower:
      return "SLOWER";
    case Timing::kFaster:
      return "faster";
    case Timing::kInconclusive:
      return "inconclusive";
    case Timing::kNotCompared:
      return "-";
  }
  return "";
}

/// "3 regressions: 1 case differs, 2 are missing in B".
std::string words_of_regressions(const Comparison& comparison) {
  int64_t differing = 0, slower = 0, refuted = static_cast<int64_t>(comparison.refuted.size());
  for (const CaseComparison& c : comparison.cases) {
    if (!c.differences.empty()) ++differing;
    if (c.timing == Timing::kSlower) ++slower;
    if (!c.refuted.empty()) ++refuted;
  }
  std::string parts;
  const auto add = [&](int64_t n, const char* what) {
    if (n > 0) parts += text(parts.empty() ? "" : ", ", n, " ", what);
  };
  add(differing, "with other exact metrics");
  add(slower, "slower");
  add(refuted, "refuted by a certificate");
  add(static_cast<int64_t>(comparison.missing.size()), "missing in B");
  const int64_t all = comparison.num_regressions();
  return text(all, all == 1 ? " regression: " : " regressions: ", parts);
}

/// "; step times: 3 same, 2 inconclusive"; empty where none was compared.
std::string words_of_times(const Comparison& comparison) {
  std::string parts;
  for (const Timing timing :
       {Timing::kSame, Timing::kFaster, Timing::kSlower, Timing::kInconclusive}) {
    const auto n = std::count_if(comparison.cases.begin(), comparison.cases.end(),
                                 [&](const CaseComparison& c) { return c.timing == timing; });
    if (n > 0) parts += text(parts.empty() ? "; step times: " : ", ", n, " ", describe(timing));
  }
  return parts;
}

}  // namespace

std::string comparison_text(const Results& a, const Results& b, const Comparison& comparison) {
  Table table({{"case"},
               {"exact"},
               {"certificate"},
               {"A step ms [95 %]", Table::Align::kRight},
               {"B step ms [95 %]", Table::Align::kRight},
               {"B / A", Table::Align::kRight},
               {"time"}});
  std::string differences, refuted, not_run;
  for (const CaseComparison& c : comparison.cases) {
    table.add({c.name, c.differences.empty() ? "equal" : "DIFFERENT", c.verdicts, c.step_a,
               c.step_b, c.ratio, describe(c.timing)});
    for (const auto& side : c.refuted) refuted += "  " + c.name + ", " + side + "\n";
    for (const auto& side : c.not_run) not_run += "  " + c.name + ", " + side + "\n";
    for (const auto& difference : c.differences)
      differences += "  " + c.name + ": " + difference + "\n";
  }
  const auto cases_of = [](size_t n) { return text(n, n == 1 ? " case" : " cases"); };
  std::string out = text("A = ", a.origin, ", ", cases_of(a.cases.size()), "\nB = ", b.origin, ", ",
                         cases_of(b.cases.size()), "\n\n", table.str());
  if (!differences.empty()) out += "\nExact metrics that differ (A, then B):\n" + differences;
  for (const auto& only : comparison.refuted) refuted += "  only in B: " + only + "\n";
  if (!refuted.empty()) out += "\nCertificates that say `different`:\n" + refuted;
  if (!not_run.empty()) out += "\nCertificates not run:\n" + not_run;
  for (const auto& name : comparison.missing) out += "missing in B: " + name + "\n";
  for (const auto& name : comparison.added) out += "only in B: " + name + "\n";
  for (const auto& note : comparison.notes) out += "note: " + note + "\n";
  const bool is_good = comparison.num_regressions() == 0;
  const bool is_open = std::any_of(comparison.cases.begin(), comparison.cases.end(),
                                   [](const auto& c) { return c.timing == Timing::kInconclusive; });
  return text(out, "\n", is_good ? "no regression" : words_of_regressions(comparison),
              words_of_times(comparison),
              is_open ? " (more rounds on both sides narrow the intervals: --repeats)" : "", "\n");
}

}  // namespace kuafu
