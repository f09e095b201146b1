// SPDX-License-Identifier: Apache-2.0
//
// Later steps of a timed run, block by block from the run's own inputs and output gradients.

#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "kuafu/comm/worlds.h"
#include "kuafu/engine/proof/certificate_step.h"
#include "tests/base/messages.h"
#include "tests/support/plans.h"

namespace kuafu {
namespace {

const Overrides kSixSteps = {
    {"model.dtype", "f32"}, {"train.steps", "6"}, {"train.validation_batches", "0"}};

Certificate certificate_of_run(const Plan& plan) {
  RunOptions options;
  options.is_certified = true;
  return tests::run_plan(plan, options)[0].certificate;
}

void expect_equal(const Plan& plan, const std::string& name) {
  const Certificate c = certificate_of_run(plan);
  EXPECT_EQ(c.native.verdict, "equal") << name << c.native.describe();
  EXPECT_EQ(c.native.steps.size(), 5u) << name;
  EXPECT_GT(c.native.blocks.error, 0) << name << c.native.describe();
  EXPECT_LT(c.native.blocks.bound, 1e-4) << name << c.native.describe();
  EXPECT_TRUE(c.blocks.where.empty()) << name;  // the twin's steps are the first
}

class LaterSteps : public testing::TestWithParam<tests::Family> {};

TEST_P(LaterSteps, EqualTheOracleBlockByBlock) {
  expect_equal(plan_of(GetParam(), kSixSteps), GetParam().name);
}

INSTANTIATE_TEST_SUITE_P(All, LaterSteps, testing::ValuesIn(tests::families()),
                         [](const auto& info) { return info.param.name; });

TEST(LaterSteps, OfEveryModelAndSchedule) {
  for (const Overrides& keys : std::vector<Overrides>{
           {{"model.kind", "bert"}, {"parallel.tensor.mode", "1d"}, {"parallel.tensor.size", "2"}},
           {{"model.kind", "vit"},
            {"model.vocab", "256"},
            {"model.image", "12"},
            {"model.sequence", "10"},
            {"parallel.data", "2"}},
           {{"model.kind", "moe_gpt"}, {"model.experts", "4"}, {"parallel.data", "2"}},
           {{"model.dropout", "0.1"}, {"memory.recompute", "full"}, {"train.micro_batch", "2"}},
           {{"model.layers", "4"},
            {"parallel.pipeline.size", "2"},
            {"parallel.pipeline.schedule", "zbv"},
            {"parallel.pipeline.chunks", "2"},
            {"train.micro_batch", "2"}}}) {
    expect_equal(tests::small_plan(tests::keys::both(kSixSteps, keys)), keys[0].second);
  }
}

TEST(LaterSteps, OfAScaledLossAreComparedWithoutIt) {
  const Certificate c = certificate_of_run(tests::small_plan(tests::keys::both(
      kSixSteps, {{"model.dtype", "f16"}, {"train.loss_scale", "1024"}, {"parallel.data", "2"}})));
  EXPECT_EQ(c.native.verdict, "equal") << c.native.describe();
  EXPECT_GT(c.native.blocks.error, 0) << c.native.describe();
}

/// A step of one rank, and what checking says after `spoil` has had what passed its blocks.
Measure checked(const std::function<void(oracle::BlockFlows&, WholeTensors&)>& spoil) {
  const Plan plan = tests::small_plan(kSixSteps);
  const Registries registries = builtin_registries();
  const auto data = tests::data_of(plan);
  const auto alone = make_self();
  Engine engine(plan, registries, *alone, *data, {});
  Evidence e = observe(engine, *alone, whole_state(engine, *alone), Look::kBlocksToo);
  spoil(e.flows, e.gradients);
  Proof proof;
  check_step(plan, e, *make_reference(plan, registries, *data), own_rounding, proof);
  return proof.blocks;
}

// Each by a few roundings of f32 that a whole model could have made.
TEST(LaterSteps, TellAnOutputAnInputGradientAndASumThatAreSlightlyOff) {
  EXPECT_TRUE(checked([](auto&, auto&) {}).holds());
  const double little = 1 + 2e-5;
  const Measure output =
      checked([&](auto& flows, auto&) { flows.at("blocks.1").output.mul_(little); });
  EXPECT_FALSE(output.holds());
  EXPECT_EQ(output.where, "blocks.1, output, step 1");
  const Measure gradient =
      checked([&](auto& flows, auto&) { flows.at("head").input_gradient.mul_(little); });
  EXPECT_FALSE(gradient.holds());
  EXPECT_EQ(gradient.where, "head, input gradient, step 1");
  const Measure sum = checked([&](auto&, auto& sums) {
    sums.at("blocks.0.mlp.up.weight") = sums.at("blocks.0.mlp.up.weight") * (1 + 2e-4);
  });
  EXPECT_FALSE(sum.holds());
  EXPECT_EQ(sum.where, "blocks.0.mlp.up.weight, step 1");
}

// A plug-in's block of another name.
TEST(LaterSteps, SayWhichBlockNobodyKept) {
  const auto without = [](const std::string& name) {
    return message_of<ConfigError>(
        [&] { checked([&](auto& flows, auto&) { flows.erase(name); }); });
  };
  for (const char* name : {"blocks.1", "head"}) {
    expect_says(without(name), {text("block \"", name, "\""), "\"embedding\", \"blocks.0\""});
  }
}

}  // namespace
}  // namespace kuafu
