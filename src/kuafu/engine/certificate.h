// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>

#include "kuafu/engine/engine.h"

namespace kuafu {

/// Proof that a plan computes what one rank computes. Errors are relative to the largest element
/// of what they are measured on (all gradients, all parameters), in f64.
struct Certificate {
  std::string verdict = "not_run";  ///< "equal", "different", "not_run"
  std::string level = "full";       ///< "full": the plan's own model; "scaled": a smaller one
  int64_t steps = 0;
  double loss_error = 0;           ///< |loss - reference| / |reference|, first step
  double gradient_error = 0;       ///< first step, every parameter, before clipping
  double parameter_error = 0;      ///< after `steps` steps, every parameter
  double tolerance = 0;            ///< of loss and gradient: c eps K, see certificate.cpp
  double parameter_tolerance = 0;  ///< tolerance + the adaptive optimizer's term
  uint64_t seed = 0;               ///< train.seed, or a later one: see kRoutingDraws
  std::string worst;               ///< parameter with the largest error against its tolerance
  /// For dtypes below f64: relative loss error of the native run after `steps` steps against the
  /// f64 reference, and that of one native rank. The native run must stay within twice the latter.
  bool has_native = false;
  double native_error = 0, native_error_one_rank = 0;
};

inline constexpr int64_t kCertificateSteps = 3;

/// Seeds tried, one after the other, where experts are routed: a decision nearer to a tie than the
/// tolerance may fall otherwise by rounding alone, and then proves nothing.
inline constexpr int64_t kRoutingDraws = 8;

/// Runs the plan's f64 twin on the ranks of `world` and a single-rank reference on rank 0, and
/// compares: loss, every gradient, every parameter after three steps. Same answer on every rank.
/// Collective. Books nothing. `memory_limit`: bytes both may take together; above it a scaled-down
/// model of the same shape family is certified and the level says so.
Certificate certify(const Plan& plan, const Registries& registries, Communicator& world,
                    const std::function<std::unique_ptr<Dataset>(const Plan&)>& make_data,
                    const EngineOptions& options, int64_t memory_limit);

}  // namespace kuafu
