// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kuafu/oracle/oracle.h"

// Muon's step of whole matrices, and what rounding makes of it.
namespace kuafu::oracle {

/// Newton-Schulz of each matrix that a weight holds, times its scale.
at::Tensor orthogonal_step(const OptimizerPlan& plan, const at::Tensor& u, const Weight& weight);

/// At every element, how far the step of its matrix may be off in the Frobenius norm where it is
/// computed with unit roundoff `unit`. `spread`: how far each element of u may be.
at::Tensor orthogonal_error(const OptimizerPlan& plan, const at::Tensor& u,
                            const at::Tensor& spread, const Weight& weight, double unit);

}  // namespace kuafu::oracle
