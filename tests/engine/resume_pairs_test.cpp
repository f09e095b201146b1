// SPDX-License-Identifier: Apache-2.0
//
// Property: a run that is saved under one plan and goes on under another follows the curve of one
// rank, for pairs drawn from all kinds of plans.

#include <gtest/gtest.h>

#include <array>

#include <random>

#include "kuafu/base/errors.h"
#include "tests/engine/resume.h"

namespace kuafu {
namespace {

using test::TemporaryFolder;
using tests::contents_of;
using tests::distance;
using tests::Family;
using tests::forget_after;
using tests::kCurveTolerance;
using tests::kRunSteps;
using tests::kSavedStep;
using tests::run_plan_of;
using tests::run_resumed;
using tests::run_saving;
using tests::with;

/// A model and the plans that a run of it may change between.
struct Pool {
  std::string model;
  Overrides overrides;
  std::vector<Family> plans;
};

Family family(const std::string& mode, const std::string& size, const std::string& depth,
              const std::string& data, const std::string& expert) {
  Overrides o = {{"parallel.data", data}, {"parallel.expert.size", expert}};
  if (mode != "none") {
    o = with(o, {{"parallel.tensor.mode", mode}, {"parallel.tensor.size", size}});
  }
  if (depth != "1") o.emplace_back("parallel.tensor.depth", depth);
  return {text(mode, "_", size, "_data_", data, "_expert_", expert), o};
}

std::vector<Family> chosen(const std::vector<std::string>& names) {
  std::vector<Family> all;
  for (const std::string& name : names) all.push_back(tests::family(name));
  return all;
}

/// Pipelines, plain and within other kinds of plans, uneven and of several chunks.
std::vector<Family> pipelines() {
  const auto pipe = [](const std::string& size, const std::string& schedule) -> Overrides {
    return {{"parallel.pipeline.size", size},
            {"parallel.pipeline.schedule", schedule},
            {"train.micro_batch", "4"}};
  };
  return {{"pipe_2", pipe("2", "1f1b")},
          {"pipe_3", pipe("3", "gpipe")},
          {"pipe_2_chunks_2", with(pipe("2", "interleaved"), {{"parallel.pipeline.chunks", "2"}})},
          {"pipe_4_data_2", with(pipe("4", "zero_bubble"), {{"parallel.data", "2"}})},
          {"pipe_2_t2d_4", with(pipe("2", "1f1b"), tests::family("t2d_4").overrides)}};
}

/// Optimizer state, gradients and parameters in shards, beside other kinds of plans.
std::vector<Family> sharded() {
  const auto zero = [](const char* stage, const char* data) -> Overrides {
    return {{"parallel.zero", stage}, {"parallel.data", data}};
  };
  const Overrides pipe = {{"parallel.pipeline.size", "2"}, {"train.micro_batch", "4"}};
  return {{"zero_1_data_3", zero("1", "3")},
          {"zero_2_t1d_2", with(zero("2", "2"), tests::family("t1d_2").overrides)},
          {"zero_3_data_4", zero("3", "4")},
          {"zero_3_t2d_4", with(zero("3", "2"), tests::family("t2d_4").overrides)},
          {"zero_1_pipe_2", with(zero("1", "2"), pipe)},
          {"zero_3_pipe_2", with(zero("3", "2"), pipe)}};
}

std::vector<Family> both(std::vector<Family> a, const std::vector<Family>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

const std::vector<Pool>& pools() {
  static const std::vector<Pool> all = {
      {"gpt", {}, both(tests::families(), both(pipelines(), sharded()))},
      {"llama",
       {{"model.kv_heads", "2"},
        {"model.positions", "rotary"},
        {"model.norm", "rms"},
        {"model.mlp", "swiglu"},
        {"model.bias", "false"}},
       // Four ranks share two key-value heads.
       chosen({"one_rank", "data_3", "t1d_2", "t1d_4", "t1d_sp_2", "t2d_4", "ring_3"})},
      {"moe",
       {{"model.kind", "moe_gpt"}, {"model.experts", "4"}},
       {family("none", "1", "1", "1", "1"), family("none", "1", "1", "4", "2"),
        family("none", "1", "1", "4", "4"), family("1d", "2", "1", "2", "2"),
        family("1d-sp", "2", "1", "2", "1"), family("2d", "4", "1", "2", "2"),
        family("2.5d", "8", "2", "1", "1"), family("3d", "8", "1", "1", "1"),
        family("none", "1", "1", "3", "1")}},
      {"opt",
       {{"model.kind", "opt"},
        {"model.mlp", "relu"},
        {"model.post_norm", "true"},
        {"model.embedding", "16"},
        {"model.tied", "false"}},
       both(chosen({"one_rank", "data_3", "t1d_sp_2", "t2d_4", "t3d_8"}), {pipelines()[0]})},
      {"bert",
       {{"model.kind", "bert"}, {"model.vocab", "41"}},
       both(chosen({"one_rank", "data_3", "t1d_2", "t2d_4", "t3d_8"}), {pipelines()[0]})},
      {"vit",
       {{"model.kind", "vit"},
        {"model.vocab", "256"},
        {"model.image", "12"},
        {"model.sequence", "10"}},
       chosen({"one_rank", "data_2", "t1d_4", "t2d_4", "t2p5d_8"})}};
  return all;
}

/// What a run of one plan leaves: losses and the state after the last step.
struct Whole {
  RankResult result;
  tests::Contents contents;
};

Whole whole_run(const Plan& plan) {
  const TemporaryFolder folder;
  Whole whole{run_saving(plan, folder.path()), {}};
  whole.contents = contents_of(folder.path(), kRunSteps);
  return whole;
}

/// A run of `first` that goes on as `then` after kSavedStep is on the curve of `one`.
void expect_one_curve(const Plan& first, const Plan& then, const Whole& one,
                      const std::string& what) {
  const TemporaryFolder folder;
  const RankResult before = run_saving(first, folder.path());
  forget_after(folder.path(), kSavedStep);
  const RankResult after = run_resumed(then, folder.path());
  std::vector<double> curve(before.losses.begin(), before.losses.begin() + kSavedStep);
  curve.insert(curve.end(), after.losses.begin(), after.losses.end());
  ASSERT_EQ(curve.size(), one.result.losses.size());
  for (size_t t = 0; t < curve.size(); ++t) {
    EXPECT_NEAR(curve[t] / one.result.losses[t], 1, kCurveTolerance) << what << ", step " << t;
  }
  EXPECT_NEAR(after.validation_loss / one.result.validation_loss, 1, kCurveTolerance) << what;
  EXPECT_LE(distance(contents_of(folder.path(), kRunSteps), one.contents), kCurveTolerance) << what;
}

class AnyTwoPlans : public testing::TestWithParam<Pool> {};

TEST_P(AnyTwoPlans, ShareOneCurve) {
  const Pool& pool = GetParam();
  const auto plan_of = [&](const Family& f, const char* optimizer) {
    return run_plan_of(with(with(pool.overrides, f.overrides), {{"optimizer.kind", optimizer}}));
  };
  std::mt19937 random(29);
  const auto draw = [&] { return pool.plans[random() % pool.plans.size()]; };
  std::map<std::string, Whole> alone;
  for (size_t i = 0; i < pool.plans.size(); ++i) {
    const char* optimizer = std::array{"adamw", "lamb", "muon", "sgd", "lars", "adam"}[i % 6];
    const Family first = pool.plans[i], then = draw();
    if (!alone.contains(optimizer)) alone[optimizer] = whole_run(plan_of(pool.plans[0], optimizer));
    expect_one_curve(plan_of(first, optimizer), plan_of(then, optimizer), alone[optimizer],
                     text(first.name, ", then ", then.name, ", ", optimizer));
  }
}

INSTANTIATE_TEST_SUITE_P(All, AnyTwoPlans, testing::ValuesIn(pools()),
                         [](const auto& info) { return info.param.model; });

// Depth, stages and shards at once: 2.5D on two stages under ZeRO-1, before and after plans that
// have nothing in common with it.
TEST(PipelineOfGridsUnderZero, SharesItsCurveWithEveryOtherPlan) {
  const Overrides grid = {{"parallel.tensor.mode", "2.5d"}, {"parallel.tensor.size", "4"},
                          {"parallel.pipeline.size", "2"},  {"parallel.pipeline.schedule", "1f1b"},
                          {"parallel.data", "2"},           {"parallel.zero", "1"},
                          {"train.micro_batch", "4"}};
  const std::vector<Family> others = {
      {"3d", tests::family("t3d_8").overrides},
      {"1d, ZeRO-3",
       with(tests::family("t1d_2").overrides, {{"parallel.data", "2"}, {"parallel.zero", "3"}})},
      {"one rank", {}},
      {"three replicas", tests::family("data_3").overrides},
      {"three stages",
       {{"parallel.pipeline.size", "3"},
        {"parallel.pipeline.schedule", "gpipe"},
        {"train.micro_batch", "6"}}}};
  const Whole one = whole_run(run_plan_of({}));
  for (const Family& other : others) {
    const Plan many = run_plan_of(grid), few = run_plan_of(other.overrides);
    expect_one_curve(many, few, one, text("2.5d x pipeline x ZeRO-1, then ", other.name));
    expect_one_curve(few, many, one, text(other.name, ", then 2.5d x pipeline x ZeRO-1"));
  }
}

}  // namespace
}  // namespace kuafu
