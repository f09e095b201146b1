// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kuafu/record/json.h"

namespace kuafu {

/// One case of one side of a comparison.
struct Result {
  std::string name;
  std::string case_id;  ///< empty for a lone document
  Json document;
};

/// Results read from a folder, a run.jsonl or one document.
struct Results {
  std::string origin;
  std::vector<Result> cases;
};

/// Reads a results folder, a .jsonl record or a .json document. Throws ConfigError where it is
/// none.
Results load_results(const std::string& path);

/// How a pair of cases compares.
struct CaseComparison {
  std::string name;
  std::vector<std::string> differences;  ///< exact metrics that differ: "path: a, then b"
  enum class Timing : uint8_t {
    kSame,
    kSlower,
    kFaster,
    kNotCompared
  } timing = Timing::kNotCompared;
  std::string step_a, step_b, ratio;  ///< printed; "-" where unknown
};

struct Comparison {
  std::vector<CaseComparison> cases;  ///< in A and in B
  std::vector<std::string> missing;   ///< in A only: a regression
  std::vector<std::string> added;     ///< in B only
  std::vector<std::string> notes;     ///< what was left out of the comparison, and why

  /// Cases that differ exactly, are slower, or are missing.
  int64_t num_regressions() const;
};

/// Holds B against the reference A. Exact metrics (status, plan, FLOPs, memory, ledger, verdict,
/// and losses bit by bit on the same world, processor model and LibTorch) at zero tolerance; step
/// time by its 95 % intervals, on the same host and clean trees only. Throws ConfigError where no
/// case is in both.
Comparison compare(const Results& a, const Results& b);

/// The comparison as tables and sentences.
std::string comparison_text(const Results& a, const Results& b, const Comparison& comparison);

}  // namespace kuafu
