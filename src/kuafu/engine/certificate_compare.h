// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "kuafu/engine/certificate_step.h"

// What the checks of a step share. Internal to the certificate.
namespace kuafu {

oracle::Tensors in_type(const oracle::Tensors& tensors, at::ScalarType type);

/// "what, step 3": steps are told from 1.
std::string at_step(const Evidence& evidence, const std::string& what);

/// |mine - exact| <= bound * scale, element by element; where they have another shape, refutes.
struct Elements {
  const Tensor& mine;
  const Tensor& exact;
  const Tensor& scale;
};
void add_elements(const Elements& elements, double bound, const std::string& where, Proof& proof);

/// The step's update: weights and optimizer state after it, from its own gradients, norm and state.
void check_update(const Plan& plan, const Evidence& evidence, Proof& proof);

/// A skipped step leaves everything as it was. Whether it had to be skipped: certificate_step.cpp.
void check_skipped(const Evidence& evidence, Proof& proof);

}  // namespace kuafu
