// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>
#include <utility>

#include "kuafu/base/trace.h"
#include "tests/support/plans.h"

namespace kuafu::tests {

/// A rank's steps: what was traced, and what its books and its ledger say of them.
struct TracedSteps {
  Trace trace;
  int64_t live_before = 0, live = 0, peak = 0;  ///< bytes
  int64_t flops = 0, flops_recomputed = 0;
  std::map<std::pair<std::string, std::string>, int64_t> calls = {};  ///< by axis and verb
};

/// Makes two steps as a rank of `world`.
TracedSteps traced_steps(const Plan& plan, Communicator& world, at::Device device,
                         TraceRecorder& recorder);
/// The same of a rank of a simulated world that is given the oracle values of `real`.
TracedSteps simulated_steps(const Plan& plan, int rank, int ranks, const Trace& real);

/// Where a trace says something else of memory, work or calls than books and ledger; empty:
/// nowhere.
std::string not_as_booked(const TracedSteps& steps);

/// Makes two steps of a plan as a rank of `world`, and as the same rank simulated with the oracle
/// values of the first: expects the same events, that something books every op (op_kinds.h), and
/// that they say of memory, work and calls what the books and the ledger say.
/// @pre the world has the plan's ranks; every rank calls it.
void expect_traced_as_simulated(const Plan& plan, Communicator& world, const std::string& name);

}  // namespace kuafu::tests
