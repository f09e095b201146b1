// SPDX-License-Identifier: Apache-2.0
//
// Inputs of blocks on the host from their forward to their backward: the same bits, less of the device.

#include <gtest/gtest.h>

#include "kuafu/base/trace.h"
#include "kuafu/meter/allocator.h"
#include "kuafu/simulate/simulate.h"
#include "kuafu/states/activations.h"
#include "tests/states/tier_runs.h"
#include "tests/support/ranks.h"

namespace kuafu {
namespace {

using namespace tests;         // NOLINT: data_of, is_same, run_ranks
using namespace tests::tiers;  // NOLINT: the words of tier_runs.h

const Overrides kRecomputed = {{"memory.recompute", "full"}};
const Overrides kAway = {{"memory.policy", "host"}, {"memory.activations", "host"}};

/// Of all ranks in a step, one way.
int64_t bytes_away(const std::vector<Booked>& ranks) {
  int64_t bytes = 0;
  for (const Booked& r : ranks) bytes += r.moves.step_activations;
  return bytes;
}

TEST(Activations, TrainEveryKindOfPlanToTheBitsOfPlain) {
  for (const auto& [name, base] : kinds()) {
    const Overrides recomputed = both(base, kRecomputed);
    const std::vector<Booked> plain = on_threads(plan_with(recomputed));
    const std::vector<Booked> away = on_threads(plan_with(both(recomputed, kAway)));
    for (size_t r = 0; r < plain.size(); ++r) {
      EXPECT_TRUE(is_same(away[r].trained, plain[r].trained)) << name;
    }
    EXPECT_GT(bytes_away(away), 0) << name;
  }
}

TEST(ActivationsWhole, TrainToTheBitsOfPlainUnderEveryScheduleAndPolicy) {
  for (const std::string& policy : policies()) {
    for (const char* schedule : {"gpipe", "1f1b", "interleaved", "zero_bubble", "zbv"}) {
      const std::string chunks =
          schedule == std::string("interleaved") || schedule == std::string("zbv") ? "2" : "1";
      const Overrides base = both(kRecomputed, {{"parallel.pipeline", "2"},
                                                {"parallel.pipeline.schedule", schedule},
                                                {"parallel.pipeline.chunks", chunks},
                                                {"model.layers", "6"},
                                                {"train.micro_batch", "2"}});
      const std::vector<Booked> plain = on_threads(plan_with(base));
      const std::vector<Booked> away = on_threads(plan_with(both(
          base,
          {{"memory.policy", policy}, {"memory.activations", "host"}, {"memory.device", "1 GB"}})));
      for (size_t r = 0; r < plain.size(); ++r) {
        EXPECT_TRUE(is_same(away[r].trained, plain[r].trained)) << policy << ", " << schedule;
      }
      EXPECT_GT(bytes_away(away), 0) << policy << ", " << schedule;
    }
  }
}

TEST(Activations, MoveAndHoldAsMuchWithoutMemory) {
  for (const int64_t stage : {0, 3}) {
    for (const char* size : {"1", "3"}) {  // several micro-batches, and one
      Plan plan = plan_with(
          both(both(replicas(2, stage), kRecomputed), both(kAway, {{"train.micro_batch", size}})));
      std::vector<Booked> real = on_threads(plan);
      const std::vector<Booked> meta = simulated(plan);
      for (size_t r = 0; r < real.size(); ++r) {
        real[r].moves.wait_seconds = 0;
        EXPECT_EQ(meta[r].moves, real[r].moves) << "ZeRO-" << stage << ", " << size;
        EXPECT_EQ(meta[r].peak, real[r].peak) << "ZeRO-" << stage << ", " << size;
      }
    }
  }
}

// Of a GPT's blocks all have an input of batch x sequence x hidden; the head's backward follows its
// forward, so that its input stays, and the embedding takes tokens.
TEST(Activations, AreTheInputsOfAllBlocks) {
  const Plan plan = plan_with(both(kRecomputed, both(kAway, {{"model.layers", "5"}})));
  const std::vector<Booked> ranks = on_threads(plan);
  const int64_t input = plan.train.batch * plan.model.sequence * plan.model.hidden * 4;
  EXPECT_EQ(ranks[0].moves.step_activations, 5 * input);
  EXPECT_EQ(ranks[0].moves.activations, plan.train.steps * 5 * input);
}

// Deep models keep an input a layer on the device, or two.
TEST(Activations, TakeInputsOffTheDevice) {
  const auto peak = [](const char* layers, const char* where) {
    return on_threads(plan_with(both(kRecomputed, {{"memory.policy", "host"},
                                                   {"memory.prefetch", "0"},
                                                   {"memory.activations", where},
                                                   {"train.batch", "24"},
                                                   {"model.layers", layers}})))[0]
        .peak;
  };
  const Plan plan = plan_with({{"train.batch", "24"}});
  const int64_t input = plan.train.batch * plan.model.sequence * plan.model.hidden * 4;
  EXPECT_EQ(peak("12", "device") - peak("6", "device"), 6 * input);
  EXPECT_EQ(peak("12", "host"), peak("6", "host"));
}

TEST(Activations, CopiesAreInTheTraceAndEachIsWaitedFor) {
  const Plan plan = plan_with(both(kRecomputed, kAway));
  run_ranks(1, [&](Communicator& world) {
    TraceRecorder recorder;
    Booked booked;
    {
      const TraceScope traced(&recorder);
      train_booked(plan, world, *data_of(plan), at::kCPU, booked);
    }
    int64_t there = 0, back = 0, arrived = 0;
    const Trace& trace = recorder.trace();
    for (const TraceRecord& r : trace.records) {
      if (trace.names.at(static_cast<size_t>(r.name)) != "activation") continue;
      if (r.kind == TraceKind::kArrival) arrived += r.payload[1];
      if (r.kind != TraceKind::kCopy) continue;
      (r.queue == TraceQueue::kToHost ? there : back) += r.payload[1];
    }
    EXPECT_EQ(there, booked.moves.activations);
    EXPECT_EQ(back, there);
    EXPECT_EQ(arrived, there + back);
  });
}

TEST(Activations, ThatPassNoBlockStay) {
  TierCopies copies(true, {});
  AwayActivations away(copies, nullptr);
  const Tensor whole = at::ones({4, 6}), view = whole.narrow(0, 0, 2), other = at::full({8}, 3.0);
  away.leave({view, other});
  away.leave({});
  EXPECT_EQ(view.sum().item<double>(), 12);  // of a larger tensor: it stays
  EXPECT_EQ(other.storage().nbytes(), 0u);   // not there
  EXPECT_EQ(away.bytes(), 32);
  away.wait({view, other});
  EXPECT_EQ(other.sum().item<double>(), 24);
  away.wait({view, other});  // nothing is away
  EXPECT_EQ(other.sum().item<double>(), 24);
}

TEST(Activations, ThatShareTheirMemoryStay) {
  TierCopies copies(true, {});
  AwayActivations away(copies, nullptr);
  const Tensor a = at::full({8}, 3.0), b = a.detach(), other = at::full({8}, 5.0);
  away.leave({a, other, b});
  EXPECT_EQ(away.bytes(), 32);  // of floats: the other's
  away.leave({});
  EXPECT_EQ(a.sum().item<double>(), 24);
  EXPECT_EQ(other.storage().nbytes(), 0u);
  away.wait({a, other, b});
  EXPECT_EQ(b.sum().item<double>() + other.sum().item<double>(), 64);
}

// A link as fast as the copies need it hides them behind the blocks; a slow one does not.
TEST(Activations, CostASimulatedStepTheirBytesWhereNothingHidesThem) {
  const auto step = [](const char* gbs, const char* where) {
    return simulate(plan_with(both(kRecomputed, {{"memory.policy", "host"},
                                                 {"memory.activations", where},
                                                 {"cluster.compute_gflops", "1e12"},
                                                 {"cluster.memory_gbs", "1e12"},
                                                 {"cluster.host_memory_gbs", "1e12"},
                                                 {"cluster.host_gbs", gbs}})),
                    builtin_registries());
  };
  const Prediction away = step("0.01", "host"), here = step("0.01", "device");
  const double bytes = static_cast<double>(away.ranks[0].moves.step_activations);
  EXPECT_GT(bytes, 0);
  EXPECT_GT(away.step_seconds, here.step_seconds + 0.5 * bytes / 1e7);
  EXPECT_LT(away.step_seconds, here.step_seconds + 2.01 * bytes / 1e7);
}

}  // namespace
}  // namespace kuafu
