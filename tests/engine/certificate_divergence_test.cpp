// SPDX-License-Identifier: Apache-2.0
//
// Runs that diverge, saturate or overflow: never "different" for it, and never a way out of what is
// wrong before.

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/mutants/mutant.h"
#include "tests/support/plans.h"
#include "tests/support/ranks.h"

namespace kuafu {
namespace {

using Action = tests::CommFault::Action;
using tests::small_plan;

/// But for those about validations: a last loss that is no number is a matter of rounding here.
const Overrides kUnvalidated = {{"train.validation_batches", "0"}};

/// With requests a run that diverges ends with what it has.
Certificate whatever_comes_of(const Plan& plan, int64_t memory = RunOptions{}.certificate_memory) {
  const Requests asked_for_nothing;
  RunOptions certified;
  certified.is_certified = true;
  certified.certificate_memory = memory;
  certified.requests = &asked_for_nothing;
  return tests::run_plan(plan, certified)[0].certificate;
}

Certificate of_a_run(const Overrides& overrides) {
  return whatever_comes_of(small_plan(tests::keys::both(kUnvalidated, overrides)));
}

std::string words(const Certificate& c) {
  return text(c.describe(), "; native ", c.native.describe());
}

TEST(ProofOfADivergedRun, EndsNotRunWithItsReason) {
  Proof p;
  p.verdict = "equal";
  p.gradient.add(1e-9, 1e-8, "a");
  p.give_up("step 2 has diverged");
  p.judge();
  EXPECT_EQ(p.verdict, "not_run");
  EXPECT_EQ(p.reason, "step 2 has diverged");
}

TEST(ProofOfADivergedRun, IsDifferentWhereAnythingBeforeOrAfterIs) {
  Proof before, after, refuted;
  before.verdict = after.verdict = refuted.verdict = "equal";
  before.gradient.add(1e-7, 1e-8, "a");
  before.give_up("step 2 has diverged");
  EXPECT_EQ(before.verdict, "different");
  after.give_up("step 2 has diverged");
  after.update.add(1e-7, 1e-8, "a");
  after.judge();
  EXPECT_EQ(after.verdict, "different");
  refuted.give_up("step 2 has diverged");
  refuted.refute("other bits");
  refuted.give_up("step 3 could not be compared");
  refuted.judge();
  EXPECT_EQ(refuted.verdict, "different");
  EXPECT_EQ(refuted.reason, "other bits");
}

// Gradients of 1e-7 are two or three spacings of f16; clipped in it, they would round again.
TEST(CertificateInHalfPrecision, RoundsClippedGradientsAsTheRunDoes) {
  for (const char* type : {"f16", "bf16"}) {
    const Certificate c = of_a_run({{"model.dtype", type},
                                    {"train.loss_scale", "1"},
                                    {"optimizer.clip", "0.1"},
                                    {"train.steps", "3"}});
    EXPECT_EQ(c.native.verdict, "equal") << words(c);
  }
}

// Where all of them are skipped no gradient and no update was there to compare.
TEST(CertificateInHalfPrecision, OfStepsThatWereAllSkippedIsNone) {
  const Overrides skipping = {
      {"model.dtype", "f16"}, {"train.steps", "4"}, {"train.loss_scale_start", "1e15"}};
  const Certificate c = of_a_run(skipping);
  EXPECT_EQ(c.verdict, "not_run") << words(c);
  EXPECT_NE(c.reason.find("every step that was compared was skipped"), std::string::npos)
      << words(c);
  EXPECT_NE(c.reason.find("lower train.loss_scale_start"), std::string::npos) << words(c);
  const Certificate fixed =
      of_a_run({{"model.dtype", "f16"}, {"train.steps", "4"}, {"train.loss_scale", "1e15"}});
  EXPECT_TRUE(fixed.reason.ends_with("lower train.loss_scale")) << words(fixed);
  const Certificate later = of_a_run(tests::keys::both(skipping, {{"train.steps", "60"}}));
  EXPECT_EQ(later.verdict, "equal") << words(later);  // its last step is compared too
}

const Overrides kDiverging = {{"optimizer.lr", "1"},    {"model.hidden", "64"},
                              {"model.vocab", "256"},   {"model.sequence", "32"},
                              {"train.steps", "12"},    {"optimizer.clip", "0"},
                              {"optimizer.warmup", "0"}};

// A smaller model has not diverged, and cannot say whether the run was right to.
TEST(CertificateOfADivergingRun, IsNotOfASmallerModel) {
  const Plan plan = small_plan({{"optimizer.kind", "sgd"},
                                {"optimizer.clip", "0"},
                                {"optimizer.lr", "1000"},
                                {"train.steps", "60"}});
  const Certificate c = whatever_comes_of(plan, 1);
  EXPECT_EQ(c.level, "scaled");
  EXPECT_EQ(c.verdict, "not_run") << words(c);
  EXPECT_NE(c.reason.find("the run has diverged"), std::string::npos) << words(c);
}

// The oracle makes no validation loss of a mixture.
TEST(Certificate, OfAMixtureSaysThatItsValidationLossIsComparedWithNothing) {
  const Certificate mixture = whatever_comes_of(
      small_plan({{"model.kind", "moe_gpt"}, {"model.experts", "4"}, {"train.steps", "3"}}));
  EXPECT_EQ(mixture.verdict, "equal") << words(mixture);
  EXPECT_NE(mixture.native.unseen.find("the validation loss after step 3"), std::string::npos)
      << words(mixture);
  EXPECT_EQ(whatever_comes_of(small_plan({{"train.steps", "3"}})).native.unseen, "");
}

// A rate that no run survives: logits of hundreds, a softmax that is one or zero.
TEST(CertificateOfADivergingRun, IsEqualOrNamesTheStep) {
  for (const char* type : {"f32", "bf16"}) {
    const Certificate c = of_a_run(tests::keys::both(kDiverging, {{"model.dtype", type}}));
    if (c.native.verdict == "not_run") {
      EXPECT_EQ(c.verdict, "not_run") << words(c);
    }
    for (const Proof* p : {static_cast<const Proof*>(&c), &c.native}) {
      EXPECT_NE(p->verdict, "different") << type << words(c);
      if (p->verdict == "equal") continue;
      EXPECT_NE(p->reason.find("diverged"), std::string::npos) << words(c);
      EXPECT_EQ(p->reason.find("step "), 0u) << words(c);
    }
  }
}

// Equal rows err alike, a norm of one or two elements leaves nothing but rounding, decay ten times
// the weight.
TEST(CertificateOfADivergingRun, IsNotDifferentWhereRoundingIsAllThatIsLeft) {
  const Overrides one = {{"model.hidden", "1"}, {"model.heads", "1"}, {"optimizer.lr", "1"}};
  const Overrides two = {{"model.hidden", "2"},
                         {"model.heads", "1"},
                         {"model.vocab", "5"},
                         {"model.mlp", "swiglu"},
                         {"optimizer.lr", "10"}};
  const Overrides decay = {{"optimizer.lr", "10"}, {"optimizer.weight_decay", "1"}};
  const Overrides sure = {{"model.hidden", "16"},  {"model.vocab", "32"},  {"model.sequence", "7"},
                          {"model.kv_heads", "1"}, {"optimizer.lr", "10"}, {"train.steps", "6"}};
  for (const Overrides& o : {one, two, decay, sure}) {
    const Certificate c = of_a_run(tests::keys::both(
        {{"model.dtype", "f32"}, {"train.steps", "3"}, {"optimizer.warmup", "0"}}, o));
    EXPECT_NE(c.verdict, "different") << o.back().first << words(c);
  }
}

/// What `kuafu run` does of an empty document.
Certificate of_a_default_run(const Overrides& overrides) {
  const Registries registries = builtin_registries();
  const TensorModes modes = registries.tensor_modes();
  const Overrides common =
      tests::keys::both(kUnvalidated, {{"data.kind", "synthetic"}, {"train.steps", "3"}});
  const Plan plan =
      resolve(parse_plan("", "empty.toml", modes, tests::keys::both(common, overrides),
                         registries.models.names()),
              0, modes);
  return whatever_comes_of(plan);
}

/// What is told is of steps that are named.
void expect_named_steps(const Proof& p) {
  const std::string& where = p.worst().where;
  const size_t at = where.rfind(", step ");
  if (at == std::string::npos) return;
  const int64_t step = std::stoll(where.substr(at + 7)) - 1;
  EXPECT_NE(std::find(p.steps.begin(), p.steps.end(), step), p.steps.end()) << p.describe();
}

void expect_named(const Overrides& overrides) {
  const Certificate c = of_a_default_run(overrides);
  EXPECT_EQ(c.verdict, "not_run") << words(c);
  EXPECT_NE(c.reason.find("the run has diverged"), std::string::npos) << words(c);
  EXPECT_NE(c.native.verdict, "different") << words(c);
  for (const Proof* p : {static_cast<const Proof*>(&c), &c.native}) expect_named_steps(*p);
}

// A mixture's scores are no numbers either in a draw that overflows: where they are one or zero,
// which token an expert takes is rounding's choice.
TEST(CertificateOfADivergingRun, IsNamedWhereTheScoresOfExpertsOverflow) {
  expect_named({{"optimizer.lr", "977"},
                {"optimizer.beta1", "0"},
                {"model.dtype", "bf16"},
                {"model.kind", "moe_gpt"},
                {"model.layers", "3"},
                {"model.experts", "4"},
                {"model.sequence", "8"},
                {"model.router", "expert_choice"},
                {"model.mlp", "swiglu"},
                {"model.norm", "rms"},
                {"model.positions", "rotary"},
                {"model.hidden", "16"},
                {"model.heads", "2"},
                {"train.batch", "16"},
                {"train.micro_batch", "1"},
                {"train.steps", "5"}});
}

// A softmax without doubt has a loss of 1e-17 in one order of its sums and of 0 in another: log(1 + x)
// is rounded to whole multiples of u.
TEST(CertificateOfADivergingRun, IsNotDifferentWhereALossIsSmallerThanItsRounding) {
  const Certificate c = of_a_default_run({{"model.hidden", "16"},
                                          {"model.vocab", "5"},
                                          {"model.sequence", "1"},
                                          {"model.bias", "false"},
                                          {"optimizer.lr", "10"},
                                          {"optimizer.weight_decay", "0.1"},
                                          {"optimizer.clip", "0.01"},
                                          {"optimizer.scale_lr", "sqrt"},
                                          {"optimizer.base_batch", "8"},
                                          {"train.batch", "1"},
                                          {"train.steps", "20"}});
  EXPECT_NE(c.verdict, "different") << words(c);
  EXPECT_NE(c.native.verdict, "different") << words(c);
}

// Saturated scores: rounding chooses an expert whose score is 0 in f64, and the reference, which takes
// the choice over, divides by it.
TEST(CertificateOfADivergingRun, IsNamedWhereAChosenExpertHasNoScore) {
  expect_named({{"model.kind", "moe_gpt"},
                {"model.layers", "1"},
                {"model.hidden", "12"},
                {"model.heads", "2"},
                {"model.sequence", "7"},
                {"model.vocab", "2"},
                {"train.batch", "4"},
                {"train.steps", "6"},
                {"train.seed", "551863"},
                {"model.dtype", "bf16"},
                {"model.norm", "rms"},
                {"model.mlp", "swiglu"},
                {"optimizer.kind", "muon"},
                {"optimizer.lr", "1800"}});
}

// Squares leave the range of the type, and a norm divides by infinity: the reference has a loss there,
// log of the vocabulary, which is not that of f64.
TEST(CertificateOfADivergingRun, IsNamedWhereAValidationIsNoNumberAndTheReferenceIsSaturated) {
  expect_named({{"model.layers", "1"},
                {"model.hidden", "8"},
                {"model.heads", "2"},
                {"model.sequence", "3"},
                {"model.vocab", "16"},
                {"train.batch", "2"},
                {"train.seed", "322249"},
                {"train.validation_batches", "1"},
                {"model.dtype", "bf16"},
                {"model.norm", "rms"},
                {"model.mlp", "swiglu"},
                {"optimizer.kind", "sgd"},
                {"optimizer.lr", "54933.76"}});
}

// One key for both heads, scores of some 10^10: a query's gradient has no terms in f64, where its row is sure
// of a key, and draws at random leave the range of numbers.
TEST(CertificateOfADivergingRun, IsNamedWhereAGradientHasNoTermsAndDrawsOverflow) {
  expect_named({{"model.kv_heads", "1"},
                {"model.heads", "2"},
                {"model.hidden", "8"},
                {"model.sequence", "8"},
                {"train.steps", "4"},
                {"optimizer.lr", "100"}});
}

// The run's norm is no number, the reference has one from the same weights by luck: rounding at random
// moves its gradients without bound.
TEST(CertificateOfADivergingRun, IsNamedWhereTheReferenceHasNumbersByLuck) {
  for (const char* seed : {"1", "2", "3"}) {
    expect_named({{"model.kv_heads", "1"},
                  {"model.heads", "6"},
                  {"model.hidden", "24"},
                  {"model.sequence", "5"},
                  {"train.steps", "2"},
                  {"train.seed", seed},
                  {"optimizer.lr", "1e5"}});
  }
}

// Every draw at random leaves the range of numbers: logits whose rounding is more than 88, squares
// of gradients beyond 1e308.
TEST(CertificateOfADivergingRun, IsNamedWhereEveryDrawOverflows) {
  expect_named({{"optimizer.lr", "1e5"}, {"model.dtype", "f64"}});
  for (const char* type : {"f32", "f64", "bf16"}) {
    expect_named({{"optimizer.lr", "1e6"}, {"optimizer.weight_decay", "0"}, {"model.dtype", type}});
  }
  for (const char* lr : {"30", "100", "1000"}) {
    expect_named({{"optimizer.lr", lr}, {"model.dtype", "bf16"}});
  }
}

// Moments below the normal numbers of f32 are rounded to whole multiples of 2^-149.
TEST(CertificateOfAnUnderflow, IsEqual) {
  const std::map<std::string, std::vector<const char*>> clips = {
      {"f32", {"1e-25", "1e-28", "1e-30", "1e-35"}},
      {"f16", {"1e-28", "1e-30", "1e-35"}},
      {"bf16", {"1e-10", "1e-30"}}};
  for (const auto& [type, values] : clips) {
    for (const char* clip : values) {
      const Certificate c = of_a_default_run({{"model.dtype", type}, {"optimizer.clip", clip}});
      EXPECT_EQ(c.verdict, "equal") << type << " " << clip << " " << words(c);
    }
  }
  const Certificate sgd =
      of_a_default_run({{"optimizer.kind", "sgd"}, {"optimizer.clip", "1e-40"}});
  EXPECT_EQ(sgd.verdict, "equal") << words(sgd);
  // What is lost of a norm moves the ratio of its layer; all of it, and the ratio is 1.
  for (const char* clip : {"1e-38", "1e-40", "1e-42"}) {
    for (const char* decay : {"0", "0.01"}) {
      const Certificate lars = of_a_default_run({{"optimizer.kind", "lars"},
                                                 {"optimizer.clip", clip},
                                                 {"optimizer.weight_decay", decay},
                                                 {"optimizer.ratio_max", "10"},
                                                 {"optimizer.bound", "ratio"}});
      EXPECT_EQ(lars.verdict, "equal") << clip << " " << decay << " " << words(lars);
    }
  }
}

TEST(CertificateOfADivergingRun, IsNoBetterThanTheRunItself) {
  Certificate c;
  c.verdict = "equal";
  c.native.verdict = "not_run";
  c.native.reason = "step 2 has diverged";
  c.conclude();
  EXPECT_EQ(c.verdict, "not_run");
  EXPECT_EQ(c.reason, "step 2 has diverged");
  c.native.verdict = "different";
  c.conclude();
  EXPECT_EQ(c.verdict, "different");
}

TEST(CertificateOfADivergingRun, TellsALostBucketOfItsHealthySteps) {
  const Plan plan = small_plan(tests::keys::both(
      kDiverging,
      {{"model.dtype", "f32"}, {"parallel.data", "2"}, {"parallel.data.bucket", "20000"}}));
  tests::Mutant m;
  tests::set_fault(m, tests::CommFault{.action = Action::kDrop, .axis = "data", .at = 2});
  const Registries registries = builtin_registries();
  Certificate c;
  tests::run_ranks(2, [&](Communicator& world) {
    const auto wrapped = m.wrap_world(world);
    const Certificate mine =
        certify(plan, registries, *wrapped, tests::data_of, {}, int64_t{1} << 40);
    if (world.rank() == 0) c = mine;
  });
  EXPECT_EQ(c.native.verdict, "different") << words(c);
}

}  // namespace
}  // namespace kuafu
