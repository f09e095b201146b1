// SPDX-License-Identifier: Apache-2.0
//
// What training sends by MPI, counted on its wire, is what the same rank counts simulated alone:
// bytes, messages, wire peers and calls, axis by axis. (Call by call: tests/comm/mpi_test.cpp.)

#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>

#include <iostream>
#include <map>
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

/// Every `stride`-th combination of the matrix by what becomes of it here: each is in one of the four.
struct Sweep {
  std::map<std::string, Plan> plans;         ///< by hash: 2 ranks to this world's, all exact
  std::map<std::string, std::string> names;  ///< the first combination of each
  std::map<std::string, int64_t> refused;    ///< combinations by the reason
  std::map<std::string, int64_t>
      not_on_wires;       ///< the same of plans that nothing here could compare
  int64_t same_plan = 0;  ///< combinations whose plan another one has
};

Sweep sweep_of(const std::vector<matrix::Combination>& combinations, size_t stride) {
  const Registries registries = builtin_registries();
  const auto dims = matrix::dimensions(registries);
  const int64_t most = tests::mpi_world().size();
  Sweep sweep;
  for (size_t i = 0; i < combinations.size(); i += stride) {
    Plan plan;
    try {
      plan = matrix::placed(matrix::settings_of(dims, combinations[i]), registries);
    } catch (const ConfigError& e) {
      ++sweep.refused[e.what()];
      continue;
    }
    if (num_ranks(plan) < 2) {
      ++sweep.not_on_wires["one rank sends nothing"];
    } else if (num_ranks(plan) > most) {
      ++sweep.not_on_wires[text(num_ranks(plan), " ranks, here are ", most)];
    } else if (plan.parallel.data.staleness > 0) {
      ++sweep.not_on_wires["pushes with staleness cannot be simulated"];
    } else if (sweep.plans.emplace(plan_hash(plan), plan).second) {
      sweep.names[plan_hash(plan)] = matrix::name_of(dims, combinations[i]);
    } else {
      ++sweep.same_plan;
    }
  }
  return sweep;
}

int64_t sum_of(const std::map<std::string, int64_t>& counts) {
  int64_t sum = 0;
  for (const auto& [why, count] : counts) {
    EXPECT_FALSE(why.empty()) << count << " combinations without a reason";
    sum += count;
  }
  return sum;
}

/// Runs all plans of the sweep; no combination is left out without a reason. Returns how many ran.
size_t expect_matrix_as_simulated(size_t stride) {
  const auto combinations = matrix::combinations(matrix::dimensions(builtin_registries()), 200, 1);
  const Sweep sweep = sweep_of(combinations, stride);
  const auto num_looked_at = static_cast<int64_t>((combinations.size() + stride - 1) / stride);
  EXPECT_EQ(sum_of(sweep.refused) + sum_of(sweep.not_on_wires) + sweep.same_plan +
                static_cast<int64_t>(sweep.plans.size()),
            num_looked_at);
  std::set<std::string> run, asked;
  for (const auto& [hash, plan] : sweep.plans) {
    asked.insert(hash);
    if (expect_wire_as_simulated(plan, sweep.names.at(hash))) run.insert(hash);
  }
  EXPECT_EQ(run, asked);
  if (tests::mpi_world().rank() != 0) return run.size();
  std::cout << run.size() << " plans of " << num_looked_at << " combinations, " << sweep.same_plan
            << " of a plan that is among them\n";
  for (const auto* left_out : {&sweep.not_on_wires, &sweep.refused}) {
    for (const auto& [why, count] : *left_out) std::cout << count << " not: " << why << "\n";
  }
  return run.size();
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
  EXPECT_GE(expect_matrix_as_simulated(61), 10U);
}

// On 6 ranks every plan of 2 to 6: all that the matrix has but for those that are refused, on one rank,
// on more than 6, or with staleness.
TEST(Wires, OfEveryPlanOfTheMatrixAreThoseSimulated) {
  EXPECT_GE(expect_matrix_as_simulated(1), 100U);
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
