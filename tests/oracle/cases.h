// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ostream>

#include "kuafu/oracle/oracle.h"
#include "tests/support/plans.h"

namespace kuafu::tests {

/// Every model with every option, as changes of small_plan().
const std::vector<Family>& oracle_cases();

/// The samples of a step, cut into so many micro-batches.
std::vector<oracle::Samples> samples_of(const Plan& plan, const Dataset& data, int64_t step,
                                        int64_t micro_batches = 1);

/// Weights whose every element matters: the first values of small models are nearly zero, and
/// biases are.
oracle::Tensors lively_weights(const oracle::Model& model);

/// The sum over micro-batches of loss and auxiliary losses.
double whole_loss(const oracle::Model& model, const oracle::Tensors& weights,
                  const std::vector<oracle::Samples>& micro,
                  const std::vector<oracle::Routes>& routes);
/// The decisions taken by each micro-batch.
std::vector<oracle::Routes> routes_of(const oracle::Model& model, const oracle::Tensors& weights,
                                      const std::vector<oracle::Samples>& micro);

}  // namespace kuafu::tests
