// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "kuafu/experiment/compare.h"

namespace kuafu {

/// Hash of the bytes a run read; empty in the simulated world and in records before there was one.
std::string data_hash(const Json& document);

/// Both say what they read, and it is not the same.
bool reads_other_data(const Json& a, const Json& b);

/// What two runs read that are the same but for their data.
std::string other_data(const Json& a, const Json& b);

/// Pairs the cases of two results: by id first; then, where a side has no ids or is older than the
/// hashes of data, by plan, world, ranks and whether there is a certificate. Or by name alone.
/// @pre both results outlive it
class Meeting {
 public:
  /// Throws ConfigError where they meet by name and a side has a name twice.
  Meeting(const Results& a, const Results& b, CompareOptions::By by = CompareOptions::By::kId);

  /// Of case `ours` of A; null where it met none.
  const Result* partner_of(size_t ours) const { return partners_[ours]; }
  /// Case `theirs` of B has met one.
  bool is_met(size_t theirs) const { return met_[theirs]; }
  /// Why a case of A met none although its plan is in B; empty where there is nothing to say.
  std::string why_missing(const Result& ours) const;

 private:
  template <class IsSame>
  void pair(const IsSame& is_same);

  const Results &a_, &b_;
  std::vector<const Result*> partners_;
  std::vector<bool> met_;
};

}  // namespace kuafu
