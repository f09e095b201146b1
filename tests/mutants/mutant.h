// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/stack.h>

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kuafu/engine/proof/certificate.h"

// Small wrongs put into a plan's own ranks, never into the reference: what must be noticed.
namespace kuafu::tests {

/// A wrong collective. It is made on the wire as always (so nobody waits) and its result is spoilt.
struct CommFault {
  enum class Action {
    kDrop,       ///< as if it had not been made: local data stay; gathers repeat my part
    kScale,      ///< the result times `factor`
    kStale,      ///< the result of the previous call of the same size
    kMaximum,    ///< the largest instead of the sum
    kSwapParts,  ///< of a gather or an all-to-all: the first two ranks' parts change places
  };
  Action action = Action::kDrop;
  std::string axis = {};  ///< mesh axis
  Verb verb = Verb::kAllReduce;
  int64_t at = 1;  ///< the how-manieth call of the verb on the axis, from 1; 0 = every one
  double factor = 1;
  int rank = -1;  ///< on this rank of the group only; -1 = on all
  int depth = 0;  ///< 0: groups of the mesh; 1: those split off one (ranks that share a tied table)
  /// Of all-reduces: those of so many numbers in f64 or more alone; 0: any. In plans of other types
  /// such are the tables of layers' norms.
  int64_t least_f64 = 0;
  /// Of all-reduces: one that takes the largest is passed over, and the next one is meant.
  bool of_sums = false;
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

/// Two world ranks change places in their groups.
struct PlaceFault {
  int first = 0, second = 0;
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

/// What attention takes for its keys and places.
enum class AttentionFault {
  kNoMask,
  kShiftedMask,   ///< position i sees keys 1 .. i + 1 instead of 0 .. i
  kOwnBlockOnly,  ///< a rank attends to the keys it holds
  kNoOrder,       ///< the order of a sharded sequence is forgotten
  kNextHead,      ///< a query head reads the keys of the head beside
};

/// What the slots of experts hold, in the second call of the first step.
enum class SlotFault { kNextRow, kNextExpert, kNoGates, kNoCombine };

/// What is wrong with the samples that rank 1 reads.
enum class DataFault { kNextSample, kFirstSamples, kInputIds, kTargetIds };

/// An own op that computes something else. Only calls of kuafu:: ops meet it: the oracle, which is
/// plain ATen, is never hit.
struct OpFault {
  using Right = std::function<void(torch::jit::Stack& stack)>;
  std::string op;  ///< without "kuafu::"
  /// Makes results of arguments, on the stack; `right` is the op itself.
  std::function<void(torch::jit::Stack& stack, const Right& right)> wrong;
  int64_t at = 0;  ///< the how-manieth call of a rank, from 1; 0 = every one
  int rank = -1;   ///< on this world rank only; -1 = on all
};

/// What a mutant is tried under.
struct Combination {
  DType dtype = DType::kF64;
  std::string optimizer = "sgd";  ///< "adamw", "sgd", "lars", "lamb", "muon"
  std::string level = "full";     ///< "full", "scaled"
  bool operator==(const Combination&) const = default;
};
std::string to_string(const Combination& c);

/// What became of a mutant.
struct Fate {
  enum class Kind {
    kComparison,  ///< a comparison says "different"
    kError,       ///< an error of Kuafu's own names the cause
    kSurvived,    ///< neither; a crash, a hang and an error that names something else too
    kOutOfReach,  ///< scaled: no miniature, or the fault cannot come true in it
    kNothing,     ///< every loss, gradient, weight and state has the bits it has without the fault
  };
  Kind kind = Kind::kSurvived;
  std::string words = {};  ///< measure, message or reason
};

/// One plan with one fault.
struct Mutant {
  std::string name;
  Overrides overrides = {};              ///< of plan_of()
  std::string optimizer = {};            ///< the only one it has a meaning for; empty: any
  std::optional<DType> dtype = {};       ///< likewise, and told in it, not by the twin; none: any
  std::vector<std::string> causes = {};  ///< an error that has one of these words names the cause
  /// Strikes in the timed run alone: shown by the same steps made again.
  bool is_of_timed_run = false;
  /// How often the fault came true, over all ranks: something had other bits.
  std::shared_ptr<std::atomic<int64_t>> fired = std::make_shared<std::atomic<int64_t>>(0);

  /// Of calls: how often it was put into one, whose result may have been the same none the less
  /// (zeros that are halved).
  std::shared_ptr<std::atomic<int64_t>> met = std::make_shared<std::atomic<int64_t>>(0);

  std::function<std::unique_ptr<Communicator>(Communicator& world)> wrap_world = {};
  EngineOptions options = {};
  std::vector<OpFault> ops = {};
  /// The plan and data that one rank believes in.
  std::function<Plan(Plan plan, int rank)> believe = {};
  std::function<std::unique_ptr<Dataset>(std::unique_ptr<Dataset>, int rank)> read = {};
  /// Sets a fault that depends on the plan that will run: which of its calls.
  std::function<void(Mutant& m, const Plan& plan)> aim = {};
  /// What tries it instead of the certificate.
  std::function<Fate(const Mutant& m, const Plan& plan)> trial = {};
};

// The decorators, by fault.
void set_fault(Mutant& m, const CommFault& fault);
void set_fault(Mutant& m, const PlaceFault& fault);
void set_fault(Mutant& m, const SchemeFault& fault);
void set_fault(Mutant& m, AttentionFault fault);
void set_fault(Mutant& m, SlotFault fault);
void set_fault(Mutant& m, const StageFault& fault);
void set_fault(Mutant& m, DataFault fault);
void set_fault(Mutant& m, const OpFault& fault);

/// Own ops of this thread meet the faults until the scope ends.
class OpFaultScope {
 public:
  OpFaultScope(const std::vector<OpFault>& faults, int rank,
               std::shared_ptr<std::atomic<int64_t>> fired);
  ~OpFaultScope();
  OpFaultScope(const OpFaultScope&) = delete;
  OpFaultScope& operator=(const OpFaultScope&) = delete;

  struct State;

 private:
  std::unique_ptr<State> state_;
};

/// Mutants of one kind of code, and plans of it behind decorators that never strike.
struct Kit {
  std::string name;
  std::vector<Mutant> mutants = {}, harmless = {};

  template <class Fault>
  Mutant& add(const std::string& what, const Overrides& overrides, const Fault& fault) {
    Mutant& m = mutants.emplace_back(Mutant{.name = what, .overrides = overrides});
    set_fault(m, fault);
    return m;
  }
  /// Rank 1 runs another plan.
  Mutant& believe(const std::string& what, const Overrides& overrides,
                  const std::function<void(Plan&)>& change);
};

// The kits. `seed` draws which calls are spoilt, and how.
Kit communication_kit(uint64_t seed);
Kit layout_kit();
Kit kernel_kit();
Kit optimizer_kit();
Kit schedule_kit();
Kit trace_kit();
std::vector<Kit> all_kits(uint64_t seed);

/// The plan that a mutant changes: a small one with a clip that bites, a bucket a tensor, so that
/// every gradient has a sum of its own; larger where it will be scaled down.
Plan plan_of(const Mutant& m, const Combination& c);

/// Tries a mutant.
Fate fate_of(Mutant& m, const Combination& c);

}  // namespace kuafu::tests
