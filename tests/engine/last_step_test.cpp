// SPDX-License-Identifier: Apache-2.0
//
// The last step of a run that is too large for copies of its states, compared as it is made.

#include <gtest/gtest.h>

#include "kuafu/engine/proof/last_step_check.h"
#include "tests/plugin/from_64.h"
#include "tests/support/plans.h"
#include "tests/support/ranks.h"

namespace kuafu {
namespace {

constexpr int64_t kMemory = 6'000'000;  ///< of the plans below one part fits, not the whole

/// One rank, six layers of a width that no miniature has.
Plan large_plan(const Overrides& more = {}) {
  return tests::small_plan(tests::keys::both({{"model.layers", "6"},
                                              {"model.hidden", "64"},
                                              {"model.vocab", "256"},
                                              {"model.sequence", "24"},
                                              {"model.dtype", "f32"},
                                              {"train.steps", "4"},
                                              {"train.batch", "4"}},
                                             more));
}

RankResult run_with(const Plan& plan, const Registries& registries, bool is_certified = true) {
  RankResult result;
  RunOptions options;
  options.is_certified = is_certified;
  options.certificate_memory = kMemory;
  options.make_data = tests::data_of;
  tests::run_ranks(
      1, [&](Communicator& world) { result = run_rank(plan, registries, world, options); });
  return result;
}

void expect_named(const Certificate& c, const char* verdict, const char* part = "") {
  EXPECT_EQ(c.native.verdict, verdict) << c.native.describe();
  EXPECT_EQ(c.verdict, verdict) << c.describe();
  EXPECT_EQ(c.level, "scaled");
  EXPECT_EQ(c.native.level, "full");
  EXPECT_EQ(c.native.steps, std::vector<int64_t>{3});
  EXPECT_NE(c.native.describe().find(part), std::string::npos) << c.native.describe();
}

class LastStep : public testing::TestWithParam<tests::Family> {};

/// As it would have been without, in all that a run reports; and it names the measures it took.
TEST_P(LastStep, OfALargeRunIsComparedAsItIsMade) {
  const Plan plan = large_plan(GetParam().overrides);
  ASSERT_FALSE(is_certified_whole(plan, kMemory));
  const RankResult with = run_with(plan, builtin_registries());
  const RankResult without = run_with(plan, builtin_registries(), false);
  expect_named(with.certificate, "equal");
  const Proof& proof = with.certificate.native;
  EXPECT_NE(proof.why_far(), kUnexplained) << proof.describe();
  for (const Measure* m : {&proof.loss, &proof.blocks, &proof.update}) {
    EXPECT_FALSE(m->where.empty());
    EXPECT_NE(m->where.find("step 4"), std::string::npos) << m->where;
  }
  EXPECT_GT(proof.blocks.error, 0);
  EXPECT_GT(proof.update.error, 0);
  EXPECT_EQ(with.losses, without.losses);
  EXPECT_EQ(with.validation_loss, without.validation_loss);  // of the state behind the last step
  EXPECT_EQ(with.flops, without.flops);
  EXPECT_EQ(with.flops_recomputed, without.flops_recomputed);
  EXPECT_EQ(with.peak_bytes, without.peak_bytes);
  EXPECT_EQ(with.peak_by_category, without.peak_by_category);
  EXPECT_EQ(with.moves.to_device, without.moves.to_device);
  EXPECT_EQ(with.moves.disk.read, without.moves.disk.read);
  EXPECT_EQ(with.moves.disk.written, without.moves.disk.written);
}

INSTANTIATE_TEST_SUITE_P(
    All, LastStep,
    testing::Values(
        tests::Family{"plain", {}}, tests::Family{"f64", {{"model.dtype", "f64"}}},
        tests::Family{"micro_batches", {{"train.micro_batch", "1"}}},
        tests::Family{"untied",
                      {{"model.kind", "vit"},
                       {"model.image", "16"},
                       {"model.patch", "4"},
                       {"model.sequence", "17"}}},
        tests::Family{"bert", {{"model.kind", "bert"}}},
        tests::Family{"sgd", {{"optimizer.kind", "sgd"}, {"optimizer.lr", "0.1"}}},
        tests::Family{"adam", {{"optimizer.kind", "adam"}}},
        tests::Family{"recomputed", {{"memory.recompute", "full"}, {"model.dropout", "0.1"}}},
        tests::Family{"host", {{"memory.policy", "host"}, {"memory.chunk_size", "64KiB"}}},
        tests::Family{"disk",
                      {{"memory.policy", "lru"},
                       {"memory.device", "4MiB"},
                       {"memory.chunk_size", "64KiB"},
                       {"memory.disk_path", "/var/tmp"},
                       {"memory.gradients", "disk"},
                       {"memory.recompute", "full"},
                       {"memory.activations", "host"}}}),
    [](const auto& info) { return info.param.name; });

Registries registries_from_64() {
  Registries r = builtin_registries();
  tests::add_from_64(r);
  return r;
}

// Right in every miniature: the plan's own size alone shows it.
TEST(LastStepOf, AModelThatIsWrongWhereItIsWideIsDifferent) {
  Plan plan = large_plan();
  plan.model.kind = "gpt-width-64";
  const Certificate c = run_with(plan, registries_from_64()).certificate;
  expect_named(c, "different", "blocks.");
}

TEST(LastStepOf, ASchemeThatIsWrongWhereItIsWideIsDifferent) {
  Plan plan = large_plan();
  plan.parallel.tensor.mode = "1d-width-64";
  expect_named(run_with(plan, registries_from_64()).certificate, "different");
}

/// The built-in formula with a rule that does something else, from its fourth step on.
RankResult result_of_rule(const std::function<void(RulePiece& piece)>& spoil) {
  Registries r = builtin_registries();
  OptimizerRule rule = r.optimizers.find("adamw");
  const auto make = rule.make;
  rule.make = [make, spoil](const OptimizerPlan& plan) {
    Rule all = make(plan);
    all.update = [update = all.update, spoil](RulePiece& piece, const Rates& rates,
                                              const Tensor& ratios) {
      update(piece, rates, ratios);
      if (rates.step == 4) spoil(piece);
    };
    return all;
  };
  r.optimizers.add("spoiled", "AdamW, wrong in its fourth step", rule);
  r.updates.add("spoiled", "AdamW", r.updates.find("adamw"));
  Plan plan = large_plan();
  plan.optimizer.kind = "spoiled";
  return run_with(plan, r);
}

TEST(LastStepOf, AnUpdateThatIsWrongInOneElementIsDifferent) {
  expect_named(result_of_rule([](RulePiece&) {}).certificate, "equal");
  const auto one_of = [](const Tensor& t) {
    t.view({-1}).narrow(0, t.numel() / 2, 1).mul_(1.0001);
  };
  expect_named(result_of_rule([&](RulePiece& p) { one_of(p.value); }).certificate, "different");
  expect_named(result_of_rule([&](RulePiece& p) { one_of(p.slots[0]); }).certificate, "different",
               "m of ");
  expect_named(result_of_rule([&](RulePiece& p) { one_of(p.slots[1]); }).certificate, "different",
               "v of ");
}

// What it cannot look at is certified by a smaller model, as before, and says so.
TEST(LastStepOf, OtherPlansIsTheMiniatures) {
  for (const Overrides& other :
       std::vector<Overrides>{{{"model.dtype", "bf16"}},
                              {{"optimizer.kind", "lamb"}},
                              {{"model.kind", "moe_gpt"}, {"model.experts", "4"}},
                              {{"parallel.data", "1"}, {"optimizer.kind", "muon"}}}) {
    const Certificate c = run_with(large_plan(other), builtin_registries()).certificate;
    EXPECT_EQ(c.verdict, "equal") << c.native.describe();
    EXPECT_EQ(c.native.level, "scaled");
  }
}

}  // namespace
}  // namespace kuafu
