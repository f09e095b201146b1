// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "kuafu/base/errors.h"
#include "kuafu/plan/plan.h"

namespace kuafu {

/// Mean losses on the plan's held-out batches, taken while it trained. A checkpoint holds those so
/// far, so that a run that goes on has all of them.
struct ValidationSeries {
  std::vector<int64_t> steps;  ///< done before each, rising
  std::vector<double> losses;  ///< may be no numbers

  void add(int64_t step, double loss);
  bool has(int64_t step) const { return !steps.empty() && steps.back() == step; }
  /// The first entry of the lowest loss; none where none is finite.
  std::optional<size_t> best() const;
  /// Whether that is the entry of this step, the last one.
  bool is_best(int64_t step) const;
  bool operator==(const ValidationSeries&) const = default;
};

/// As one line of JSON: a loss that is no number is null.
std::string to_text(const ValidationSeries& series);
/// The entries of such a line, none after `last` steps. Throws ConfigError "where: ..." where it is none.
ValidationSeries validation_from(const std::string& line, int64_t last, const std::string& where);

/// A validation was ended between two of its batches, on all ranks.
class ValidationEnded : public Error {
 public:
  ValidationEnded() : Error("the validation was ended") {}
};

/// While it stands, validations of this thread ask before each batch but the first whether to end.
class ValidationWatch {
 public:
  /// `ends` may communicate; the same on all ranks.
  explicit ValidationWatch(std::function<bool()> ends);
  ~ValidationWatch();
  ValidationWatch(const ValidationWatch&) = delete;
  ValidationWatch& operator=(const ValidationWatch&) = delete;

  /// Asks; throws ValidationEnded. Nothing where nobody watches.
  static void ask();

 private:
  std::function<bool()> ends_;
};

/// Whether both plans take their validation losses on the same samples.
bool has_same_validation(const Plan& a, const Plan& b);

}  // namespace kuafu
