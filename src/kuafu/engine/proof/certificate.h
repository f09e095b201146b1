// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "kuafu/engine/whole.h"

namespace kuafu {

class Witness;

/// One quantity that was compared: where it came nearest to its bound, or furthest beyond.
struct Measure {
  double error = 0, bound = 0;
  std::string where;  ///< name of a parameter, and what of it

  /// Keeps what is larger in units of its bound. NaN is infinitely far.
  void add(double error, double bound, const std::string& where);
  bool holds() const { return error <= bound; }
};

/// A bound that a hundred times the error does not reach should be tightened, or say why it cannot.
inline constexpr double kFarRatio = 100;
inline constexpr const char* kUnexplained = "no reason is known: the bound may be too wide";
inline constexpr const char* kOneNumber =
    "the loss is one number, which may be near its reference by chance";
inline constexpr const char* kFewRoutes =
    "routers' choices are the reference's own but for near ties, however wide their bound";

/// Steps of a run compared with the reference, each from the run's own weights and optimizer state
/// before it.
struct Proof {
  std::string verdict = "not_run";  ///< "equal", "different", "not_run"
  std::string reason;               ///< of "not_run", and of what is no number in "different"
  std::string level = "full";       ///< "full": the plan's own model; "scaled": a smaller one
  std::vector<int64_t> steps;       ///< that were compared, from 0
  Measure loss;      ///< |loss - reference| / |reference|, of the last validation too
  Measure gradient;  ///< a tensor's |g - reference| over the norm of its sums of absolute terms
  Measure routes;    ///< of scores: how far what a router chose is below the reference's best
  Measure blocks;    ///< in steps that were looked at block by block: of an output or a gradient
  Measure update;    ///< of a weight or optimizer value, over what the update adds up to it
  /// Where a step was judged by rounding at random: the most of its absolute terms that this moved a
  /// gradient, or of itself the loss, that was beyond its first bound. 0: none was.
  double random_rounding = 0;
  /// The first layer whose bound reached all of its absolute terms: a gradient of it that is missing
  /// would be equal in that step. Empty: there was none.
  std::string unseen;

  /// Adds what was found of a further step, in the order of the steps.
  void take(const Proof& part);
  /// "different" with a reason, once.
  void refute(const std::string& why);
  /// "not_run" with a reason, unless something compared so far is different.
  void give_up(const std::string& why);
  bool holds() const {
    return loss.holds() && gradient.holds() && routes.holds() && blocks.holds() && update.holds();
  }
  /// "different" where a measure does not hold, also one taken before a run diverged.
  void judge();
  /// bound / error of whatever came nearest to its bound; 0 where nothing was compared.
  double ratio() const;
  /// Why a measure came no nearer to its bound than a hundredth of it; empty where all did, or have
  /// the reference's bits, and where nothing was compared. kUnexplained: the bound is loose.
  std::string why_far() const;
  /// The measure nearest to its bound.
  const Measure& worst() const;
  /// Verdict, reason and measures on one line.
  std::string describe() const;
};

/// Proof that a plan computes what the reference computes.
struct Certificate : Proof {
  std::string reference = "oracle";  ///< "oracle"; "engine": one rank, for models it does not know
  /// The plan itself in its own type: its first steps, one drawn by the seed and the last, which
  /// are also the timed run's to the bit; of a plan that is too large for copies of its states the last
  /// step alone, compared as it was made, where that can be. The members above are of its f64 twin.
  Proof native;

  /// The verdict of both: no better than the native one.
  void conclude();
};

inline constexpr int64_t kCertificateSteps = 3;

struct PushedRun;

/// What is known of the timed run, where there was one.
struct TimedRun {
  const Witness* witness = nullptr;            ///< of replicas in step
  const Proof* last_step = nullptr;            ///< compared as it was made (LastStepCheck)
  const PushedRun* pushed = nullptr;           ///< of others
  bool is_resumed = false;                     ///< it went on from a checkpoint, maybe of step 0
  std::optional<double> validation_loss = {};  ///< after its last step
  std::string diverged = {};                   ///< where and how; empty: it did not
  /// Called on rank 0 once, as soon as anything is found different: it stays so, whatever ends the rest.
  std::function<void(const Certificate& so_far)> on_refuted = {};
};

/// Trains the plan's f64 twin, and the plan itself, on the ranks of `world` and compares every step
/// with the reference on rank 0: loss, every gradient, the update, optimizer state, and replicas
/// with each other. What a witness saw of the timed run must come again to the bit. Same answer on
/// every rank. Collective. Books nothing. `memory_limit`: bytes the reference and what it is
/// compared with may take; above it a scaled-down model of the same shape family is certified and
/// the level says so, and native is the timed run's `last_step` where that was compared. What cannot be certified is "not_run" with the reason. `threads`: checks at
/// once, 0: as many as cores and memory allow; the answer is the same.
Certificate certify(const Plan& plan, const Registries& registries, Communicator& world,
                    const std::function<std::unique_ptr<Dataset>(const Plan&)>& make_data,
                    const EngineOptions& options, int64_t memory_limit, const TimedRun& timed = {},
                    int64_t threads = 0);

/// Whether certify() would compare the plan's own model under that limit, not a smaller one.
bool is_certified_whole(const Plan& plan, int64_t memory_limit);

}  // namespace kuafu
