// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "kuafu/mesh/mesh.h"
#include "kuafu/plan/plan.h"

namespace kuafu {

/// Where a run's loss scale stands: what a resumed run goes on with.
struct LossScale {
  double scale = 1;
  int64_t good_steps = 0;  ///< since the scale last changed
  int64_t skipped = 0;     ///< steps of the run that updated nothing
  bool operator==(const LossScale&) const = default;
};

/// The factor of the loss in backward, from step to step. [Micikevicius et al., arXiv 1710.03740]
///
///   gradients are scale x g       overflow: the step updates nothing; a dynamic scale is halved
///   interval steps without one:   a dynamic scale doubles
///
/// Starts at a power of two, so that what is multiplied is divided out exactly (above subnormals).
class LossScaler {
 public:
  explicit LossScaler(const Plan& plan);

  bool is_active() const { return is_active_; }  ///< false: the scale is 1, nothing is looked for
  double scale() const { return now_.scale; }
  const LossScale& state() const { return now_; }

  /// After the gradients of a step: whether one of all ranks' is not finite. Throws ConfigError
  /// where a dynamic scale would fall below the least f16, so that no loss is left of it.
  void step(bool has_overflow);

  /// Goes on from a saved state. A scale that this plan fixes, or does not use, stays its own.
  void restore(const LossScale& from);

 private:
  bool is_active_, is_dynamic_;
  int64_t interval_;
  LossScale now_;
};

/// True on every rank where it is on one. Four bytes along each axis of the mesh. Collective.
/// On meta tensors the communication is made and `mine` returned.
bool is_on_any_rank(bool mine, const Mesh& mesh, at::Device device);

}  // namespace kuafu
