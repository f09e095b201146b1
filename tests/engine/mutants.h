// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kuafu/engine/certificate.h"

// Small wrongs put into a plan's own ranks, never into the single-rank reference: what a
// certificate must notice.
namespace kuafu::tests {

/// A wrong collective. It is made on the wire as always (so nobody waits) and its result is spoilt.
struct CommFault {
  enum class Action {
    kDrop,     ///< as if it had not been made: local data stay; gathers repeat my part
    kScale,    ///< the result times `factor`
    kStale,    ///< the result of the previous call of the same size
    kMaximum,  ///< the largest instead of the sum
  };
  Action action = Action::kDrop;
  std::string axis = {};  ///< mesh axis
  Verb verb = Verb::kAllReduce;
  int64_t at = 1;  ///< the how-manieth call of the verb on the axis, from 1; 0 = every one
  double factor = 1;
  int rank = -1;  ///< on this rank of the group only; -1 = on all
  int depth = 0;  ///< 0: groups of the mesh; 1: those split off one (ranks that share a tied table)
};

/// A stage of a pipeline that takes something else for what it was handed.
struct StageFault {
  enum class Action {
    kStaleInput,   ///< the activations of the micro-batch before
    kStaleGrad,    ///< the output gradient of the micro-batch before
    kScaleInput,   ///< activations times `factor`
    kScaleGrad,    ///< the output gradient times `factor`
    kScaleSent,    ///< the input gradient times `factor` on its way to the stage before
    kSwapSamples,  ///< micro-batches 0 and 1 with each other's tokens
  };
  Action action = Action::kStaleInput;
  int stage = 0, micro_batch = 1;
  double factor = 1;
};

/// Places of ranks in their groups, wrong.
struct PlaceFault {
  int first = 0, second = 0;  ///< world ranks that change places
  std::string what;
};

/// Wrong products of a tensor scheme.
struct SchemeFault {
  enum class Product { kForward, kInputGrad, kWeightGrad };
  enum class Action { kScale, kStale, kOtherRole };
  Product product = Product::kForward;
  Action action = Action::kScale;
  int64_t at = 1;  ///< the how-manieth call of the product, from 1
  double factor = 1;
};

enum class MaskFault { kNone, kShifted };

/// One mutant: a plan of some family and one fault.
struct Mutant {
  std::string name;
  Plan plan;
  std::shared_ptr<std::atomic<int64_t>> fired;  ///< how often the fault came true, over all ranks
  std::function<std::unique_ptr<Communicator>(Communicator& world)> wrap_world = {};
  EngineOptions options = {};
  /// The plan and data that one rank believes in.
  std::function<Plan(Plan plan, int rank)> believe = {};
  std::function<std::unique_ptr<Dataset>(std::unique_ptr<Dataset>, int rank)> read = {};
};

/// Families that have a kit of their own: every tensor scheme, every sequence mode, data parallel.
const std::vector<std::string>& mutated_families();

/// The kit of a family.
std::vector<Mutant> mutants_of(const std::string& family);

/// Runs every mutant: each fault must come true (else the mutant tests nothing), and at least 95 %
/// of them must be noticed. Prints who survives. Returns the number of survivors.
size_t expect_noticed(const std::vector<Mutant>& mutants);

/// Mutants of every schedule.
std::vector<Mutant> pipeline_mutants();
/// The plan of a schedule with nothing but harmless decorators.
Mutant harmless_pipeline(const std::string& schedule);

/// The plan that mutants of a family change.
Plan mutated_plan(const std::string& family);

/// Mutants of one family by its own calls: every verb on every axis is dropped, negated and scaled.
std::vector<Mutant> swept_mutants(const std::string& family);

/// What to spoil of a plan's calls: those on an axis of groups of that depth.
struct Sweep {
  std::string name;  ///< of the plan
  Plan plan;
  std::string axis;
  int depth = 0;
  int (*place)(int rank) = nullptr;  ///< of a world rank in its group
};
/// Every verb that the busiest rank calls on the axis in one step, early, in the middle and late:
/// dropped, on it alone too, scaled, stale.
std::vector<Mutant> spoilt_calls(const Sweep& sweep);
/// The plan behind decorators that never strike.
Mutant harmless_sweep(const Sweep& sweep);

/// Plans of every named way in which replicas agree.
std::vector<Sweep> mode_sweeps();
/// Plans of every schedule under every stage of ZeRO, and the wrongs that only they have.
std::vector<Sweep> zero_pipeline_sweeps();
std::vector<Mutant> zero_pipeline_mutants(const Sweep& sweep);

/// One that changes nothing but stands behind every decorator: it must stay `equal`.
Mutant harmless_mutant(const std::string& family);

// The decorators, by fault.
void set_fault(Mutant& m, const CommFault& fault);
void set_fault(Mutant& m, const PlaceFault& fault);
void set_fault(Mutant& m, const SchemeFault& fault);
void set_fault(Mutant& m, MaskFault fault);
void set_fault(Mutant& m, const StageFault& fault);

/// What became of a mutant: "equal", "different", or "threw: ..." for a diagnosed error.
std::string fate_of(const Mutant& m);

}  // namespace kuafu::tests
