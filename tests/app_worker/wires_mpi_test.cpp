// SPDX-License-Identifier: Apache-2.0
//
// What training sends by MPI, counted on its wire, is what the same rank counts simulated alone:
// bytes, messages, wire peers and calls, axis by axis. (Call by call: tests/comm/mpi_test.cpp.)

#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>

#include <iostream>
#include <set>

#include "app/worker/matrix.h"
#include "kuafu/simulate/simulate.h"
#include "tests/support/mpi_world.h"
#include "tests/support/plans.h"
#include "tests/support/simulated.h"
#include "tests/support/traces.h"

namespace kuafu {
namespace {

/// On the first ranks of the world, as many as the plan has; false where it has more.
bool expect_wire_as_simulated(const Plan& plan, const std::string& name) {
  const auto ranks = static_cast<int>(num_ranks(plan));
  if (ranks > tests::mpi_world().size()) return false;
  const auto group = tests::first_ranks(ranks);
  if (group == nullptr) return true;
  RunOptions run;
  run.make_data = tests::data_of;
  const RankResult real = run_rank(plan, builtin_registries(), *group, run);
  SimulatedWorld simulated(ranks, Transport::kMpi);
  const RankResult predicted = simulate_rank(plan, builtin_registries(), simulated, group->rank());
  const std::string where = text(name, ", rank ", group->rank(), " of ", ranks, ": ");
  tests::expect_same_traffic(predicted.traffic, real.traffic, where);
  for (const auto& [axis, t] : real.traffic) {  // an axis without a call has nothing to count
    EXPECT_TRUE(t.calls.empty() || t.counting == "wire") << where << axis << ": " << t.counting;
  }
  return true;
}

/// Plans of the matrix for 2 ranks or more that this world has: of every `stride`-th combination.
/// Under staleness nothing is simulated.
int64_t expect_matrix_as_simulated(int64_t stride) {
  const Registries registries = builtin_registries();
  const TensorModes modes = registries.tensor_modes();
  const auto dims = matrix::dimensions(registries);
  std::set<std::string> met;
  int64_t index = 0, num_run = 0;
  for (const auto& combination : matrix::combinations(dims, 200, 1)) {
    if (index++ % stride != 0) continue;
    const std::string name = matrix::name_of(dims, combination);
    Plan plan;
    try {
      plan = resolve(parse_plan("", "plan", modes, matrix::settings_of(dims, combination),
                                registries.models.names()),
                     0, modes);
      check_placement(plan, registries);
    } catch (const ConfigError&) {
      continue;  // the matrix shows why
    }
    if (num_ranks(plan) < 2 || num_ranks(plan) > tests::mpi_world().size()) continue;
    if (plan.parallel.data.staleness > 0 || !met.insert(plan_hash(plan)).second) continue;
    num_run += expect_wire_as_simulated(plan, name) ? 1 : 0;
  }
  if (tests::mpi_world().rank() == 0) std::cout << num_run << " plans\n";
  return num_run;
}

// As many peers are not the same peers.
TEST(Wires, OfOtherPeersAreTold) {
  Ledger real, simulated;
  real.axis("data").wire_peers = {1, 3};
  simulated.axis("data").wire_peers = {1, 2};
  EXPECT_NONFATAL_FAILURE(tests::expect_same_traffic(traffic_of(simulated), traffic_of(real), ""),
                          "wire_peers");
}

TEST(Wires, OfASampleOfTheMatrixAreThoseSimulated) {
  EXPECT_GE(expect_matrix_as_simulated(61), 10);
}

// On 6 ranks: every plan of 2 to 6.
TEST(Wires, OfEveryPlanOfTheMatrixAreThoseSimulated) {
  EXPECT_GE(expect_matrix_as_simulated(1), 100);
}

/// Large enough that every kind of collective takes more than one algorithm.
Overrides wide(const Overrides& more) {
  return tests::keys::both({{"model.hidden", "128"},
                            {"model.vocab", "509"},
                            {"model.sequence", "48"},
                            {"model.dtype", "f32"},
                            {"train.batch", "12"}},
                           more);
}

TEST(Wires, OfWidePlansAreThoseSimulated) {
  using namespace tests::keys;  // NOLINT: the rows below are a table
  const std::vector<tests::Family> plans = {
      {"data", {{"parallel.data", "4"}}},
      {"data on 3", {{"parallel.data", "3"}, {"parallel.data.bucket", "100000"}}},
      {"1d", tensor("1d", "4")},
      {"2d", tensor("2d", "4")},
      {"1d-sp, data", both(tensor("1d-sp", "2"), {{"parallel.data", "2"}})},
      {"zero 3", {{"parallel.data", "4"}, {"parallel.zero", "3"}}},
      {"ring on 3", sequence("ring", "3")},
      {"experts", both(experts("4"), {{"parallel.data", "4"}})},
      {"pipeline, zero 1",
       {{"parallel.pipeline", "2"},
        {"parallel.data", "2"},
        {"parallel.zero", "1"},
        {"train.micro_batch", "2"}}},
      {"zero-bubble V",
       {{"parallel.pipeline.size", "2"},
        {"parallel.pipeline.schedule", "zbv"},
        {"parallel.pipeline.chunks", "2"},
        {"train.micro_batch", "2"}}},
      {"tree", {{"parallel.data", "3"}, {"parallel.data.mode", "tree"}}},
      {"servers", {{"parallel.data", "3"}, {"parallel.data.mode", "parameter_server"}}},
      {"f16", both(tensor("1d", "2"), {{"model.dtype", "f16"}, {"parallel.data", "2"}})},
  };
  int num_run = 0;
  for (const tests::Family& f : plans) {
    num_run += expect_wire_as_simulated(tests::small_plan(wide(f.overrides)), f.name) ? 1 : 0;
  }
  EXPECT_GE(num_run, tests::mpi_world().size() >= 4 ? static_cast<int>(plans.size()) : 1);
}

// The recorder is the same on MPI ranks as on threads and simulated (tests/simulate/trace_test.cpp
// has the rest of the plans).
TEST(MpiTraces, AreThoseSimulated) {
  using namespace tests::keys;  // NOLINT: the rows below are a table
  const std::vector<tests::Family> plans = {
      {"data", {{"parallel.data", "4"}}},
      {"2d, full", both(tensor("2d", "4"), {{"memory.recompute", "full"}})},
      {"zero 3, 1d-sp",
       both(tensor("1d-sp", "2"), {{"parallel.data", "2"}, {"parallel.zero", "3"}})},
      {"ulysses", both(sequence("ulysses", "2"), {{"model.dtype", "f32"}})},
      {"experts", both(experts("2"), {{"parallel.data", "2"}})},
      {"1f1b, zero 1",
       {{"parallel.pipeline", "2"},
        {"parallel.data", "2"},
        {"parallel.zero", "1"},
        {"train.micro_batch", "2"}}},
  };
  for (const tests::Family& f : plans) {
    const Plan plan = tests::small_plan(f.overrides);
    const auto ranks = static_cast<int>(num_ranks(plan));
    if (ranks > tests::mpi_world().size()) continue;
    const auto group = tests::first_ranks(ranks);
    if (group != nullptr) tests::expect_traced_as_simulated(plan, *group, f.name);
  }
}

}  // namespace
}  // namespace kuafu
