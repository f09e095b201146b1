// SPDX-License-Identifier: Apache-2.0
//
// Property: a run that is saved under one plan and goes on under another follows the curve of one
// rank, for pairs drawn from all kinds of plans.

#include <gtest/gtest.h>

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

std::vector<Family> both(std::vector<Family> a, const std::vector<Family>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

const std::vector<Pool>& pools() {
  static const std::vector<Pool> all = {
      {"gpt", {}, both(tests::families(), pipelines())},
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

class AnyTwoPlans : public testing::TestWithParam<Pool> {};

TEST_P(AnyTwoPlans, ShareOneCurve) {
  const Pool& pool = GetParam();
  const auto plan_of = [&](const Family& f, const char* optimizer) {
    return run_plan_of(with(with(pool.overrides, f.overrides), {{"optimizer.kind", optimizer}}));
  };
  std::mt19937 random(29);
  const auto draw = [&] { return pool.plans[random() % pool.plans.size()]; };
  const size_t pairs = pool.plans.size();
  for (size_t i = 0; i < pairs; ++i) {
    const char* optimizer = i % 4 == 3 ? "sgd" : "adamw";
    const Family first = pool.plans[i], then = draw();
    const TemporaryFolder alone, folder;
    const RankResult one = run_saving(plan_of(pool.plans[0], optimizer), alone.path());
    const RankResult before = run_saving(plan_of(first, optimizer), folder.path());
    forget_after(folder.path(), kSavedStep);
    const RankResult after = run_resumed(plan_of(then, optimizer), folder.path());
    std::vector<double> curve(before.losses.begin(), before.losses.begin() + kSavedStep);
    curve.insert(curve.end(), after.losses.begin(), after.losses.end());
    ASSERT_EQ(curve.size(), one.losses.size());
    const std::string what = text(first.name, ", then ", then.name, ", ", optimizer);
    for (size_t t = 0; t < curve.size(); ++t) {
      EXPECT_NEAR(curve[t] / one.losses[t], 1, kCurveTolerance) << what << ", step " << t;
    }
    EXPECT_NEAR(after.validation_loss / one.validation_loss, 1, kCurveTolerance) << what;
    EXPECT_LE(distance(contents_of(folder.path(), kRunSteps), contents_of(alone.path(), kRunSteps)),
              kCurveTolerance)
        << what;
  }
}

INSTANTIATE_TEST_SUITE_P(All, AnyTwoPlans, testing::ValuesIn(pools()),
                         [](const auto& info) { return info.param.model; });

}  // namespace
}  // namespace kuafu
