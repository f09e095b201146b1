// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "kuafu/engine/proof/certificate_step.h"

// What the checks of a step share. Internal to the certificate.
namespace kuafu {

/// Of two samples of one distribution of errors, summed in two orders: running sums and pairwise
/// ones of K = 4096 terms differ by sqrt(K / log2 K) = 18, blocked ones by far less, and a norm
/// averages over a tensor. The largest element is a single sum: the 18, and nearly twice by chance.
inline constexpr double kFactor = 8, kElementFactor = 32;
/// The largest of n draws is exceeded by a further one in 1 of n + 1 cases, by kFactor in none.
inline constexpr uint64_t kDraws = 4;
/// Where a step makes much of rounding, by quotients of small numbers say, its tail is that of 1 / x: the
/// largest of n draws is exceeded k times over in 1 of n k cases. Across the kink of a ReLU few of the
/// draws may take an input. What is beyond kDraws is drawn so often before it is called different.
inline constexpr uint64_t kManyDraws = 32;
inline constexpr double kDiverged = 0.1;

oracle::Tensors in_type(const oracle::Tensors& tensors, at::ScalarType type);

/// Numbers that have more bits than a run of that type: f64 with results of its u may stand for it.
/// Half precision is a mixture of types, and computed in it.
inline bool is_wide(DType type) { return type == DType::kF64 || type == DType::kF32; }

/// Why a proof ends where rounding alone moves `what` by `y` of `of`.
std::string divergence(const Plan& plan, const Evidence& evidence, const std::string& what,
                       double y, const std::string& of);

/// "what, step 3": steps are told from 1.
std::string at_step(const Evidence& evidence, const std::string& what);

/// |mine - exact| <= bound * scale, element by element; where they have another shape, refutes.
struct Elements {
  const Tensor& mine;
  const Tensor& exact;
  const Tensor& scale;
};
void add_elements(const Elements& elements, double bound, const std::string& where, Proof& proof);

/// What a number that a rule computes in f32, a rate or a correction of moments, may be off by, in u.
inline constexpr double kOfStep = 256;

/// A weight of an update, in f64.
struct UpdatedWeight {
  const std::string& name;
  const Tensor &before, &mine, &exact;
  const Tensor& bound;             ///< of |mine - exact|, element by element
  std::vector<Tensor> draws = {};  ///< by what rounding at random moved `exact`
  Tensor lost = {};                ///< what underflow may take
};
/// What each layer of it lacks along its step and along its weights: certificate_projections.cpp. u: the
/// unit roundoff of the type that is updated.
void compare_along(const UpdatedWeight& w, const oracle::Weights& layers, double u, double whole,
                   const Evidence& evidence, Proof& proof);

/// What an update changes, in f64: the values, or the f32 masters of half-precision ones.
oracle::Tensors updated(const WholeState& state);
/// The slots of a rule, in f64.
oracle::State state_of(const WholeState& whole);
/// Where a half-precision weight is not its master copy, rounded, refutes.
void compare_master(const std::string& name, const Evidence& evidence, Proof& proof);

/// The step's update: weights and optimizer state after it, from its own gradients, norm and state.
/// `weights`: which layers they hold; `rules`: formulas of all optimizers.
void check_update(const Plan& plan, const oracle::Weights& weights, const Evidence& evidence,
                  Proof& proof, const oracle::UpdateRules& rules);
/// The same of a rule that this build does not know, without a derivation of its own.
void check_own_update(const Plan& plan, const oracle::Weights& weights, const Evidence& evidence,
                      Proof& proof, const oracle::UpdateRules& rules);

/// A skipped step leaves everything as it was. Whether it had to be skipped: certificate_step.cpp.
void check_skipped(const Evidence& evidence, Proof& proof);

/// A dynamic loss scale is halved by a skipped step and doubled by loss_scale_interval good ones
/// after each other [Micikevicius et al., arXiv 1710.03740, section 3.2]; a fixed one stays.
void check_scale(const Plan& plan, const Evidence& evidence, Proof& proof);

}  // namespace kuafu
