// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <set>
#include <string>

#include "kuafu/engine/proof/certificate.h"
#include "kuafu/engine/proof/certificate_reference.h"
#include "kuafu/engine/proof/whole_state.h"

namespace kuafu {

/// All that a step of a run read and wrote, whole, on rank 0.
struct Evidence {
  int64_t step = 0;          ///< from 0
  int64_t worker = -1;       ///< whose push it is; -1: a step of all
  int64_t more_updates = 0;  ///< than steps, of a run that went on from servers
  bool is_first = false;     ///< of a run that began anew: its weights are the seed's
  std::string diverged;      ///< why it was no step: a loss or norm that is no number; else empty
  bool is_after_compared = false;  ///< the step before it was compared, update and all
  LossScale scale_before, scale_after;
  StepReport report;
  WholeState before, after;
  WholeTensors gradients;              ///< f64, without the loss scale, not clipped
  std::string gradients_disagreement;  ///< see WholeGradients
  WholeRoutes routes;                  ///< what its routers decided
  bool is_by_blocks = false;           ///< it is looked at block by block, too
  oracle::BlockFlows flows;            ///< of such a step: what passed the boundaries of blocks
};

/// Makes the engine's next step by step(), as a run does, and gathers what came of it; `before` is
/// the state it starts from, and stays in a step that diverges. `unbooked`: not null takes the ops of
/// LibTorch of this rank's step that no table of kinds knows. `book`: the engine's, which has the step
/// and nothing of the evidence; may be null. Collective over `world`, the engine's own.
enum class Look : uint8_t { kWhole, kBlocksToo };
Evidence observe(Engine& engine, Communicator& world, WholeState before, Look look = Look::kWhole,
                 RankBook* book = nullptr, std::set<std::string>* unbooked = nullptr);

/// How far the reference itself is from f64 in the type of a run: of one of its steps, and to first
/// order of those that follow.
struct ReferenceError {
  struct Size {
    double norm = 0, largest = 0;
    /// Norm itself, of a gradient whose terms are all zero: rounding is all of it.
    double alone = 0;
    /// Norm relative to the terms of the whole weight that the layer is in: what divergence is judged by.
    double of_weight = 0;
  };
  double loss = 0;                            ///< relative
  double scores = 0;                          ///< largest difference of a router's scores
  std::map<std::string, Size> gradient = {};  ///< relative to the sums of absolute terms
};

/// Gives the rounding that a step is compared with; `measure` measures the step's own.
using RoundingOf = std::function<ReferenceError(const std::function<ReferenceError()>& measure)>;
inline ReferenceError own_rounding(const std::function<ReferenceError()>& measure) {
  return measure();
}

/// Of the numbers of a type.
double unit_roundoff(DType type);
/// What the norm of a tensor's difference may reach, over that of its terms, where the reference's
/// own rounding is `rounding` of it.
double gradient_bound(const Plan& plan, double rounding);
/// What |loss / reference - 1| may reach where the reference's own rounding is `rounding` of it.
double loss_bound(const Plan& plan, double rounding, double reference);
/// |loss - reference| over the reference, which may be 0.
double loss_error(double loss, double reference);

/// Adds the validation loss with the weights after a run's last step to a proof.
void check_validation(const Plan& plan, const oracle::Tensors& weights, double loss,
                      CertificateReference& reference, Proof& proof);

/// The part of check_step() before the update: what was computed with the weights `before`.
void check_gradients(const Plan& plan, const Evidence& evidence, CertificateReference& reference,
                     const RoundingOf& rounding, Proof& proof);

/// Adds a step to a proof: its loss, gradients and update against the reference from the step's own
/// weights; the first step's weights against the reference's own. Measures the rounding where
/// nobody has. `rules`: formulas of all optimizers. @pre plan.model.dtype is the type that the evidence
/// was computed in
void check_step(const Plan& plan, const Evidence& evidence, CertificateReference& reference,
                const RoundingOf& rounding, Proof& proof,
                const oracle::UpdateRules& rules = oracle::builtin_updates());

}  // namespace kuafu
