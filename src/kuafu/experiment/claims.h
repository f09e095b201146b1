// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kuafu/experiment/rows.h"

namespace kuafu {

/// What the results say of one claim.
struct ClaimResult {
  enum class Verdict : uint8_t { kHolds, kFails, kUnresolved };

  const Claim* claim = nullptr;
  Verdict verdict = Verdict::kUnresolved;
  int64_t checked = 0, held = 0;     ///< cases it is about; 1 where it is about all at once
  std::vector<std::string> failing;  ///< a sentence a case
  std::vector<std::string> open;     ///< why it is not decided, a sentence a case
  bool is_estimated = false;         ///< it stands over times of the cost model
  std::string note;  ///< cases to come, where some fail, and what its intervals are; may be empty
};

const char* describe(ClaimResult::Verdict verdict);

/// Holds every claim against the cases. A formula that names a case's own values must hold in each
/// case picked; one of aggregates alone is about all of them at once. A claim fails where it is false
/// for one; else it is unresolved where a case has not ended ok, a certificate refutes it, or 95 %
/// intervals overlap so that a comparison is not decided.
std::vector<ClaimResult> check_claims(const Rows& rows);

/// Columns, claims and the points of figures as the report's script takes them.
Json derived_json(const Rows& rows);

/// One column as cells of a table of cases, by case id.
struct ColumnCells {
  std::string title;
  std::map<std::string, std::string> cells;
};
std::vector<ColumnCells> column_cells(const Rows& rows);

/// The verdicts, for the console: empty without a claim.
std::string claim_text(const std::vector<ClaimResult>& results);

/// What the suite will compute, for --dry-run: empty where that is nothing.
std::string derived_text(const Derived& derived);

/// Notes about columns that have no value in any finished case.
std::vector<std::string> empty_columns(const Rows& rows);

}  // namespace kuafu
