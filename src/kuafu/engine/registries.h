// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kuafu/base/registry.h"
#include "kuafu/memory/policy.h"
#include "kuafu/model/context.h"
#include "kuafu/optim/rule.h"
#include "kuafu/oracle/oracle.h"
#include "kuafu/parallel/pipeline/schedules.h"
#include "kuafu/parallel/sequence/interface.h"
#include "kuafu/parallel/tensor/interface.h"
#include "kuafu/plan/choices.h"

namespace kuafu {

/// Every kind of thing a plan names, by name. Plug-ins add to it before a plan is read.
struct Registries {
  Registry<TensorScheme> tensor{"tensor mode"};
  Registry<MakeAttention> sequence{"sequence mode"};
  Registry<MakeModel> models{"model"};
  Registry<pipeline::Schedule> schedules{"pipeline schedule"};
  OptimizerRules optimizers{"optimizer"};
  /// What certificates hold updates against: of each optimizer, by its name.
  oracle::UpdateRules updates{"formula of an optimizer"};
  /// References of certificates, by the model's name; a model without one is compared with one rank.
  Registry<oracle::MakeModel> oracles{"oracle"};
  /// Who chooses what lies on the device, where memory.policy has tiers.
  memory::PolicyRules policies{"memory policy"};

  /// The plan side of the tensor schemes.
  TensorModes tensor_modes() const;
  /// What a plan may name.
  Choices choices() const;
};

/// Throws ConfigError for an optimizer that cannot be one (see check_rule), that reads keys there are
/// not, or that has no formula, and for a formula of none.
void check_optimizers(const Registries& registries);
/// Throws ConfigError for a memory policy that can be none.
void check_policies(const Registries& registries);
/// Throws ConfigError where a plan's rule is by layers and that of its kind is not, or the reverse: a
/// rule is so under all values of its keys.
void check_rule(const Plan& plan, const Registries& registries);

/// The table of contents of this build.
Registries builtin_registries();

}  // namespace kuafu
