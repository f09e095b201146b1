// SPDX-License-Identifier: Apache-2.0
//
// Every kind of plan computes what one rank computes.

#include "kuafu/engine/proof/certificate.h"

#include <gtest/gtest.h>

#include <limits>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "kuafu/comm/worlds.h"
#include "kuafu/engine/proof/certificate_step.h"
#include "kuafu/engine/proof/witness.h"
#include "tests/support/plans.h"

namespace kuafu {
namespace {

using tests::certificate_of;
using tests::Family;
using tests::plan_of;

/// No bound is a hundred times what was seen, unless the certificate says why.
void expect_near_its_bounds(const Proof& p) {
  EXPECT_NE(p.why_far(), kUnexplained) << p.describe();
  EXPECT_TRUE(p.ratio() <= kFarRatio || !p.why_far().empty()) << p.describe();
}

void expect_equal(const Plan& plan) {
  const Certificate c = certificate_of(plan);
  expect_near_its_bounds(c);
  expect_near_its_bounds(c.native);
  EXPECT_EQ(c.verdict, "equal") << c.describe() << "; native " << c.native.describe();
  EXPECT_EQ(c.level, "full");
  EXPECT_EQ(c.reference, "oracle");
  EXPECT_EQ(c.steps, (std::vector<int64_t>{0, 1, 2}));
  EXPECT_EQ(c.native.verdict, "equal");
  EXPECT_LE(c.gradient.error, c.gradient.bound);
  EXPECT_LT(c.gradient.bound, 1e-9);  // f64: far from any real difference
}

TEST(BoundsOfAProof, ThatNoErrorComesNearSayWhy) {
  Proof p;
  p.gradient = {1e-9, 2e-7, "w"};
  EXPECT_EQ(p.why_far(), "");  // nothing was compared
  p.steps = {0};
  EXPECT_EQ(p.why_far(), kUnexplained);
  p.loss = {1e-9, 9e-8, "loss"};  // nearer, which says nothing of the gradient
  EXPECT_EQ(p.why_far(), kUnexplained);
  p.gradient.bound = 9e-8;
  EXPECT_EQ(p.why_far(), "");
  p.loss.bound = 2e-7;
  EXPECT_EQ(p.why_far(), kOneNumber);
  p.loss.bound = 9e-8;
  p.routes = {1e-9, 2e-7, "moe"};
  EXPECT_EQ(p.why_far(), kFewRoutes);
  p.routes = {};
  p.loss.error = p.gradient.error = 0;
  EXPECT_NE(p.why_far(), "");
  EXPECT_NE(p.why_far(), kUnexplained);
}

class Certificates : public testing::TestWithParam<Family> {};

TEST_P(Certificates, AdamWithClippingEqualsOneRank) { expect_equal(plan_of(GetParam())); }

TEST_P(Certificates, SgdWithMomentumEqualsOneRank) {
  expect_equal(plan_of(GetParam(), {{"optimizer.kind", "sgd"}, {"optimizer.lr", "0.1"}}));
}

TEST_P(Certificates, DropoutEqualsOneRank) {
  expect_equal(plan_of(GetParam(), {{"model.dropout", "0.1"}}));
}

TEST_P(Certificates, RecomputationEqualsOneRank) {
  for (const char* policy : {"selective", "full"}) {
    expect_equal(plan_of(GetParam(), {{"memory.recompute", policy}, {"model.dropout", "0.1"}}));
  }
}

TEST_P(Certificates, AccumulationEqualsOneRank) {
  const Plan plain = plan_of(GetParam());
  for (const int64_t accumulated : {2, 5}) {
    // 2.5D on 8 ranks needs 4 samples in a micro-batch.
    const int64_t batch = plain.parallel.data.size * 4 * accumulated;
    expect_equal(plan_of(GetParam(), {{"train.batch", text(batch)}, {"train.micro_batch", "4"}}));
  }
}

TEST_P(Certificates, ByteVocabularyAndOneMoreEqualsOneRank) {
  expect_equal(plan_of(GetParam(), {{"model.vocab", "257"}}));
}

INSTANTIATE_TEST_SUITE_P(All, Certificates, testing::ValuesIn(tests::families()),
                         [](const auto& info) { return info.param.name; });

TEST(Certificate, OddSequenceEqualsOneRank) {
  for (const char* name : {"data_3", "t1d_4", "t2d_4", "t2p5d_8"}) {
    expect_equal(plan_of(tests::family(name), {{"model.sequence", "7"}}));
  }
}

TEST(Certificate, WarmUpCosineAndNoClippingEqualOneRank) {
  expect_equal(plan_of(
      tests::family("data_2_t2d_4"),
      {{"optimizer.clip", "0"}, {"optimizer.schedule", "cosine"}, {"optimizer.warmup", "2"}}));
}

TEST(Certificate, SinglePrecisionPlanIsProvenInF64AndInItsOwnType) {
  const Certificate c =
      certificate_of(plan_of(tests::family("t1d_sp_2"), {{"model.dtype", "f32"}}));
  EXPECT_EQ(c.verdict, "equal") << c.native.describe();
  EXPECT_EQ(c.native.verdict, "equal");
  EXPECT_GT(c.native.gradient.error, 100 * c.gradient.error);  // f32 does round
  EXPECT_LT(c.native.gradient.bound, 1e-5);
}

TEST(Certificate, HalfPrecisionPlanCarriesNativeErrors) {
  for (const char* name : {"data_2", "t1d_2", "t2d_4"}) {
    const Certificate c = certificate_of(plan_of(tests::family(name), {{"model.dtype", "bf16"}}));
    EXPECT_EQ(c.verdict, "equal") << name << ": " << c.native.describe();
    EXPECT_EQ(c.native.verdict, "equal") << name;
    EXPECT_GT(c.native.gradient.error, 1e-4) << name;  // bf16 does round
  }
}

TEST(Certificate, OfASmallerModelSaysThatTheValidationLossIsComparedWithNothing) {
  const Plan plan = small_plan({});
  const Registries registries = builtin_registries();
  tests::run_ranks(1, [&](Communicator& world) {
    for (const int64_t limit : {int64_t{1}, int64_t{1} << 40}) {
      const Certificate c =
          certify(plan, registries, world, tests::data_of, {}, limit, {.validation_loss = 3.0});
      const bool is_said =
          c.native.unseen.find("the validation loss of the run") != std::string::npos;
      EXPECT_EQ(is_said, limit == 1) << c.native.unseen;
    }
  });
}

TEST(Certificate, ModelThatDoesNotFitIsScaledDownAndSaysSo) {
  const Plan plan =
      plan_of(tests::family("data_2_t1d_2"),
              {{"model.layers", "6"}, {"model.hidden", "64"}, {"model.sequence", "128"}});
  const Certificate scaled = certificate_of(plan, 1'000'000);
  EXPECT_EQ(scaled.level, "scaled");
  EXPECT_EQ(scaled.verdict, "equal");
}

TEST(Certificate, OfAPlanIsTheSameTwice) {
  const Plan plan = plan_of(tests::family("t2d_4"), {{"train.seed", "77"}});
  const Certificate once = certificate_of(plan), again = certificate_of(plan);
  EXPECT_EQ(once.gradient.error, again.gradient.error);
  EXPECT_EQ(once.update.error, again.update.error);
}

/// Plans whose timed steps are looked at from the side: what a certificate might leave behind.
TEST(Certificate, ChangesNothingThatARunReports) {
  for (const Overrides& plan : std::vector<Overrides>{
           {{"parallel.tensor.mode", "1d"}, {"parallel.tensor.size", "2"}},
           {{"parallel.data", "2"}, {"parallel.zero", "1"}, {"train.micro_batch", "2"}},
           {{"parallel.data", "2"}, {"parallel.zero", "2"}, {"train.micro_batch", "2"}},
           {{"parallel.data", "2"}, {"parallel.zero", "3"}, {"train.micro_batch", "2"}},
           {{"parallel.data", "2"},
            {"parallel.zero", "1"},
            {"parallel.pipeline.size", "2"},
            {"train.micro_batch", "1"}},
           {{"model.kind", "moe_gpt"}, {"model.experts", "4"}, {"parallel.data", "2"}},
           {{"parallel.pipeline.size", "2"}, {"train.micro_batch", "2"}}}) {
    const Plan small =
        tests::small_plan(tests::keys::both(plan, {{"model.dtype", "f32"}, {"train.steps", "7"}}));
    RunOptions certified;
    certified.is_certified = true;
    const auto with = tests::run_plan(small, certified), without = tests::run_plan(small);
    for (size_t r = 0; r < with.size(); ++r) {
      EXPECT_EQ(with[r].certificate.verdict, "equal") << with[r].certificate.native.describe();
      EXPECT_EQ(with[r].certificate.native.steps.size(), 5u);
      EXPECT_EQ(without[r].certificate.verdict, "not_run");
      EXPECT_EQ(with[r].traffic, without[r].traffic);
      EXPECT_EQ(with[r].flops, without[r].flops);
      EXPECT_EQ(with[r].flops_recomputed, without[r].flops_recomputed);
      EXPECT_EQ(with[r].peak_bytes, without[r].peak_bytes);
      EXPECT_EQ(with[r].at_peak, without[r].at_peak);
      EXPECT_EQ(with[r].peak_by_category, without[r].peak_by_category);
      EXPECT_EQ(with[r].losses, without[r].losses);
      EXPECT_EQ(with[r].validation_loss, without[r].validation_loss);
      EXPECT_EQ(with[r].experts, without[r].experts);
    }
  }
}

// Of the 18 plans that a search found falsely different, 13 had no second moment: a gradient over
// its own size doubles whatever rounding made of it, so only the same gradient proves an update.
// With other seeds (1, 2, 5 and 6 of the first six) rounding in bf16 alone moves the third step's gradient by
// most of itself, and nothing is proven.
TEST(Certificate, NoSecondMomentIsNoReason) {
  for (const char* type : {"f64", "f32", "bf16"}) {
    const Certificate c = certificate_of(
        plan_of(tests::family("data_2_t1d_2"),
                {{"optimizer.beta2", "0"}, {"model.dtype", type}, {"train.seed", "3"}}));
    EXPECT_EQ(c.verdict, "equal") << type << c.describe() << "; native " << c.native.describe();
  }
}

/// With the later steps of the run itself.
Certificate of_whole_run(const Plan& plan) {
  RunOptions options;
  options.is_certified = true;
  return tests::run_plan(plan, options)[0].certificate;
}

// Clipped f16 gradients below the normal numbers, under a first moment of larger ones: what rounding
// in f16 would leave of them is little, and the update divides by it.
// The product of both rates is subnormal, their ratio is not.
TEST(Certificate, RatesOfMuonWhoseProductIsSubnormalAreEqual) {
  for (const auto& [lr, adam_lr] : {std::pair{"1e-306", "3e-4"}, {"1e-160", "1e-155"}}) {
    const Certificate c = certificate_of(tests::small_plan({{"optimizer.kind", "muon"},
                                                            {"optimizer.lr", lr},
                                                            {"optimizer.adam_lr", adam_lr},
                                                            {"optimizer.warmup", "0"}}));
    EXPECT_EQ(c.verdict, "equal") << lr << ": " << c.describe();
  }
}

TEST(Certificate, SubnormalGradientsUnderAnOldMomentAreEqual) {
  const Certificate c = of_whole_run(tests::small_plan({{"model.dtype", "f16"},
                                                        {"model.hidden", "64"},
                                                        {"model.vocab", "256"},
                                                        {"model.sequence", "64"},
                                                        {"optimizer.lr", "0.001"},
                                                        {"optimizer.beta2", "0.0788"},
                                                        {"train.loss_scale", "1"},
                                                        {"train.steps", "20"}}));
  EXPECT_EQ(c.verdict, "equal") << c.describe() << "; native " << c.native.describe();
}

// Weights explode without a second moment; scores of 1e6 and more, made anew by a fused backward,
// move its softmax by a tenth. Said, and neither equal nor different.
TEST(Certificate, ScoresBeyondTheTypeAreANamedDivergence) {
  const Certificate c = of_whole_run(tests::small_plan({{"model.layers", "4"},
                                                        {"model.hidden", "24"},
                                                        {"model.heads", "4"},
                                                        {"model.vocab", "37"},
                                                        {"model.sequence", "12"},
                                                        {"model.positions", "rotary"},
                                                        {"model.dropout", "0.0006182505235715038"},
                                                        {"model.dtype", "f32"},
                                                        {"optimizer.lr", "0.001"},
                                                        {"optimizer.beta2", "0"},
                                                        {"optimizer.epsilon", "1e-16"},
                                                        {"optimizer.clip", "0.01"},
                                                        {"train.batch", "1"},
                                                        {"train.loss_scale", "0.5"},
                                                        {"train.steps", "5"}}));
  EXPECT_EQ(c.verdict, "not_run") << c.describe() << "; native " << c.native.describe();
  EXPECT_NE(c.reason.find("alone moves the "), std::string::npos) << c.reason;
}

TEST(Certificate, HalfPrecisionWithAScaledLossIsEqual) {
  const Certificate c = certificate_of(
      plan_of(tests::family("data_2_t1d_2"), {{"model.dtype", "f16"}, {"train.steps", "3"}}));
  EXPECT_EQ(c.verdict, "equal") << c.describe() << "; native " << c.native.describe();
}

/// What checking the first step of one rank says after `spoil`.
Proof checked(const Plan& plan, const std::function<void(Evidence&)>& spoil) {
  const Registries registries = builtin_registries();
  const auto data = tests::data_of(plan);
  const auto alone = make_self();
  Engine engine(plan, registries, *alone, *data, {});
  Evidence e = observe(engine, *alone, whole_state(engine, *alone));
  spoil(e);
  Proof proof;
  proof.verdict = "equal";
  check_step(plan, e, *make_reference(plan, registries, *data), own_rounding, proof);
  proof.judge();
  return proof;
}

/// A run of one rank whose last shard is moved after a step (0: before the first), and certified.
Certificate of_moved_run(int64_t moved_after, bool is_resumed) {
  const Plan plan = tests::small_plan({{"train.steps", "3"}, {"model.dtype", "f32"}});
  const Registries registries = builtin_registries();
  const auto data = tests::data_of(plan);
  const auto alone = make_self();
  Witness witness(plan, 0, Witness::Depth::kFull);
  Engine engine(plan, registries, *alone, *data, {});
  const auto move = [&](int64_t step) {
    const at::NoGradGuard no_grad;
    if (step == moved_after) engine.shards().back().value.add_(1e-3);
  };
  move(0);
  for (int64_t step = 0; step < 3; ++step) {
    witness.before_step(engine);
    const StepReport report = engine.step();
    move(step + 1);
    witness.after_step(engine, report);
  }
  return certify(plan, registries, *alone, tests::data_of, {}, std::numeric_limits<int64_t>::max(),
                 {.witness = &witness, .is_resumed = is_resumed});
}

// As from imported weights: only a run that begins anew begins with the seed's.
TEST(Certificate, OfARunFromACheckpointOfStep0StartsFromItsWeights) {
  const Certificate resumed = of_moved_run(0, true), anew = of_moved_run(0, false);
  EXPECT_EQ(resumed.verdict, "equal") << resumed.native.describe();
  EXPECT_EQ(anew.verdict, "different") << anew.native.describe();
  EXPECT_NE(anew.native.update.where.find("at the start"), std::string::npos);
}

// What a step leaves behind is held to the timed run, also where no later loss depends on it.
TEST(Certificate, HoldsWhatEachFirstStepLeavesToTheTimedRun) {
  for (const int64_t spoiled : {-1, 0, 1, 2}) {
    const Certificate c = of_moved_run(spoiled < 0 ? -1 : spoiled + 1, false);
    EXPECT_EQ(c.verdict, spoiled < 0 ? "equal" : "different") << c.native.describe();
    const std::string why = text("step ", spoiled + 1, " of the run left rank 0");
    EXPECT_EQ(c.native.reason.find(why), spoiled < 0 ? std::string::npos : 0U);
  }
}

TEST(Certificate, ASkippedStepMustHaveOverflowed) {
  const auto plan = [](const char* scale) {
    return tests::small_plan({{"model.dtype", "f16"}, {"train.loss_scale", scale}});
  };
  const Proof skipped = checked(plan("1e9"), [](Evidence& e) { EXPECT_TRUE(e.report.is_skipped); });
  EXPECT_EQ(skipped.verdict, "equal") << skipped.describe();
  const Proof early = checked(plan("1024"), [](Evidence& e) {
    EXPECT_FALSE(e.report.is_skipped);
    e.report.is_skipped = true;
    e.after = e.before;
  });
  EXPECT_EQ(early.verdict, "different");
  EXPECT_NE(early.reason.find("all gradients are finite"), std::string::npos) << early.reason;
  const Proof alone = checked(plan("1024"), [](Evidence& e) {
    e.report.is_skipped = true;
    e.after = e.before;
    e.gradients.begin()->second.fill_(std::numeric_limits<double>::infinity());
  });
  EXPECT_NE(alone.reason.find("the reference does not overflow"), std::string::npos)
      << alone.reason;
}

TEST(Certificate, ASkippedStepChangesNoValueOfTheOptimizer) {
  const Plan plan = tests::small_plan({{"model.dtype", "f16"}, {"train.loss_scale", "1e9"}});
  for (const char* slot : {"m", "v", "master"}) {
    for (const double changed : {0.0, 1e-3}) {
      const Proof p = checked(plan, [&](Evidence& e) {
        ASSERT_TRUE(e.report.is_skipped);
        e.before.slots[slot]["head.norm.weight"] = at::zeros({32});
        e.after.slots[slot]["head.norm.weight"] = at::full({32}, changed);
      });
      EXPECT_EQ(p.verdict, changed == 0 ? "equal" : "different") << p.describe();
      if (changed == 0) continue;
      EXPECT_EQ(p.reason, text("a skipped step changed ", slot, " of head.norm.weight, step 1"));
    }
  }
  const Proof made = checked(plan, [](Evidence& e) { e.after.slots["v"]["x"] = at::zeros({1}); });
  EXPECT_EQ(made.reason, "a skipped step changed v of x, step 1");
}

TEST(Certificate, TheLossScaleGoesByItsRule) {
  const auto plan = [](const char* start) {
    return tests::small_plan({{"model.dtype", "f16"},
                              {"train.loss_scale", "dynamic"},
                              {"train.loss_scale_start", start},
                              {"train.loss_scale_interval", "1"}});
  };
  for (const auto& [start, factor] : {std::pair("1073741824", 0.5), std::pair("256", 2.0)}) {
    double scale = 0;
    const Proof sound = checked(plan(start), [&](Evidence& e) {
      scale = e.scale_before.scale;
      EXPECT_EQ(e.scale_after.scale, scale * factor);
    });
    EXPECT_EQ(sound.verdict, "equal") << sound.describe();
    const Proof stays = checked(plan(start), [&](Evidence& e) { e.scale_after.scale = scale; });
    EXPECT_EQ(stays.verdict, "different") << stays.describe();
    EXPECT_NE(stays.reason.find("the loss scale goes on as"), std::string::npos) << stays.reason;
    const Proof other = checked(plan(start), [&](Evidence& e) { e.report.loss_scale *= 2; });
    EXPECT_EQ(other.verdict, "different") << other.describe();
  }
}

TEST(Certificate, OfARunOfOneStepComparesThatStep) {
  RunOptions certified;
  certified.is_certified = true;
  const Plan plan = plan_of(tests::family("t1d_2"), {{"train.steps", "1"}, {"model.dtype", "f32"}});
  const Certificate c = tests::run_plan(plan, certified)[0].certificate;
  EXPECT_EQ(c.verdict, "equal") << c.describe() << "; native " << c.native.describe();
  EXPECT_EQ(c.steps.size(), 3u);
  EXPECT_EQ(c.native.steps, std::vector<int64_t>{0});
}

}  // namespace
}  // namespace kuafu
