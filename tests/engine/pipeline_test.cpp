// SPDX-License-Identifier: Apache-2.0
//
// Every schedule computes what one rank computes, whatever the number of stages and micro-batches,
// and the simulated world meters what thread ranks do.

#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>

#include "kuafu/engine/stepping/stage_map.h"
#include "tests/support/pipelines.h"
#include "tests/support/plans.h"
#include "tests/support/random_schedule.h"
#include "tests/support/simulated.h"

namespace kuafu {
namespace {

using tests::certificate_of;
using tests::expect_equal;
using tests::Pipe;
using tests::pipelined;
using tests::small_plan;

class Pipelines : public testing::TestWithParam<Pipe> {};

// The whole product is in larger_tests.
TEST_P(Pipelines, EqualOneRankForFewAndManyMicroBatches) {
  const char* policies[] = {"none", "full", "selective"};
  auto turn = static_cast<size_t>(GetParam().ranks);
  for (const int64_t micro_batches : {1, 3, 8}) {
    const char* policy = policies[turn++ % 3];
    expect_equal(pipelined(GetParam(), micro_batches, {{"memory.recompute", policy}}),
                 text(micro_batches, " micro-batches, recompute ", policy));
  }
}

TEST_P(Pipelines, AreMeteredAlikeInTheSimulatedWorld) {
  for (const char* policy : {"none", "full"}) {
    tests::expect_simulated_equals_threads(
        pipelined(GetParam(), 3, {{"memory.recompute", policy}, {"model.dtype", "f32"}}), policy);
  }
}

TEST_P(Pipelines, GiveTheSameBitsTwice) {
  const Plan plan = pipelined(GetParam(), 3, {{"model.dtype", "f32"}, {"model.dropout", "0.1"}});
  EXPECT_TRUE(tests::is_same(tests::train(plan), tests::train(plan)));
}

INSTANTIATE_TEST_SUITE_P(All, Pipelines, testing::ValuesIn(tests::pipes()),
                         [](const auto& info) { return tests::name_of(info.param); });

const Pipe kOneF{"1f1b", 2, 1};

TEST(Pipeline, OfOtherModelsEqualsOneRank) {
  for (const char* kind : {"bert", "vit", "moe_gpt"}) {
    for (const Pipe& s : {Pipe{"1f1b", 3, 1}, Pipe{"interleaved", 2, 2}}) {
      Overrides more = {{"model.kind", kind}, {"model.layers", "3"}};
      if (std::string(kind) == "vit") {
        more.insert(more.end(),
                    {{"model.image", "8"}, {"model.sequence", "5"}, {"model.vocab", "256"}});
      }
      if (std::string(kind) == "moe_gpt") more.emplace_back("model.experts", "4");
      expect_equal(pipelined(s, 3, more), text(kind, " ", s.schedule));
    }
  }
}

TEST(Pipeline, ComposesWithEveryOtherKindOfParallelism) {
  const std::vector<std::pair<const char*, Overrides>> kinds = {
      {"data", {{"parallel.data", "2"}, {"train.batch", "12"}}},
      {"1d", {{"parallel.tensor.mode", "1d"}, {"parallel.tensor.size", "2"}}},
      {"1d-sp", {{"parallel.tensor.mode", "1d-sp"}, {"parallel.tensor.size", "2"}}},
      {"2d", {{"parallel.tensor.mode", "2d"}, {"parallel.tensor.size", "4"}}},
      {"ring", {{"parallel.sequence.mode", "ring"}, {"parallel.sequence.size", "2"}}},
  };
  for (const auto& [name, overrides] : kinds) {
    expect_equal(pipelined(kOneF, 3, overrides), name);
    tests::expect_simulated_equals_threads(pipelined(kOneF, 3, overrides), name);
  }
}

TEST(Pipeline, StagesByHandEqualOneRank) {
  for (const char* blocks : {"[1, 4]", "[4, 1]", "[2, 3]"}) {
    expect_equal(pipelined(kOneF, 3, {{"parallel.pipeline.blocks", blocks}, {"model.layers", "3"}}),
                 blocks);
  }
}

// Any order of actions that could run does, from a file.
TEST(Pipeline, RandomValidSchedulesEqualOneRank) {
  std::mt19937 random(5);
  const std::string file = testing::TempDir() + "random_schedule.csv";
  for (int trial = 0; trial < 8; ++trial) {
    const pipeline::PipeShape s{2 + trial % 3, 1 + trial % 4, 1 + trial % 2};
    const pipeline::Timetable t = tests::random_schedule(s, random);
    std::ofstream(file) << pipeline::to_csv(t);
    expect_equal(pipelined({file, s.ranks, s.chunks}, s.micro_batches), pipeline::to_csv(t));
  }
  std::remove(file.c_str());
}

// The same gradients whichever schedule ran: conformance with 1F1B and with one rank.
TEST(Pipeline, InterleavedAndZeroBubbleEqualOneForwardOneBackwardEqualOneRank) {
  const auto losses = [](const Pipe& s) {
    return tests::train(pipelined(s, 4, {{"model.layers", "5"}})).losses;
  };
  const auto expected = losses({"1f1b", 3, 1});
  const auto one = tests::train(small_plan({{"model.layers", "5"},
                                            {"model.hidden", "16"},
                                            {"model.heads", "2"},
                                            {"train.micro_batch", "2"}}))
                       .losses;
  for (const Pipe& s : {Pipe{"gpipe", 3, 1}, Pipe{"interleaved", 3, 2}, Pipe{"zero_bubble", 3, 1},
                        Pipe{"zbv", 3, 2}}) {
    const auto found = losses(s);
    for (size_t i = 0; i < expected.size(); ++i) {
      // As certificates allow for adaptive optimizers, see certificate.cpp.
      EXPECT_NEAR(found[i] / expected[i], 1, 1e-9) << s;
      EXPECT_NEAR(found[i] / one[i], 1, 1e-9) << s;
    }
  }
}

TEST(Pipeline, SharesBlocksByCostWithinOneLayerOfTheBest) {
  const Plan plan = pipelined({"1f1b", 4, 1}, 2, {{"model.layers", "10"}, {"model.vocab", "400"}});
  const Registries registries = builtin_registries();
  const std::vector<BlockProfile> profile = profile_blocks(plan, registries, 0);
  const StageMap map = map_stages(plan, registries, profile.size(), 0);
  double all = 0, largest_block = 0, largest_stage = 0;
  for (const BlockProfile& b : profile) {
    all += b.flops;
    largest_block = std::max(largest_block, b.flops);
  }
  for (size_t s = 0; s < 4; ++s) {
    double stage = 0;
    for (size_t b = map.first_block[s]; b < map.first_block[s + 1]; ++b) stage += profile[b].flops;
    largest_stage = std::max(largest_stage, stage);
  }
  EXPECT_LE(largest_stage, all / 4 + largest_block);
  EXPECT_GT(profile.back().flops, profile[1].flops / 4);  // the head has a cost of its own
}

// What a rank holds is what its stages need, and a tied table on both ends.
TEST(Pipeline, RanksHoldTheirStagesAlone) {
  const Plan plan = pipelined({"1f1b", 3, 1}, 3,
                              {{"parallel.pipeline.blocks", "[1, 3, 1]"}, {"model.layers", "3"}});
  const auto results = tests::run_plan(plan);
  const auto whole = tests::run_plan(small_plan(
      {{"model.layers", "3"}, {"model.hidden", "16"}, {"model.heads", "2"}, {"train.batch", "6"}}));
  const auto parameters = [](const RankResult& r) {
    return r.peak_by_category[static_cast<size_t>(Category::kParameter)];
  };
  const int64_t table = 37 * 16 * 8;
  EXPECT_EQ(parameters(results[0]) + parameters(results[1]) + parameters(results[2]),
            parameters(whole[0]) + table);
  EXPECT_EQ(parameters(results[2]), table + 2 * 16 * 8);  // and the final norm
}

/// One activation forward and one gradient back for each micro-batch and boundary.
TEST(Pipeline, TrafficIsWhatTheBoundariesCarry) {
  const int64_t micro_batches = 5;
  const Plan plan = pipelined({"1f1b", 3, 1}, micro_batches);
  const auto results = tests::run_plan(plan);
  const int64_t flow = 2 * 12 * 16 * 8, steps = plan.train.steps;
  for (size_t r = 0; r < 3; ++r) {
    const AxisTraffic& t = results[r].traffic.at("pipeline");
    EXPECT_EQ(t.calls.at("send"), steps * micro_batches * (r == 1 ? 2 : 1));
    EXPECT_EQ(t.calls.at("recv"), steps * micro_batches * (r == 1 ? 2 : 1));
    const int64_t table = r == 1 ? 0 : 37 * 16 * 8;  // an all-reduce of two ranks: its bytes once
    const int64_t scalars = 2 * 8 * 2 * 2 / 3;       // loss and norm over three ranks
    EXPECT_NEAR(static_cast<double>(t.bytes_received) / static_cast<double>(steps),
                static_cast<double>(flow * micro_batches * (r == 1 ? 2 : 1) + table + scalars), 16);
  }
}

// Stages do together what one rank does, a split backward no more than a whole one.
TEST(Pipeline, FlopsAreThoseOfOneRank) {
  const auto flops = [](const Plan& plan) {
    int64_t sum = 0;
    for (const RankResult& r : tests::run_plan(plan)) sum += r.flops;
    return sum;
  };
  const Overrides five = {{"model.layers", "5"}};
  const int64_t expected = flops(small_plan(
      {{"model.layers", "5"}, {"model.hidden", "16"}, {"model.heads", "2"}, {"train.batch", "6"}}));
  for (const Pipe& s : {Pipe{"gpipe", 3, 1}, Pipe{"interleaved", 2, 3}, Pipe{"zero_bubble", 2, 1},
                        Pipe{"zbv", 3, 2}}) {
    EXPECT_EQ(flops(pipelined(s, 3, five)), expected) << s;
  }
}

// p - r micro-batches under way on rank r of 1F1B, all of them in GPipe.
TEST(Pipeline, ActivationsFollowTheSchedule) {
  const auto activations = [](const char* schedule, size_t rank, int64_t micro_batches) {
    const Plan plan = pipelined({schedule, 3, 1}, micro_batches,
                                {{"model.layers", "4"}, {"parallel.pipeline.blocks", "[2, 2, 2]"}});
    return tests::run_plan(plan)[rank].peak_by_category[static_cast<size_t>(Category::kActivation)];
  };
  EXPECT_EQ(activations("1f1b", 0, 8), activations("1f1b", 0, 4));  // 3 alive, no more
  EXPECT_LT(activations("1f1b", 0, 8), activations("gpipe", 0, 8) / 2);
  EXPECT_GT(activations("gpipe", 1, 8), activations("gpipe", 1, 4) * 3 / 2);
  EXPECT_EQ(activations("zero_bubble", 0, 8), activations("zero_bubble", 0, 5));
}

TEST(Pipeline, ExpertLoadsAreThoseOfOneRank) {
  const Overrides moe = {{"model.kind", "moe_gpt"},
                         {"model.experts", "4"},
                         {"model.layers", "3"},
                         {"memory.recompute", "full"}};
  const auto many = tests::run_plan(pipelined({"gpipe", 3, 1}, 3, moe));
  Overrides alone = moe;
  alone.insert(alone.end(), {{"model.hidden", "16"},
                             {"model.heads", "2"},
                             {"train.batch", "6"},
                             {"train.micro_batch", "2"}});
  const auto one = tests::run_plan(small_plan(alone));
  ASSERT_EQ(one[0].experts.size(), 3u);
  for (const RankResult& r : many) EXPECT_EQ(r.experts, one[0].experts);
}

TEST(Pipeline, ScaledCertificateKeepsTheStages) {
  const Plan plan = pipelined({"interleaved", 2, 3}, 8, {{"model.layers", "12"}});
  const Certificate c = certificate_of(plan, 1'000'000);
  EXPECT_EQ(c.level, "scaled");
  EXPECT_EQ(c.verdict, "equal");
}

}  // namespace
}  // namespace kuafu
