// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>
#include <vector>

#include "app/worker/mpi_ranks.h"
#include "kuafu/base/worlds.h"
#include "kuafu/engine/registries.h"
#include "kuafu/plan/plan.h"
#include "kuafu/record/json.h"

// Which choices work together: small plans, each proven equal to the oracle (engine/README.md) or
// refused with a reason.
namespace kuafu::matrix {

/// One value of a dimension: a word, what it sets in a plan, and how many replicas and micro-batches
/// it needs to mean anything.
struct DimensionValue {
  std::string name;
  Overrides overrides = {};
  int64_t replicas = 1, micro_batches = 1;
  int64_t exactly = 0;  ///< micro-batches, whatever the others need; 0: what they need
};

/// Something a plan chooses. The first value is the default.
struct Dimension {
  std::string name;
  std::vector<DimensionValue> values;
};

/// Values chosen for two or three dimensions: indices into dimensions and their values.
struct ChosenValue {
  size_t dimension = 0, value = 0;
  bool operator==(const ChosenValue&) const = default;
};
using Combination = std::vector<ChosenValue>;

enum class Status : uint8_t { kEqual, kRefused, kDifferent };
std::string to_string(Status status);

struct CellOutcome {
  Status status = Status::kDifferent;
  std::string why;  ///< of a refusal; what differs; what an equal certificate is blind to
  int64_t ranks = 0;
  double gradient_error = 0, tolerance = 0;  ///< of the certificate; 0 where there is none
  double ratio = 0, native_ratio = 0;        ///< of Proof::ratio(), of both parts
  std::string why_far = {};                  ///< of either, where it says so
};

struct Cell {
  Combination combination;
  CellOutcome outcome;
};

/// Scheme and mode of single layers, sequence, experts, schedule, ZeRO, how replicas agree, order,
/// buckets, overlap, accumulation, steps, model, dtype, recompute, optimizer, memory policy, world,
/// whether it is resumed: read from the registries and the table of plan keys, so that what is added there
/// appears by itself.
std::vector<Dimension> dimensions(const Registries& registries);

/// Every pair of values of two dimensions, then as many draws of three by `seed`, none of
/// them twice.
std::vector<Combination> combinations(const std::vector<Dimension>& dims, int64_t triples,
                                      uint64_t seed);

/// Values of the dimension `resumed`: a run without a stop, one that goes on from its own save, and
/// one that goes on from a save of another placement.
inline constexpr const char* kNeverResumed = "no";
inline constexpr const char* kResumedBySame = "same plan";
inline constexpr const char* kResumedByOther = "other plan";

/// Settings of a small plan with these values, and the rest at defaults. No value gives way to
/// another, but that a model that is named stands where experts need theirs (refused unless it is
/// the same).
Overrides settings_of(const std::vector<Dimension>& dims, const Combination& combination);

/// What a combination chooses beside its plan.
struct Circumstances {
  std::string world = worlds::kThreads;
  std::string resumed = kNeverResumed;  ///< a value of the dimension of this name
};
Circumstances circumstances_of(const std::vector<Dimension>& dims, const Combination& combination);

/// "scheme=2d sequence=ring"
std::string name_of(const std::vector<Dimension>& dims, const Combination& combination);

/// An outcome as it travels between processes, and back.
std::string words_of(const CellOutcome& outcome);
CellOutcome outcome_of(const std::string& words);

/// The plan of settings, resolved and placed. The budget of one with tiers, which no plan needs, is
/// replaced by one that makes its policy choose. Throws what refuses it.
Plan placed(const Overrides& settings, const Registries& registries);

/// Runs combinations one after the other, in this process but for MPI ranks; what is asked twice
/// runs once.
class MatrixRunner {
 public:
  /// `folder` takes what is done, so that another MatrixRunner of the same program goes on there.
  MatrixRunner(const Registries& registries, std::string folder, std::vector<std::string> plugins);

  /// The outcome of a small plan: refused when it is read or placed; certified on threads or MPI,
  /// where it is resumed as run_resumed() does; metered in the simulated world as on threads. Throws
  /// Unwritten where `folder` does not take it.
  CellOutcome run(const Overrides& settings, const Circumstances& how);

 private:
  CellOutcome judge(const Overrides& settings, const Plan& plan, const Circumstances& how);
  CellOutcome run_plan(const Overrides& settings, const Plan& plan, const Circumstances& how);
  std::vector<RankResult> run_ranks(const Plan& plan, const std::string& world,
                                    const TrialOptions& options);
  void keep(const std::string& key, const CellOutcome& outcome);
  CellOutcome metered_alike(const Plan& plan) const;
  std::vector<RankResult> run_by_mpi(const Plan& plan, const TrialOptions& options);

  /// Reads what an earlier call with the same program, or another process of this one, has added.
  void go_on();

  const Registries& registries_;
  std::string folder_;
  const std::vector<std::string> plugins_;
  MpiRanks ranks_;
  int64_t num_read_ = 0;                     ///< bytes of the file of outcomes
  std::map<std::string, CellOutcome> done_;  ///< by plan hash, world and resumption
};

/// The whole record.
Json to_json(const std::vector<Dimension>& dims, const std::vector<Cell>& cases, uint64_t seed);
/// A page: one table for each pair of dimensions, reasons of refusals below. `part`: the options that chose
/// a part of all combinations; empty: all are there.
std::string to_markdown(const std::vector<Dimension>& dims, const std::vector<Cell>& cases,
                        uint64_t seed, const std::string& part);

}  // namespace kuafu::matrix
