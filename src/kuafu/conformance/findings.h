// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "kuafu/base/errors.h"
#include "kuafu/tensor/tensor.h"

// What checks find. Nothing of the conformance kit asserts or prints.
namespace kuafu::conformance {

struct Finding {
  std::string kind = {};   ///< of conformance::kinds()
  std::string name = {};   ///< of the choice: "2d"
  std::string check = {};  ///< "products"
  std::string where = {};  ///< on what: "x2 x y2 x z2"
  std::string shape = {};  ///< extents checked: "B 8, S 6, H 24, F 36, V 29"
  bool is_ok = false;
  std::string refusal = {};  ///< where it was refused, as it may be, and why; then is_ok
  std::string detail = {};   ///< the first thing that was wrong, and where; empty if is_ok
};

/// What ranks find out about one check. Thread-safe; keeps the first thing that was wrong.
class Notes {
 public:
  /// Further arguments say what was expected, and of which rank.
  template <class... Parts>
  void expect(bool is_ok, const Parts&... what) {
    if (!is_ok) fail(text(what...));
  }
  /// The relative error of `mine` against `expected` is at most `limit`.
  void expect_close(const Tensor& mine, const Tensor& expected, double limit,
                    const std::string& what);
  void expect_same(const Tensor& mine, const Tensor& expected, const std::string& what);
  void fail(const std::string& what);
  bool has_failed() const { return !first().empty(); }

  std::string first() const;

 private:
  mutable std::mutex mutex_;
  std::string first_;
};

/// Hears of each check as it begins, and of its finding as it comes.
struct Tell {
  std::function<void(const Finding& blank)> begins = {};
  std::function<void(const Finding& finding)> ended = {};
};

/// Runs a check and fills in what it found. An exception is a finding, not the end.
Finding found(Finding blank, const std::function<void(Notes& notes)>& body);
/// The same, where a check may be refused: that is told as such.
Finding found_or_refused(Finding blank, const std::function<void(Notes& notes)>& body);

/// What is found about one choice.
class Findings {
 public:
  explicit Findings(Tell tell = {}) : tell_(std::move(tell)) {}

  /// Runs a check: found(), told of before and after.
  Finding run(const Finding& blank, const std::function<void(Notes& notes)>& body);
  /// The same of found_or_refused().
  Finding run_or_refuse(const Finding& blank, const std::function<void(Notes& notes)>& body);
  void add(Finding finding);
  /// Those that were told already.
  void add(std::vector<Finding> told);
  /// Whether one so far does not hold: larger sizes would say it again, and may take long.
  bool has_failed() const { return has_failed_; }
  std::vector<Finding> all() && { return std::move(all_); }

 private:
  void begin(const Finding& blank) const;

  Tell tell_;
  std::vector<Finding> all_;
  bool has_failed_ = false;
};

/// Which extents a check runs on: a few elements a shard, those beyond 64 too, or also those of a model
/// as deep and as wide as real ones, of which one costs a hundred of the others.
enum class Shapes : uint8_t { kSmall, kAll, kReal };

}  // namespace kuafu::conformance
