// SPDX-License-Identifier: Apache-2.0
//
// f16, scaled losses and steps that overflow, under every kind of plan.

#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include <algorithm>

#include "tests/engine/resume.h"
#include "tests/record/support.h"
#include "tests/support/pipelines.h"
#include "tests/support/ranks.h"
#include "tests/support/simulated.h"

namespace kuafu {
namespace {

using tests::Family;
using tests::is_same;
using tests::plan_of;
using tests::run_plan;
using tests::small_plan;
using tests::train;
using tests::with;

Overrides zero(const char* stage, const char* data) {
  return {{"parallel.data", data}, {"parallel.zero", stage}};
}

Overrides pipeline(const char* size, const char* schedule, const char* chunks = "1") {
  return {{"parallel.pipeline.size", size},
          {"parallel.pipeline.schedule", schedule},
          {"parallel.pipeline.chunks", chunks},
          {"train.micro_batch", "2"}};
}

/// The families, and what they lack: pipelines, ZeRO, servers, mixtures of experts.
std::vector<Family> all_families() {
  std::vector<Family> all = tests::families();
  for (const char* stage : {"1", "2", "3"}) all.push_back({text("zero_", stage), zero(stage, "2")});
  all.push_back({"zero_3_data_3", with(zero("3", "3"), {{"train.batch", "6"}})});
  all.push_back({"zero_2_fixed", with(zero("2", "2"), {{"parallel.data.order", "fixed"},
                                                       {"train.micro_batch", "2"}})});
  all.push_back({"pipeline_2", pipeline("2", "1f1b")});
  all.push_back({"pipeline_3", with(pipeline("3", "gpipe"), {{"model.layers", "3"}})});
  all.push_back({"zero_bubble_2", pipeline("2", "zero_bubble")});
  all.push_back(
      {"interleaved_2", with(pipeline("2", "interleaved", "2"), {{"model.layers", "3"}})});
  all.push_back({"pipeline_2_zero_1_t1d_2", with(with(pipeline("2", "1f1b"), zero("1", "2")),
                                                 tests::family("t1d_2").overrides)});
  all.push_back({"server",
                 {{"parallel.data", "3"},
                  {"parallel.data.mode", "parameter_server"},
                  {"parallel.data.servers", "2"},
                  {"train.batch", "6"}}});
  all.push_back({"ring", {{"parallel.data", "2"}, {"parallel.data.mode", "ring"}}});
  all.push_back({"experts",
                 {{"model.kind", "moe_gpt"},
                  {"model.experts", "4"},
                  {"model.balance_loss", "0.1"},
                  {"model.z_loss", "0.01"},
                  {"parallel.data", "2"},
                  {"parallel.expert.size", "2"}}});
  all.push_back({"bert", {{"model.kind", "bert"}, {"parallel.data", "2"}}});
  all.push_back({"vit",
                 {{"model.kind", "vit"},
                  {"model.vocab", "256"},
                  {"model.sequence", "17"},
                  {"model.image", "8"},
                  {"model.patch", "2"},
                  {"parallel.data", "2"}}});
  all.push_back({"recompute", {{"memory.recompute", "full"}, {"parallel.data", "2"}}});
  return all;
}

class Scaling : public testing::TestWithParam<Family> {};

// Every rounding commutes with a power of two: in f64, far from subnormals, a scaled run is the
// unscaled one to the bit, clipping (small_plan clips) and all. So the scale reaches every loss and
// leaves every gradient, exactly once.
TEST_P(Scaling, ByPowersOfTwoChangesNoBitInF64) {
  const auto plain = train(plan_of(GetParam()));
  EXPECT_TRUE(is_same(train(plan_of(GetParam(), {{"train.loss_scale", "1024"}})), plain));
  const Overrides growing = {{"train.loss_scale", "dynamic"}, {"train.loss_scale_interval", "1"}};
  EXPECT_TRUE(is_same(train(plan_of(GetParam(), growing)), plain));
  EXPECT_FALSE(is_same(train(plan_of(GetParam(), {{"optimizer.clip", "0"}})), plain));
}

// The f64 twin scales as the plan does, its reference does not; the native run stays near f64.
TEST_P(Scaling, OfF16IsCertified) {
  for (const char* scale : {"auto", "300"}) {
    const Certificate c = tests::certificate_of(
        plan_of(GetParam(), {{"model.dtype", "f16"}, {"train.loss_scale", scale}}));
    EXPECT_EQ(c.verdict, "equal") << scale << ": " << c.describe() << "; native "
                                  << c.native.describe();
    EXPECT_EQ(c.native.verdict, "equal");
  }
}

TEST_P(Scaling, MetersTheSameInTheSimulatedWorld) {
  tests::expect_simulated_equals_threads(plan_of(GetParam(), {{"model.dtype", "f16"}}), "f16");
  tests::expect_simulated_equals_threads(
      plan_of(GetParam(), {{"model.dtype", "bf16"}, {"train.loss_scale", "dynamic"}}), "bf16");
}

TEST_P(Scaling, SkipsTheSameStepsOnEveryRank) {
  const auto all = run_plan(plan_of(GetParam(), {{"model.dtype", "f16"},
                                                 {"train.loss_scale_start", "1099511627776"},
                                                 {"train.loss_scale_interval", "2"},
                                                 {"train.steps", "30"}}));
  for (const RankResult& r : all) {
    EXPECT_EQ(r.skipped, all[0].skipped);
    EXPECT_EQ(r.loss_scales, all[0].loss_scales);
    EXPECT_EQ(r.losses, all[0].losses);
  }
  // Halved from 2^40 until nothing overflows; then up every second step, and down again.
  const std::vector<int64_t>& skipped = all[0].skipped;
  ASSERT_GE(skipped.size(), 15u);
  for (int64_t step = 0; step < 15; ++step) {
    EXPECT_EQ(skipped[static_cast<size_t>(step)], step);
    EXPECT_EQ(all[0].loss_scales[static_cast<size_t>(step)], std::ldexp(1.0, 40 - step));
    // Nothing was learnt: other samples, the same parameters.
    EXPECT_NEAR(all[0].losses[static_cast<size_t>(step)], all[0].losses[0], 0.3);
  }
  EXPECT_LT(skipped.size(), 30u);
}

INSTANTIATE_TEST_SUITE_P(All, Scaling, testing::ValuesIn(all_families()),
                         [](const auto& info) { return info.param.name; });

TEST(F16, TrainsUnderEveryKindOfPlan) {
  for (const Overrides& o :
       {Overrides{}, tests::family("data_2").overrides, tests::family("t1d_2").overrides,
        pipeline("2", "1f1b"), zero("1", "2"), zero("2", "2"), zero("3", "2")}) {
    const Plan plan = small_plan(with(o, {{"model.dtype", "f16"}, {"train.steps", "30"}}));
    const RankResult r = run_plan(plan)[0];
    EXPECT_NEAR(r.losses.front(), 3.61, 0.1);  // ln(37)
    EXPECT_LT(r.losses.back(), r.losses.front() - 0.5);
    EXPECT_LT(r.skipped.size(), 15u);
  }
}

// Gradients that f16 cannot hold: what a scale is for. The weights of the head see at most
// 1 / (tokens) of a gradient each; with a scale of 2^-20 nothing of it is left.
TEST(F16, LosesItsGradientsWithoutAScale) {
  const auto fall = [](const char* scale) {
    const Plan plan = small_plan({{"model.dtype", "f16"},
                                  {"train.loss_scale", scale},
                                  {"optimizer.weight_decay", "0"},
                                  {"train.steps", "30"}});
    const auto losses = run_plan(plan)[0].losses;
    return losses.front() - losses.back();
  };
  EXPECT_GT(fall("1024"), 0.5);
  EXPECT_LT(fall("1e-6"), 0.3);
}

TEST(Scaling, TwoRunsAreBitIdentical) {
  for (const char* name : {"one_rank", "data_3", "t2d_4"}) {
    const Plan plan = plan_of(tests::family(name), {{"model.dtype", "f16"},
                                                    {"train.loss_scale_start", "1099511627776"},
                                                    {"train.loss_scale_interval", "2"},
                                                    {"train.steps", "36"}});
    EXPECT_TRUE(is_same(train(plan), train(plan))) << name;
  }
}

// ZeRO with sums in rank order adds the same numbers in the same order whatever it shards.
TEST(Scaling, IsBitIdenticalUnderAllStagesOfZero) {
  const auto run = [](const char* stage) {
    return train(small_plan(with(zero(stage, "2"), {{"model.dtype", "f16"},
                                                    {"parallel.data.order", "fixed"},
                                                    {"train.loss_scale_start", "1099511627776"},
                                                    {"train.steps", "36"}})));
  };
  const auto expected = run("0");
  for (const char* stage : {"1", "2", "3"}) EXPECT_TRUE(is_same(run(stage), expected)) << stage;
}

// As long as no gradient is within a rounding of the largest f16: from step 31 on, plans differ
// here.
TEST(Scaling, SkipsTheSameStepsUnderEveryPlan) {
  const Overrides common = {
      {"model.dtype", "f16"}, {"train.loss_scale_start", "1099511627776"}, {"train.steps", "28"}};
  const RankResult expected = run_plan(small_plan(common))[0];
  EXPECT_GE(expected.skipped.size(), 15u);
  EXPECT_LT(expected.skipped.size(), 28u);
  for (const Overrides& o : {tests::family("data_2").overrides, tests::family("t1d_2").overrides,
                             tests::family("t2d_4").overrides, pipeline("2", "1f1b"),
                             zero("1", "2"), zero("2", "2"), zero("3", "2")}) {
    const RankResult r = run_plan(small_plan(with(o, common)))[0];
    EXPECT_EQ(r.skipped, expected.skipped) << o[0].second;
    EXPECT_EQ(r.loss_scales, expected.loss_scales) << o[0].second;
  }
}

TEST(Scaling, LeavesScheduleAndOptimizerWhereTheyWereAtASkippedStep) {
  const Plan plan = small_plan({{"model.dtype", "f16"},
                                {"train.loss_scale_start", "1099511627776"},
                                {"optimizer.warmup", "10"},
                                {"train.steps", "36"}});
  const Registries registries = builtin_registries();
  const auto world = make_self();
  const auto data = tests::data_of(plan);
  Engine engine(plan, registries, *world, *data, {});
  int64_t updates = 0;
  for (int64_t step = 0; step < plan.train.steps; ++step) {
    const StepReport report = engine.step();
    EXPECT_EQ(report.lr, learning_rate(plan.optimizer, updates, plan.train.steps));
    if (!report.is_skipped) ++updates;
    EXPECT_EQ(engine.optimizer().state().num_steps, updates);
    EXPECT_EQ(std::isfinite(report.grad_norm), !report.is_skipped);
  }
  EXPECT_EQ(engine.loss_scaler().state().skipped, plan.train.steps - updates);
  EXPECT_GT(updates, 0);
  EXPECT_LT(updates, plan.train.steps);
}

// Four bytes along each axis a step, and nothing where the loss is not scaled.
TEST(Scaling, CostsOneFlagAnAxisAndNothingWhereItIsOff) {
  for (const char* name : {"data_2", "t1d_2", "data_2_t1d_2"}) {
    const auto traffic = [&](const char* scale) {
      const auto all = run_plan(plan_of(tests::family(name), {{"train.loss_scale", scale}}));
      return all[0].traffic;
    };
    const auto off = traffic("1"), on = traffic("1024");
    EXPECT_EQ(off, traffic("auto"));
    for (const auto& [axis, t] : off) {
      EXPECT_EQ(on.at(axis).bytes_received, t.bytes_received + 3 * 4) << name << " " << axis;
      EXPECT_EQ(on.at(axis).calls.at("all_reduce"), t.calls.at("all_reduce") + 3) << axis;
    }
  }
}

TEST(ScalingResume, GoesOnToTheBitWithScaleAndSkippedSteps) {
  for (const Overrides& o : {Overrides{}, tests::family("data_2_t1d_2").overrides, zero("3", "2"),
                             pipeline("2", "1f1b")}) {
    for (const char* start : {"1099511627776", "1048576", "4096"}) {
      const test::TemporaryFolder folder;
      const Plan plan = tests::run_plan_of(with(o, {{"model.dtype", "f16"},
                                                    {"optimizer.warmup", "4"},
                                                    {"train.loss_scale_start", start},
                                                    {"train.loss_scale_interval", "2"}}));
      const RankResult whole = tests::run_saving(plan, folder.path());
      const tests::Contents expected = tests::contents_of(folder.path(), tests::kRunSteps);
      tests::forget_after(folder.path(), tests::kSavedStep);
      const RankResult resumed = tests::run_resumed(plan, folder.path());
      const auto later = [](const std::vector<double>& all) {
        return std::vector<double>(all.begin() + tests::kSavedStep, all.end());
      };
      EXPECT_EQ(resumed.losses, later(whole.losses)) << start;
      EXPECT_EQ(resumed.loss_scales, later(whole.loss_scales)) << start;
      EXPECT_EQ(tests::distance(tests::contents_of(folder.path(), tests::kRunSteps), expected), 0);
    }
  }
}

// f64 holds any scale: under another plan the scale goes on where it was, on the same curve.
TEST(ScalingResume, TakesTheScaleToAnotherPlan) {
  const Overrides common = {{"train.loss_scale", "dynamic"}, {"train.loss_scale_interval", "2"}};
  const test::TemporaryFolder folder;
  const RankResult whole = tests::run_saving(
      tests::run_plan_of(with(tests::family("t2d_4").overrides, common)), folder.path());
  for (const Overrides& o : {Overrides{}, zero("3", "2"), pipeline("2", "1f1b")}) {
    tests::forget_after(folder.path(), tests::kSavedStep);
    const RankResult resumed =
        tests::run_resumed(tests::run_plan_of(with(o, common)), folder.path());
    ASSERT_EQ(resumed.loss_scales.size(), 3u);
    for (size_t t = 0; t < 3; ++t) {
      EXPECT_EQ(resumed.loss_scales[t], whole.loss_scales[tests::kSavedStep + t]);
      EXPECT_NEAR(resumed.losses[t] / whole.losses[tests::kSavedStep + t], 1,
                  tests::kCurveTolerance);
    }
  }
}

}  // namespace
}  // namespace kuafu
