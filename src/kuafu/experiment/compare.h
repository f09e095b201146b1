// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kuafu/experiment/timing.h"
#include "kuafu/plan/plan.h"
#include "kuafu/record/json.h"

namespace kuafu {

/// One case of one side of a comparison.
struct Result {
  std::string name;
  std::string case_id;  ///< empty for a lone document
  Json document;        ///< with the step time of all its rounds
  Json settings;        ///< what distinguishes it in its suite; null for a lone document
  Json plugins = {};    ///< {file name: hash} of those it ran with; null where it names none
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
  std::string verdicts;                  ///< of both certificates: "equal", "equal -> different"
  std::vector<std::string> refuted;      ///< sides whose certificate says `different`, and why
  std::vector<std::string> not_run;      ///< sides whose certificate was not run, and why
  Timing timing = Timing::kNotCompared;
  std::optional<StepRatio> times;     ///< where times are compared
  int64_t rounds = 1;                 ///< that they are over, on the side that has fewer
  int64_t most_rounds = 1;            ///< and on the other
  std::string step_a, step_b, ratio;  ///< printed; "-" where unknown
};

/// What of two results is compared, and how.
struct CompareOptions {
  enum class By : uint8_t { kId, kName } by = By::kId;  ///< what makes two cases one
  double smallest_effect = 0.05;                        ///< of a step time, as a share
  enum class Times : uint8_t { kCompared, kLeftOut } times = Times::kCompared;
};

struct Comparison {
  std::vector<CaseComparison> cases;  ///< in A and in B
  std::vector<std::string> missing;   ///< in A only: a regression; with the reason where known
  std::vector<std::string> added;     ///< in B only
  std::vector<std::string> refuted;   ///< of those: certificates that say `different`
  std::vector<std::string> notes;     ///< what was left out of the comparison, and why

  /// Cases that differ exactly, are slower, are missing, or are refuted on either side.
  int64_t num_regressions() const;
};

/// Holds B against the reference A. Exact metrics (status, plan, FLOPs, memory, ledger, verdict,
/// and losses bit by bit on the same world, processor model and LibTorch) at zero tolerance; step
/// times by their intervals (timing.h), on the same host and clean trees only. Cases meet by their
/// id, or by their name where asked; where a record is older than the hashes of data, by plan, world
/// and ranks. Throws ConfigError where no case is in both, and says so where the corpus is another.
Comparison compare(const Results& a, const Results& b, const CompareOptions& options = {});

/// The cases of both sides that `subset` picks. Throws ConfigError as `--filter` does.
void pick_subset(Results& a, Results& b, const Overrides& subset);

/// The comparison as tables and sentences.
std::string comparison_text(const Results& a, const Results& b, const Comparison& comparison);

}  // namespace kuafu
