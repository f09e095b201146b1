// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "kuafu/engine/engine.h"
#include "tests/states/zero_plans.h"

// Runs of plans with tiers of memory, and what ranks moved in them.
namespace kuafu::tests::tiers {

/// What a rank of a booked run did.
struct Booked {
  Trained trained;
  MoveCounts moves;
  memory::UseTrace uses;
  int64_t peak = 0;                   ///< booked bytes on the device
  int64_t states = 0;                 ///< of parameters, gradients and slots that the rank keeps
  int64_t gradients = 0;              ///< bytes of them, in a step
  int64_t arena = 0, high_water = 0;  ///< bytes of address space; how far it was used
};

/// All steps of a plan on one rank; what ranks have in the end, whole, where there is memory.
void train_booked(const Plan& plan, Communicator& world, const Dataset& data, at::Device device,
                  Booked& out);
/// The same on thread ranks.
std::vector<Booked> on_threads(const Plan& plan);
/// The same on meta tensors, rank by rank.
std::vector<Booked> simulated(const Plan& plan);

/// f32, sums in the order of ranks, so that bits are those of any cut of buckets.
Plan plan_with(Overrides more);
Overrides replicas(int64_t n, int64_t stage);
Overrides policy(const std::string& name, int64_t device, const Overrides& more = {});
Overrides both(Overrides a, const Overrides& b);
/// Those that this build can run.
std::vector<std::string> policies();
/// The least budget a plan trains under, by the peak that "host" has without prefetch.
int64_t least_budget(const Overrides& base);
/// A model, a scheme, an optimizer, a type: what tiers are beside.
const std::vector<std::pair<std::string, Overrides>>& kinds();

}  // namespace kuafu::tests::tiers
