// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "kuafu/engine/proof/certificate_compare.h"

// How a step of the reference rounds in the type of a run: what the bounds of certificate_step.cpp
// are made of. Internal to the certificate.
namespace kuafu {

/// Times the loss scale at which what a run skips has to overflow in the reference too.
inline constexpr double kOverflow = 16;

double length(const Tensor& t);   ///< Euclidean
double largest(const Tensor& t);  ///< 0 of no elements
bool is_finite(const oracle::Tensors& tensors);

/// The sums of absolute terms of a gradient.
Tensor terms_of(const std::string& name, const oracle::Gradients& exact);

/// One step of a run, computed by the reference from the run's weights and routes with roundings.
class StepRounding {
 public:
  /// `weights`: before the step, f64. All must outlive it.
  StepRounding(const Plan& plan, const Evidence& evidence, CertificateReference& reference,
               const oracle::Tensors& weights);

  /// In a type, at the run's loss scale `times` as large.
  oracle::Gradients in(DType type, double times = 1) const;
  /// In the run's type, once; of an f64 run f32's stands for it, times the ratio of both u. Of an engine
  /// as reference at random, as below.
  ReferenceError measured(const oracle::Gradients& exact) const;
  /// Rounding of this very step: at random, and of numbers with many bits measured too, whose sums
  /// of equal terms err alike.
  ReferenceError at_random(const oracle::Gradients& exact, uint64_t draws = kDraws) const;
  /// At random, of a step that was skipped: gradients that are no numbers move the loss without bound.
  ReferenceError of_overflow(const oracle::Gradients& exact) const;

 private:
  oracle::Gradients within_range(DType type) const;
  /// The type that draws at random are computed in.
  DType drawn_in() const;

  const Plan& plan_;
  const Evidence& is_;
  CertificateReference& reference_;
  const oracle::Tensors& weights_;
  /// The engine, whose own arithmetic in the run's type nobody vouches for.
  bool is_own_reference_;
  double u_;
};

}  // namespace kuafu
