// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "tests/support/plans.h"

namespace kuafu::tests {

/// Makes two steps of a plan as a rank of `world`, and as the same rank simulated with the oracle
/// values of the first: expects the same events, that something books every op (op_kinds.h), and
/// that they say of memory, work and calls what the books and the ledger say.
/// @pre the world has the plan's ranks; every rank calls it.
void expect_traced_as_simulated(const Plan& plan, Communicator& world, const std::string& name);

}  // namespace kuafu::tests
