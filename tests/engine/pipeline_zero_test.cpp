// SPDX-License-Identifier: Apache-2.0
//
// ZeRO within pipelines: every schedule under every stage equals one rank, and the stages of ZeRO
// agree to the bit where sums have a fixed order.

#include <gtest/gtest.h>

#include "kuafu/engine/whole.h"
#include "tests/engine/composed.h"
#include "tests/states/zero_plans.h"
#include "tests/support/ranks.h"
#include "tests/support/simulated.h"

namespace kuafu {
namespace {

using tests::Composed;
using tests::Pipe;
using tests::Trained;

class ZeroPipelines : public testing::TestWithParam<Pipe> {};

const Composed kReplicas{"data_2", {}, 2};
const Composed kTensorReplicas{
    "data_2_t1d_2", {{"parallel.tensor.mode", "1d"}, {"parallel.tensor.size", "2"}}, 2};

Overrides stage(int64_t zero, Overrides more = {}) {
  more.emplace_back("parallel.zero", text(zero));
  return more;
}

// AdamW, clipped; a bucket a block and one a tensor; the last micro-batch of a step starts sums
// while other stages still work.
TEST_P(ZeroPipelines, EqualOneRankClippedWithDropoutAndRecomputation) {
  for (int64_t zero = 1; zero <= 3; ++zero) {
    const std::string what = text("ZeRO-", zero);
    tests::expect_equal(
        tests::composed_plan(kReplicas, GetParam(), 3, stage(zero, {{"model.dropout", "0.1"}})),
        what);
    tests::expect_equal(tests::composed_plan(kTensorReplicas, GetParam(), 5,
                                             stage(zero, {{"memory.recompute", "full"},
                                                          {"parallel.data.bucket", "1"},
                                                          {"parallel.data.overlap", "false"}})),
                        what + " and 1d");
  }
}

TEST_P(ZeroPipelines, MeterTheSameInTheSimulatedWorld) {
  for (int64_t zero = 1; zero <= 3; ++zero) {
    for (const char* dtype : {"f32", "bf16"}) {
      tests::expect_simulated_equals_threads(
          tests::composed_plan(
              kReplicas, GetParam(), 3,
              stage(zero, {{"model.dtype", dtype}, {"parallel.data.bucket", "3000"}})),
          text("ZeRO-", zero, ", ", dtype));
    }
  }
}

/// What train() leaves behind, for a model with a tied and an unused parameter too.
Trained train_idle(const Plan& plan) {
  const Registries registries = tests::idle_registries();
  Trained trained;
  tests::run_ranks(static_cast<int>(num_ranks(plan)), [&](Communicator& world) {
    const auto data = tests::data_of(plan);
    Engine engine(plan, registries, world, *data, {});
    for (int64_t step = 0; step < plan.train.steps; ++step) {
      const double loss = engine.step().loss;
      if (world.rank() == 0) trained.losses.push_back(loss);
    }
    const bool is_first = world.rank() == 0;
    WholeTensors whole = whole_parameters(engine, is_first ? Keep::kYes : Keep::kNo);
    if (is_first) trained.parameters = std::move(whole);
  });
  return trained;
}

// Sums in rank order, every micro-batch: neither stage nor bucket nor overlap changes a bit.
TEST_P(ZeroPipelines, StagesAgreeToTheBitInAFixedOrder) {
  for (const int64_t micro_batches : {1, 2, 5}) {
    const auto train = [&](int64_t zero, const char* bucket, const char* overlap) {
      return train_idle(tests::with_idle(
          tests::composed_plan(kReplicas, GetParam(), micro_batches,
                               stage(zero, {{"model.dtype", "f32"},
                                            {"parallel.data.order", "fixed"},
                                            {"parallel.data.bucket", bucket},
                                            {"parallel.data.overlap", overlap}}))));
    };
    const Trained expected = train(0, "25 MB", "true");
    for (int64_t zero = 0; zero <= 3; ++zero) {
      const std::string what = text("ZeRO-", zero, ", ", micro_batches, " micro-batches");
      EXPECT_TRUE(tests::is_same(train(zero, "1", "false"), expected)) << what;
      EXPECT_TRUE(tests::is_same(train(zero, "3000", "true"), expected)) << what;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, ZeroPipelines, testing::ValuesIn(tests::two_rank_pipes()),
                         [](const auto& info) { return tests::name_of(info.param); });

// Three stages and three replicas; more stages than micro-batches.
TEST(ZeroPipeline, OfOddSizesEqualsOneRank) {
  const Composed thirds{"data_3", {}, 3};
  for (int64_t zero = 1; zero <= 3; ++zero) {
    for (const Pipe& pipe : {Pipe{"1f1b", 3, 1}, Pipe{"interleaved", 3, 2}}) {
      tests::expect_equal(tests::composed_plan(thirds, pipe, 2, stage(zero)),
                          text(pipe, ", ZeRO-", zero));
    }
  }
}

// What a rank keeps of its own stages is what the stage of ZeRO leaves it: a replica of two holds
// half of what is sharded.
TEST(ZeroPipeline, ShardsWhatAStageHolds) {
  const auto peak = [](int64_t zero, Category category) {
    const Plan plan = tests::composed_plan(
        {"data_2", {}, 2}, {"1f1b", 2, 1}, 3,
        stage(zero, {{"model.layers", "4"}, {"model.vocab", "64"}, {"model.positions", "rotary"}}));
    return tests::run_plan(plan)[0].peak_by_category[static_cast<size_t>(category)];
  };
  const double optimizer = static_cast<double>(peak(0, Category::kOptimizer));
  for (int64_t zero = 1; zero <= 3; ++zero) {
    EXPECT_NEAR(static_cast<double>(peak(zero, Category::kOptimizer)) / optimizer, 0.5, 0.02)
        << "ZeRO-" << zero;
  }
  EXPECT_LT(peak(3, Category::kParameter), peak(0, Category::kParameter));
}

}  // namespace
}  // namespace kuafu
