// SPDX-License-Identifier: Apache-2.0
#include "kuafu/experiment/claims.h"

#include "kuafu/base/errors.h"
#include "kuafu/base/suggest.h"

namespace kuafu {
namespace {

constexpr const char* kMayBeOthers =
    "; whether the claim is about them only the suite's file tells (--suite)";

using Verdict = ClaimResult::Verdict;

constexpr const char* kTwoRounds =
    "times of two rounds: medians of both, with an interval of 12.7 standard errors to either side "
    "(Student's t of one degree of freedom), so that little is decided; --repeats 3 narrows it";

std::string counted(int64_t n, const char* one, const char* many) {
  return text(n, " ", n == 1 ? one : many);
}

void check_each(const Rows& rows, const Formula& formula, const Rows::Among& picked,
                ClaimResult& result) {
  for (const size_t i : *picked) {
    const auto scope = rows.scope(i, picked, Rows::Reading::kStrict);
    const Value value = both(formula.evaluate(*scope, result.claim->tolerance), Value::truth(true));
    ++result.checked;
    const std::string& name = rows.all()[i].name;
    if (value.is_true()) ++result.held;
    if (value.is_false()) result.failing.push_back(name + ": " + formula.values_shown(*scope));
    if (!value.is_absent()) continue;
    const std::string own = in_quotes(name) + " ";  // said already
    result.open.push_back(
        name + ": " +
        (value.words.starts_with(own) ? value.words.substr(own.size()) : value.words));
  }
}

void check_all(const Rows& rows, const Formula& formula, const Rows::Among& picked,
               ClaimResult& result) {
  const auto scope = rows.scope(picked);
  const Value value = both(formula.evaluate(*scope, result.claim->tolerance), Value::truth(true));
  result.checked = 1;
  const std::string over = counted(static_cast<int64_t>(picked->size()), "case", "cases");
  const std::string shown = formula.values_shown(*scope);
  if (value.is_true()) result.held = 1;
  if (value.is_false()) {
    result.failing.push_back(shown.empty() ? "of " + over : text(shown, ", of ", over));
  }
  if (value.is_absent()) result.open.push_back(value.words);
}

ClaimResult check(const Rows& rows, const Claim& claim) {
  ClaimResult result;
  result.claim = &claim;
  // Counted are cases that have ended, whether the suite's file is there or the record alone.
  int64_t missing = 0;
  std::vector<size_t> ended = rows.picked(claim.where, missing);
  missing += std::erase_if(ended, [&](size_t i) { return rows.all()[i].line == nullptr; });
  missing += rows.num_unknown();
  const auto picked = std::make_shared<const std::vector<size_t>>(std::move(ended));
  const bool may_be_others =
      rows.num_unknown() > 0 && (!claim.where.values.empty() || !claim.where.formula.empty());
  const std::string later = missing == 0 ? ""
                                         : counted(missing, "case of the suite has not ended",
                                                   "cases of the suite have not ended") +
                                               (may_be_others ? kMayBeOthers : "");
  if (picked->empty()) {
    result.open.push_back(missing == 0 ? "no case is what it is about" : later);
    return result;
  }
  const Formula formula(claim.formula);
  rows.take_ground();
  const bool is_each = formula.is_of_row();
  if (is_each)
    check_each(rows, formula, picked, result);
  else
    check_all(rows, formula, picked, result);
  const Rows::Ground ground = rows.take_ground();
  result.is_estimated = ground.is_estimated;
  if (ground.is_of_two_rounds) result.note = kTwoRounds;
  if (missing > 0 && result.failing.empty()) {
    result.open.push_back(later);
  } else if (missing > 0) {  // beside the cases that fail, in every place that tells these
    result.note = later + (result.note.empty() ? "" : "; " + result.note);
  }
  // A case that is still to come cannot mend another, but changes a mean.
  const bool is_final = missing == 0 || (is_each && !formula.has_aggregate());
  if (!is_each && !is_final) result.held = 0;
  const bool is_decided = result.open.empty() && missing == 0;
  result.verdict = !result.failing.empty() && is_final ? Verdict::kFails
                   : is_decided                        ? Verdict::kHolds
                                                       : Verdict::kUnresolved;
  return result;
}

}  // namespace

const char* describe(Verdict verdict) {
  switch (verdict) {
    case Verdict::kHolds:
      return "holds";
    case Verdict::kFails:
      return "fails";
    case Verdict::kUnresolved:
      return "unresolved";
  }
  return "";
}

std::vector<ClaimResult> check_claims(const Rows& rows) {
  std::vector<ClaimResult> results;
  for (const Claim& claim : rows.derived().claims) results.push_back(check(rows, claim));
  return results;
}

}  // namespace kuafu
