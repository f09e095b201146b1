// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "kuafu/experiment/derived.h"
#include "kuafu/experiment/formula.h"
#include "kuafu/experiment/suite.h"
#include "kuafu/experiment/timing.h"
#include "kuafu/record/run_log.h"

namespace kuafu {

/// One case as formulas see it.
struct Row {
  std::string id, name;
  Settings settings;
  const Json* line = nullptr;     ///< of the record; null: it has not ended
  const Case* planned = nullptr;  ///< of the suite; null: the suite is not known
};

/// The cases of a suite with what is computed from them. Names in a formula are, in this order:
/// columns, settings, `name`, `case_id`, `wall_s`, fields of the document, plan keys, the last word
/// of a setting. A `*` in a field's path adds up what stands under every name.
class Rows {
 public:
  /// The suite's cases where it is known, else those of the record. All arguments outlive it.
  Rows(const Derived& derived, const RunRecord& record, const Suite* suite);

  const std::vector<Row>& all() const { return rows_; }
  const Derived& derived() const { return derived_; }
  /// Cases of the suite that have not ended and of which nothing is known, where it is unknown.
  int64_t num_unknown() const { return num_unknown_; }

  /// Whether its numbers may stand in a comparison: it ended ok and no certificate refutes it.
  static bool is_sound(const Row& row);

  /// Times of all rounds together, else those of one pass.
  static inline const Pass kAllRounds = {};

  /// What values that were computed stand over, besides what is exact.
  struct Ground {
    bool is_estimated = false;      ///< times of the cost model
    bool is_of_two_rounds = false;  ///< times of two rounds, whose interval is 12.7 errors wide

    void add(const Ground& other) {
      is_estimated = is_estimated || other.is_estimated;
      is_of_two_rounds = is_of_two_rounds || other.is_of_two_rounds;
    }
  };
  /// That of all that was computed since the last call.
  Ground take_ground() const { return std::exchange(ground_, {}); }

  /// The value of a column in a row.
  Value column(size_t column, size_t row, const Pass& pass = kAllRounds) const;

  /// What aggregates run over, by index.
  using Among = std::shared_ptr<const std::vector<size_t>>;

  /// A row in hand. Strict: what a certificate refutes is absent.
  enum class Reading : uint8_t { kStrict, kAsRecorded };
  std::unique_ptr<FormulaScope> scope(size_t row, Among among, Reading reading,
                                      const Pass& pass = kAllRounds) const;
  /// No row in hand: for aggregates alone.
  std::unique_ptr<FormulaScope> scope(Among among) const;

  Value value(size_t row, const std::string& name, Reading reading,
              const Pass& pass = kAllRounds) const;

  /// Rows that `where` is about. Those of which that cannot be told are left out; of cases that have
  /// not ended they are counted in `num_open`.
  std::vector<size_t> picked(const Picked& where, int64_t& num_open) const;
  /// All sound rows.
  const Among& sound() const { return sound_; }

 private:
  friend class RowScope;
  Value field(const Row& row, const std::string& name, Reading reading, const Pass& pass) const;
  Value plan_value(size_t row, const std::string& name) const;
  /// Absent where the row has no such key (yet).
  Value has(size_t row, const std::string& key, const Value& value) const;
  Value is_in(size_t row, const Picked& where, const std::optional<Formula>& formula) const;
  bool is_field(const std::string& name) const;
  /// Of a column that subtracts, itself or through another.
  bool is_difference(const std::string& name) const;

  /// The row like `row` but for `picks`; none, with the reason, where there is none or are several.
  std::optional<size_t> like(size_t row, const FormulaScope::Picks& picks,
                             std::string& why_not) const;
  std::set<std::string> free_keys(const FormulaScope::Picks& picks) const;
  /// How far apart two rows are that should be the same but for `free` keys; none where they differ
  /// in another. Less is nearer.
  std::optional<int64_t> distance(size_t a, size_t b, const std::set<std::string>& asked,
                                  const std::set<std::string>& free) const;

  const Derived& derived_;
  std::vector<Row> rows_;
  std::vector<Formula> formulas_;  ///< of the columns
  int64_t num_unknown_ = 0;
  Among sound_;
  std::set<Pass> passes_;          ///< of all cases
  std::vector<std::string> keys_;  ///< of all settings
  /// Values that were asked for, by pass, column and row.
  struct Known {
    Value value;
    Ground ground;
  };
  mutable std::map<Pass, std::vector<std::vector<std::optional<Known>>>> columns_;
  mutable Ground ground_;
  mutable std::map<std::string, bool> is_field_;  ///< names that were asked for
};

/// A field of a document, with `*` for the sum over every name. A measured time or rate has its
/// 95 % interval: that of all its rounds, or of the process of one pass.
Value field_value(const Json& line, const std::string& path, const Pass& pass = Rows::kAllRounds);

}  // namespace kuafu
