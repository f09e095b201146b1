// SPDX-License-Identifier: Apache-2.0
//
// Wrongs that a run in f64 does not show: of fewer bits alone, by little, or late. Each certificate
// is of a timed run, but for shares of absolute terms, which are of one step.

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include <ATen/ATen.h>

#include "kuafu/comm/worlds.h"
#include "kuafu/engine/proof/certificate_step.h"
#include "kuafu/engine/proof/witness.h"
#include "kuafu/parallel/pipeline/schedules.h"
#include "tests/mutants/mutant.h"
#include "tests/support/certified.h"
#include "tests/support/plans.h"
#include "tests/support/ranks.h"

namespace kuafu {
namespace {

using Action = tests::CommFault::Action;

/// What a scheme does to its products.
struct Wrong {
  double forward = 1, input_grad = 1,
         weight_grad = 1;  ///< factors of products, not of those in f64
  int64_t from = 0;        ///< calls of each before it begins
};

/// 1D, wrong in all types but f64.
class WrongScheme : public TensorParallel {
 public:
  WrongScheme(const Mesh& mesh, Wrong wrong)
      : TensorParallel(mesh), wrong_(wrong), sound_(make_megatron_1d(mesh)) {}
  Layout activation(Stream s) const override { return sound_->activation(s); }
  Layout weight(Role r) const override { return sound_->weight(r); }
  Tensor forward(const Tensor& x, const Tensor& w, Role r) const override {
    const bool is_sum = r == Role::kContract;
    return spoil(sound_->forward(x, w, r), is_sum ? wrong_.forward : 1, calls_[0]);
  }
  Tensor input_grad(const Tensor& dy, const Tensor& w, Role r) const override {
    const bool is_sum = r == Role::kExpand;
    return spoil(sound_->input_grad(dy, w, r), is_sum ? wrong_.input_grad : 1, calls_[1]);
  }
  Tensor weight_grad(const Tensor& x, const Tensor& dy, Role r) const override {
    return spoil(sound_->weight_grad(x, dy, r), wrong_.weight_grad, calls_[2]);
  }
  Cost cost(const LinearShape& s, Role r) const override { return sound_->cost(s, r); }

 private:
  Tensor spoil(const Tensor& t, double factor, int64_t& calls) const {
    const bool is_wrong = ++calls > wrong_.from && t.scalar_type() != at::kDouble && factor != 1;
    return is_wrong ? t * factor : t;
  }

  Wrong wrong_;
  std::unique_ptr<TensorParallel> sound_;
  mutable int64_t calls_[3] = {0, 0, 0};
};

const Overrides kQuickstart = {{"model.hidden", "64"},   {"model.vocab", "256"},
                               {"model.sequence", "32"}, {"model.dtype", "f32"},
                               {"optimizer.lr", "3e-3"}, {"train.validation_batches", "0"}};

Plan plan_with(const Overrides& more) {
  return tests::small_plan(tests::keys::both(kQuickstart, more));
}

/// What a run of two ranks under the wrong scheme came to.
RankResult result_of(const Wrong& wrong, const Overrides& more = {}) {
  Registries registries = builtin_registries();
  const TensorScheme sound = registries.tensor.find("1d");
  TensorMode mode = sound.mode;
  mode.name = "wrong";
  registries.tensor.add("wrong", "1d, wrong in all types but f64",
                        TensorScheme{mode, [wrong](const Mesh& mesh) {
                                       return std::make_unique<WrongScheme>(mesh, wrong);
                                     }});
  Plan plan = plan_with(tests::keys::both(tests::keys::tensor("1d", "2"), more));
  plan.parallel.tensor.mode = "wrong";
  return tests::certified_run(plan, registries);
}
Certificate certificate_of(const Wrong& wrong, const Overrides& more = {}) {
  return result_of(wrong, more).certificate;
}

// Early, among the steps that are made again anyway, and late.
TEST(CertificateOfAWrongScheme, TellsNumbersThatAreNone) {
  const double nan = std::nan("");
  for (const Wrong& wrong :
       {Wrong{.forward = nan, .from = 5}, Wrong{.forward = nan, .from = 30},
        Wrong{.input_grad = nan, .from = 5}, Wrong{.weight_grad = nan, .from = 30},
        Wrong{.weight_grad = 1 / 0.0, .from = 41}}) {
    const RankResult r = result_of(wrong, {{"train.steps", "12"}});
    EXPECT_FALSE(r.diverged.empty());
    EXPECT_LT(r.losses.size(), 12u);
    EXPECT_EQ(r.certificate.verdict, "different") << r.certificate.native.describe();
    // What is wrong from a call on is right in the first calls of an engine of its own.
    const std::string& why = r.certificate.reason;
    const char* what = wrong.from < 10
                           ? "the reference in f32 from the same weights: loss "
                           : " of the run diverged; made again from the same state: loss ";
    EXPECT_NE(why.find(what), std::string::npos) << why;
  }
}

TEST(CertificateOfASoundScheme, NamesADivergenceThatTheReferenceHasToo) {
  const RankResult r = result_of({}, {{"train.steps", "40"},
                                      {"optimizer.kind", "sgd"},
                                      {"optimizer.clip", "0"},
                                      {"optimizer.warmup", "0"},
                                      {"optimizer.lr", "1e6"}});
  EXPECT_FALSE(r.diverged.empty());
  EXPECT_EQ(r.certificate.verdict, "not_run") << r.certificate.native.describe();
  EXPECT_NE(r.certificate.reason.find("diverged"), std::string::npos) << r.certificate.reason;
}

/// A loss that is wrong where nobody trains by it.
/// Certificates of a run of one rank whose validation loss is told as so many times what it was.
std::vector<Certificate> with_validation_times(const Plan& plan,
                                               const std::vector<double>& factors) {
  const Registries registries = builtin_registries();
  const auto data = tests::data_of(plan);
  std::vector<Certificate> all;
  tests::run_ranks(1, [&](Communicator& world) {
    Engine engine(plan, registries, world, *data, {});
    Witness witness(plan, 0, Witness::Depth::kFull);
    for (int64_t step = 0; step < plan.train.steps; ++step) {
      witness.before_step(engine);
      witness.after_step(engine, engine.step());
    }
    const double loss = engine.validate();
    for (const double factor : factors) {
      all.push_back(certify(plan, registries, world, tests::data_of, {}, int64_t{1} << 40,
                            {.witness = &witness, .validation_loss = loss * factor}));
    }
  });
  return all;
}

TEST(CertificateOfARun, HoldsItsValidationLossToTheReference) {
  const Plan plan = plan_with({{"train.validation_batches", "2"}, {"train.steps", "2"}});
  const auto all = with_validation_times(plan, {1.0, 1.0001, 0.5});
  EXPECT_EQ(all.at(0).native.verdict, "equal") << all[0].native.describe();
  for (const size_t wrong : {1, 2}) {
    EXPECT_EQ(all.at(wrong).native.verdict, "different") << all[wrong].native.describe();
    EXPECT_EQ(all[wrong].native.loss.where, "validation loss after step 2");
  }
}

// Of this validation one computation in f32 says that it rounds less than f64 does.
TEST(CertificateOfARun, MeasuresItsValidationAtRandomWhereOneComputationSaysTooLittle) {
  const TensorModes modes = builtin_tensor_modes();
  const Overrides keys = {{"data.kind", "synthetic"},
                          {"model.sequence", "2"},
                          {"model.dtype", "f64"},
                          {"optimizer.lr", "5"},
                          {"train.steps", "1"}};
  const Plan plan = resolve(parse_plan("", "plan", modes, keys), 0, modes);
  const auto all = with_validation_times(plan, {1.0, 1 + 1e-9});
  EXPECT_EQ(all.at(0).native.verdict, "equal") << all[0].native.describe();
  EXPECT_GT(all[0].native.random_rounding, 0);
  EXPECT_EQ(all.at(1).native.verdict, "different") << all[1].native.describe();
}

TEST(CertificateOfASoundScheme, IsEqualWithAllItsSteps) {
  const Certificate c = certificate_of({}, {{"train.steps", "12"}});
  EXPECT_EQ(c.verdict, "equal") << c.describe() << "; native " << c.native.describe();
  ASSERT_EQ(c.native.steps.size(), 5u);
  EXPECT_EQ(c.native.steps.front(), 0);
  EXPECT_EQ(c.native.steps.back(), 11);
  EXPECT_LT(c.native.ratio(), 100) << c.native.describe();
}

TEST(CertificateOfAWrongScheme, TellsSumsOfF32TimesATenth) {
  for (const Wrong& wrong : {Wrong{.forward = 0.1}, Wrong{.input_grad = 0.1}}) {
    const Certificate c = certificate_of(wrong);
    EXPECT_EQ(c.verdict, "different");
    EXPECT_LT(c.gradient.error, c.gradient.bound);  // in f64 nothing is wrong
    EXPECT_EQ(c.native.verdict, "different") << c.native.describe();
  }
}

TEST(CertificateOfAWrongScheme, TellsSumsOfF32OffByOneInTenThousand) {
  for (const Wrong& wrong :
       {Wrong{.forward = 1.0001}, Wrong{.input_grad = 1.0001}, Wrong{.weight_grad = 1.0001}}) {
    const Certificate c = certificate_of(wrong);
    EXPECT_EQ(c.native.verdict, "different") << c.native.describe();
  }
}

/// All that a certificate says, with so many checks at once, of two ranks under `m`.
std::string words_with(int64_t threads, const tests::Mutant& m) {
  const Plan plan = plan_with(tests::keys::both(
      {{"parallel.data", "2"}, {"parallel.data.bucket", "20000"}}, {{"train.steps", "6"}}));
  const Registries registries = builtin_registries();
  std::string words;
  tests::run_ranks(2, [&](Communicator& world) {
    const auto wrapped = m.wrap_world ? m.wrap_world(world) : nullptr;
    const Certificate c = certify(plan, registries, wrapped ? *wrapped : world, tests::data_of, {},
                                  int64_t{1} << 40, {}, threads);
    if (world.rank() == 0) words = text(c.describe(), "; native ", c.native.describe());
  });
  return words;
}

TEST(CertificateOfManyChecks, IsTheSameHoweverManyRunAtOnce) {
  tests::Mutant sound, wrong;
  tests::set_fault(wrong, tests::CommFault{.action = Action::kDrop, .axis = "data", .at = 2});
  for (const tests::Mutant* m : {&sound, &wrong}) {
    const std::string one = words_with(1, *m);
    EXPECT_TRUE(one.starts_with(m == &sound ? "equal" : "different")) << one;
    for (const int64_t threads : {2, 5}) EXPECT_EQ(words_with(threads, *m), one);
  }
}

/// A type of fewer bits, and by what a certificate tells it.
struct Half {
  const char* type;
  double factor;  ///< of a sum
  double share;   ///< of the sums of absolute terms of a gradient
  double flow;    ///< of what a block gives on
};
constexpr Half kHalves[] = {{"f16", 1.02, 0.0125, 0.0125}, {"bf16", 1.2, 0.1, 0.1}};

Overrides in_half(const Half& half) {
  return {{"model.dtype", half.type}, {"train.loss_scale", "1024"}, {"train.steps", "6"}};
}

// A factor of a sum is less of its absolute terms, by as much as they cancel.
TEST(CertificateOfAWrongScheme, TellsSumsOfHalfPrecisionByTheFactorOfTheirType) {
  for (const Half& half : kHalves) {
    for (const Wrong& wrong : {Wrong{.forward = half.factor}, Wrong{.input_grad = half.factor},
                               Wrong{.weight_grad = half.factor}}) {
      const Certificate c = certificate_of(wrong, in_half(half));
      EXPECT_LT(c.gradient.error, c.gradient.bound);  // in f64 nothing is wrong
      EXPECT_FALSE(c.native.gradient.holds()) << half.type << c.native.describe();
      EXPECT_FALSE(c.native.blocks.holds()) << half.type << c.native.describe();
    }
  }
}

// Bounds are widest in first steps, where the later ones of a longer run make up for it.
TEST(CertificateOfAWrongScheme, TellsSumsOfHalfPrecisionInOneStepByALittleMore) {
  for (const auto& [type, factor] : {std::pair{"f16", 1.03}, {"bf16", 1.3}}) {
    for (const Wrong& wrong :
         {Wrong{.forward = factor}, Wrong{.input_grad = factor}, Wrong{.weight_grad = factor}}) {
      const Overrides one = {
          {"model.dtype", type}, {"train.loss_scale", "1024"}, {"train.steps", "1"}};
      const Certificate c = certificate_of(wrong, one);
      EXPECT_FALSE(c.native.gradient.holds()) << type << c.native.describe();
    }
  }
}

/// One step of one rank, to be checked with something wrong in it.
class OneStep {
 public:
  explicit OneStep(const Overrides& more)
      : plan_(plan_with(tests::keys::both({{"model.layers", "1"}}, more))),
        data_(tests::data_of(plan_)),
        reference_(make_reference(plan_, registries_, *data_)) {
    const auto alone = make_self();
    Engine engine(plan_, registries_, *alone, *data_, {});
    sound_ = observe(engine, *alone, whole_state(engine, *alone), Look::kBlocksToo);
    oracle::Tensors weights;
    for (const auto& [name, w] : sound_.before.values) weights[name] = w.to(at::kDouble);
    terms_ = LayersReference(*reference_).gradients(0, weights, {}).absolute;
  }
  /// Of each layer by itself.
  const oracle::Tensors& terms() const { return terms_; }
  /// Of the same layers of an evidence, to write to.
  oracle::Tensors layers(Evidence& e) const {
    for (auto& [name, g] : e.gradients) g = g.clone();
    return layers_apart(e.gradients, reference_->weights());
  }
  const Evidence& sound() const { return sound_; }
  Proof checked(const Evidence& e) {
    Proof proof;
    const RoundingOf of_sound = [this](const auto& measure) {
      if (!rounding_) rounding_ = measure();
      return *rounding_;
    };
    check_step(plan_, e, *reference_, of_sound, proof);
    return proof;
  }

 private:
  Plan plan_;
  Registries registries_ = builtin_registries();
  std::unique_ptr<Dataset> data_;
  std::unique_ptr<CertificateReference> reference_;
  Evidence sound_;
  oracle::Tensors terms_;
  std::optional<ReferenceError> rounding_;
};

// What a run starts from besides weights, of which the native part and the f64 twin say the same.
TEST(CertificateOfAStart, TellsCountsSlotsAndScalesThatAreNotThePlans) {
  OneStep step({{"model.dtype", "f16"}, {"train.loss_scale_start", "1024"}});
  EXPECT_EQ(step.checked(step.sound()).verdict, "not_run") << "nothing was refuted";
  const auto refuted = [&](const std::function<void(Evidence&)>& spoil, const std::string& words) {
    Evidence e = step.sound();
    spoil(e);
    const Proof proof = step.checked(e);
    EXPECT_EQ(proof.verdict, "different") << words;
    EXPECT_NE(proof.reason.find(words), std::string::npos) << proof.reason;
  };
  refuted([](Evidence& e) { ++e.before.num_steps; }, "counts 1 updates after 0 steps");
  refuted([](Evidence& e) { ++e.scale_before.skipped; }, "counts 0 updates after 0 steps, 1");
  refuted([](Evidence& e) { e.scale_before.scale *= 2; }, "the loss scale begins as 2048");
  refuted([](Evidence& e) { e.scale_before.good_steps = 1; }, "the loss scale begins as 1024");
  refuted(
      [](Evidence& e) {
        for (const auto& [name, value] : e.before.values) {
          e.before.slots["m"][name] = at::ones_like(value, at::kFloat);
        }
      },
      "is not zero at the start");
  refuted([](Evidence& e) { e.gradients_disagreement = "w is not whole"; }, "w is not whole");
}

// A step that only rounding at random excuses says by how much.
TEST(CertificateOfAStep, TellsWhatRandomRoundingMoved) {
  Proof proof;
  EXPECT_EQ(proof.random_rounding, 0);
  Proof part;
  part.random_rounding = 0.05;
  proof.take(part);
  proof.take({});
  EXPECT_EQ(proof.random_rounding, 0.05);
  EXPECT_NE(proof.describe().find("by random rounding of 0.05"), std::string::npos);
}

TEST(CertificateInHalfPrecision, TellsTheShareOfItsTypeInTheTermsOfAnyGradient) {
  for (const Half& half : kHalves) {
    OneStep step(in_half(half));
    const Proof sound = step.checked(step.sound());
    EXPECT_TRUE(sound.holds()) << sound.describe();
    for (const auto& [name, terms] : step.terms()) {
      Evidence e = step.sound();
      step.layers(e).at(name).add_(half.share * terms);
      e.report.grad_norm = oracle::norm_of(e.gradients);  // nor does the norm tell it
      const Proof proof = step.checked(e);
      EXPECT_FALSE(proof.gradient.holds()) << half.type << proof.describe();
      EXPECT_FALSE(proof.blocks.holds()) << half.type << proof.describe();
    }
  }
}

TEST(CertificateInHalfPrecision, TellsTheShareOfItsTypeInWhatPassesBlocks) {
  for (const Half& half : kHalves) {
    OneStep step(in_half(half));
    for (Tensor oracle::BlockFlow::*flow :
         {&oracle::BlockFlow::output, &oracle::BlockFlow::input_gradient}) {
      Evidence e = step.sound();
      Tensor& t = e.flows.at("blocks.0").*flow;
      t = t.to(at::kDouble) * (1 + half.flow);
      const Proof proof = step.checked(e);
      EXPECT_FALSE(proof.blocks.holds()) << half.type << proof.describe();
    }
  }
}

// Eight weight gradients a step: the 31st is in the fourth.
TEST(CertificateOfAWrongScheme, TellsWhatGoesWrongAfterTheCertifiedSteps) {
  const Certificate c = certificate_of({.weight_grad = 2, .from = 30}, {{"train.steps", "12"}});
  EXPECT_EQ(c.native.verdict, "different") << c.native.describe();
  EXPECT_NE(c.native.reason.find("made again"), std::string::npos) << c.native.reason;
}

Certificate certificate_of(const Plan& plan, const tests::CommFault& fault) {
  tests::Mutant m;
  tests::set_fault(m, fault);
  const Registries registries = builtin_registries();
  Certificate c;
  tests::run_ranks(static_cast<int>(num_ranks(plan)), [&](Communicator& world) {
    const auto wrapped = m.wrap_world(world);
    const Certificate mine =
        certify(plan, registries, *wrapped, tests::data_of, {}, int64_t{1} << 40);
    if (world.rank() == 0) c = mine;
  });
  EXPECT_GT(*m.fired, 0);
  return c;
}

TEST(CertificateOfReplicas, TellsOneLostBucketAndOneOffByOneInTenThousand) {
  const Plan plan = plan_with({{"parallel.data", "2"}, {"parallel.data.bucket", "20000"}});
  for (const tests::CommFault& fault :
       {tests::CommFault{.action = Action::kDrop, .axis = "data", .at = 2},
        tests::CommFault{.action = Action::kScale, .axis = "data", .at = 2, .factor = 1.0001}}) {
    const Certificate c = certificate_of(plan, fault);
    EXPECT_EQ(c.native.verdict, "different") << c.native.describe();
  }
}

// A schedule that answers so often, then refuses: in the run itself the error of a rank ends it, while
// it is certified all ranks end alike, whichever of them is refused.
TEST(CertificateOfASchedule, ThatRefusesOnSomeRanksIsNotRunWithItsWords) {
  Plan plan =
      plan_with({{"parallel.pipeline.size", "2"}, {"train.batch", "4"}, {"train.steps", "5"}});
  plan.parallel.pipeline.schedule = "tires";
  int not_run = 0;
  for (int answers = 2; answers < 40; ++answers) {
    Registries registries = builtin_registries();
    const auto calls = std::make_shared<std::atomic<int>>(0);
    registries.schedules.add("tires", "1F1B until it refuses",
                             {.make = [calls, answers](pipeline::PipeShape s) {
                               if (++*calls > answers) throw Refused("no more");
                               return pipeline::builtin_schedules().find("1f1b").make(s);
                             }});
    const Certificate c = tests::certified_run(plan, registries).certificate;
    if (c.verdict == "equal") {
      EXPECT_EQ(*calls, answers);
      break;
    }
    EXPECT_EQ(c.verdict, "not_run") << answers << " answers: " << c.describe();
    EXPECT_NE(c.reason.find("no more"), std::string::npos) << answers << " answers: " << c.reason;
    // The part that met it first; the twin behind it was refused on both.
    const std::string& first = c.native.verdict == "not_run" ? c.native.reason : c.reason;
    EXPECT_EQ(first.find("and not on all") != std::string::npos, answers % 2 == 1)
        << answers << " answers: " << first;
    ++not_run;
  }
  EXPECT_GE(not_run, 4);
}

// A schedule that has another answer for one rank leads it to another miniature.
TEST(CertificateOfASchedule, ThatDiffersInWhatItRefusesIsNotRun) {
  Plan plan = plan_with(
      {{"parallel.pipeline.size", "2"}, {"train.batch", "20"}, {"train.micro_batch", "1"}});
  plan.parallel.pipeline.schedule = "choosy";
  thread_local int rank = 0;
  Registries registries = builtin_registries();
  registries.schedules.add("choosy", "1F1B, of no few micro-batches on rank 1",
                           {.make = [](pipeline::PipeShape s) {
                             if (rank == 1 && s.micro_batches < 10) throw Refused("too few");
                             return pipeline::builtin_schedules().find("1f1b").make(s);
                           }});
  tests::run_ranks(2, [&](Communicator& world) {
    rank = world.rank();
    const Certificate c = certify(plan, registries, world, tests::data_of, {}, 1);
    EXPECT_EQ(c.level, "scaled");
    EXPECT_EQ(c.verdict, "not_run") << c.describe();
    EXPECT_NE(c.reason.find("its miniature is another"), std::string::npos) << c.reason;
  });
}

}  // namespace
}  // namespace kuafu
