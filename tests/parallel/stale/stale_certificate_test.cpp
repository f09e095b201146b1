// SPDX-License-Identifier: Apache-2.0
//
// Certificates of runs whose replicas go on by themselves.

#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "kuafu/engine/proof/certificate_replay.h"
#include "tests/base/messages.h"
#include "tests/parallel/stale/stale_plans.h"
#include "tests/support/ranks.h"

namespace kuafu {
namespace {

using tests::run_plan;
using tests::script;
using tests::small_plan;
using tests::stale;

// In the timed run, whatever its order was: every loss of every worker, the servers' last values, and
// every push by itself. SGD has bounds that tell. AdamW divides by gradients that may be nothing but
// rounding: at a rate of 0.01 some orders diverge in bf16 within the six steps, at 0.001 none of 98
// orders of a busy machine did.
TEST(StaleCertificate, IsOfTheTimedRun) {
  const std::vector<int64_t> all = {0, 1, 2, 3, 4, 5};
  for (const auto& [optimizer, type] : {std::pair("sgd", "f64"), std::pair("sgd", "f32"),
                                        std::pair("adamw", "f32"), std::pair("adamw", "bf16")}) {
    SCOPED_TRACE(std::string(optimizer) + " " + type);
    RunOptions options;
    options.is_certified = true;
    options.slowdown = [](int rank, int64_t) { return rank == 1 ? 3 : 1; };
    const Plan plan =
        small_plan(stale(3, 2, 2,
                         {{"optimizer.kind", optimizer},
                          {"optimizer.lr", type == std::string("bf16") ? "0.001" : "0.01"},
                          {"model.dtype", type},
                          {"train.steps", "6"}}));
    const Certificate c = run_plan(plan, options)[0].certificate;
    EXPECT_EQ(c.reference, "oracle");
    EXPECT_EQ(c.verdict, "equal") << type << c.describe();
    EXPECT_EQ(c.native.verdict, "equal") << type << c.native.describe();
    EXPECT_GT(c.native.loss.bound, 0);
    EXPECT_EQ(c.native.steps, all);
    EXPECT_FALSE(c.native.update.where.empty());
    EXPECT_GT(c.native.gradient.bound, 0);
    if (plan.optimizer.kind == "adamw") continue;
    EXPECT_LT(c.native.loss.bound, 1e-4) << c.native.describe();
    EXPECT_LT(c.native.update.bound, 1e-4) << c.native.describe();
  }
}

// Without a second moment every update is of the size of the rate, whatever rounding left of it.
TEST(StaleCertificate, EndsWhereRoundingAloneMovesALoss) {
  RunOptions options;
  options.is_certified = true;
  options.push_script = {0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2};
  const Plan plan = small_plan(
      stale(3, 1, 2,
            {{"optimizer.beta2", "0"},
             {"model.dtype", "bf16"},
             {"train.steps", "5"},
             {"train.validation_batches", "0"}}));  // on some processors it has diverged by then
  const Certificate c = run_plan(plan, options)[0].certificate;
  EXPECT_NE(c.verdict, "different") << c.describe() << "; native " << c.native.describe();
  EXPECT_LT(c.native.steps.size(), 5U) << c.native.describe();
}

/// Beyond kReplayedSteps.
Plan long_plan(const Overrides& more) {
  return small_plan(stale(2, 1, 1, tests::keys::both({{"train.steps", "40"}}, more)));
}

TEST(StaleCertificate, OfALongRunIsOfItsFirstLossesAndItsLastPushes) {
  for (const char* optimizer : {"adamw", "sgd"}) {
    SCOPED_TRACE(optimizer);
    RunOptions options;
    options.is_certified = true;
    const Plan plan = long_plan({{"model.dtype", "f32"}, {"optimizer.kind", optimizer}});
    const Certificate c = run_plan(plan, options)[0].certificate;
    EXPECT_EQ(c.verdict, "equal") << c.describe() << "; native " << c.native.describe();
    std::vector<int64_t> steps = {0, 1, 2, 32, 33, 34, 35, 36, 37, 38, 39};
    const int64_t drawn = wanted_pushes(plan, 1, int64_t{1} << 40).step;
    if (drawn > 2) steps.insert(steps.begin() + 3, drawn);
    EXPECT_EQ(c.native.steps, steps);
    for (const Measure* m : {&c.native.loss, &c.native.gradient, &c.native.update}) {
      EXPECT_GT(m->bound, 0) << c.native.describe();
      EXPECT_LT(m->bound, 1e-3) << c.native.describe();
    }
  }
}

/// The certificate of a run of 40 steps, which worker 1 spoils before each push.
Certificate of_spoiled(const Plan& plan, const Registries& registries,
                       const std::function<void(Engine&, int64_t)>& spoil, bool is_witnessed = true,
                       bool is_resumed = false) {
  Certificate c;
  tests::run_ranks(2, [&](Communicator& world) {
    const auto data = tests::data_of(plan);
    PushedRun run;
    {
      Engine engine(plan, registries, world, *data, {});
      if (is_witnessed) witness_pushes(engine, int64_t{1} << 40);
      std::vector<double> losses;
      for (int64_t t = 0; t < plan.train.steps; ++t) {
        losses.push_back(engine.forward_backward());
        if (world.rank() == 1) spoil(engine, t);
        engine.update();
      }
      run = pushed_run(engine, world, losses);
      run.is_resumed = is_resumed;
    }
    const Certificate mine =
        certify(plan, registries, world, tests::data_of, {}, int64_t{1} << 40, {.pushed = &run});
    if (world.rank() == 0) c = mine;
  });
  return c;
}

TEST(StaleCertificate, TellsALateGradientThatIsWrongOnOneWorker) {
  const Plan plan = long_plan({{"model.dtype", "f32"}, {"optimizer.kind", "sgd"}});
  for (const bool is_lasting : {true, false}) {
    const Certificate c = of_spoiled(plan, builtin_registries(), [&](Engine& engine, int64_t t) {
      if (t < 35 || (t > 35 && !is_lasting)) return;
      for (Param* p : engine.params()) p->value.mutable_grad().mul_(1.001);
    });
    EXPECT_EQ(c.verdict, "different") << c.native.describe();
    EXPECT_FALSE(c.native.gradient.holds()) << c.native.describe();
    EXPECT_TRUE(c.native.update.holds()) << c.native.describe();
    expect_says(c.native.gradient.where, {" of worker 1"});
  }
}

// Its pushes are all that is looked at.
TEST(StaleCertificate, OfAResumedRunTellsAGradientThatIsWrong) {
  const Plan plan = long_plan({{"model.dtype", "f32"}, {"optimizer.kind", "sgd"}});
  for (const bool is_spoiled : {false, true}) {
    const auto spoil = [&](Engine& engine, int64_t t) {
      if (t != 35 || !is_spoiled) return;
      for (Param* p : engine.params()) p->value.mutable_grad().mul_(1.001);
    };
    const Certificate c = of_spoiled(plan, builtin_registries(), spoil, true, /*is_resumed=*/true);
    EXPECT_EQ(c.verdict, is_spoiled ? "different" : "equal") << c.native.describe();
    EXPECT_EQ(c.native.steps.size(), 9u);  // the last 8, and one drawn
  }
}

TEST(StaleCertificate, TellsALateUpdateThatIsWrong) {
  const OptimizerRule sound = builtin_optimizers().find("sgd");
  Registries registries = builtin_registries();
  registries.optimizers = OptimizerRules("optimizer");
  const auto make = [sound](const OptimizerPlan& plan) {
    Rule rule = sound.make(plan);
    rule.update = [update = rule.update](RulePiece& piece, const Rates& rates, const Tensor& r) {
      const Tensor before = piece.value.clone();
      update(piece, rates, r);
      if (rates.step > 72) piece.value.add_(piece.value - before);  // of 80, two a step
    };
    return rule;
  };
  registries.optimizers.add("sgd", "sgd whose last updates count twice", {sound.keys, make});
  const Plan plan = long_plan({{"model.dtype", "f32"}, {"optimizer.kind", "sgd"}});
  const Certificate c = of_spoiled(plan, registries, [](Engine&, int64_t) {});
  EXPECT_EQ(c.verdict, "different") << c.native.describe();
  EXPECT_TRUE(c.native.gradient.holds()) << c.native.describe();
  EXPECT_FALSE(c.native.update.holds()) << c.native.describe();
}

TEST(StaleCertificate, OfALongRunThatKeptNoPushIsNone) {
  const Plan plan = long_plan({{"optimizer.kind", "sgd"}});
  const Certificate c = of_spoiled(
      plan, builtin_registries(), [](Engine&, int64_t) {}, /*is_witnessed=*/false);
  EXPECT_EQ(c.native.verdict, "not_run") << c.native.describe();
  EXPECT_EQ(c.verdict, "not_run");
  expect_says(c.reason, {"later steps are not replayed beyond 32"});
}

// Rank 1 serves nobody: what it holds hangs on no order of messages.
TEST(StaleCertificate, IsInNoBookOfTheRun) {
  std::vector<RankResult> without, with;
  for (const bool is_certified : {false, true}) {
    RunOptions options;
    options.is_certified = is_certified;
    options.push_script = {0, 1, 0, 1, 0, 1};
    (is_certified ? with : without) = run_plan(small_plan(stale(2, 1, 1)), options);
  }
  EXPECT_EQ(with[0].certificate.verdict, "equal");
  EXPECT_EQ(with[1].peak_bytes, without[1].peak_bytes);
  for (size_t r = 0; r < 2; ++r) {
    EXPECT_EQ(with[r].losses, without[r].losses);
    EXPECT_EQ(with[r].flops, without[r].flops);
    EXPECT_EQ(with[r].traffic, without[r].traffic);
  }
}

TEST(WantedPushes, AreTheLastThatMemoryHasRoomForAndOneBefore) {
  const Plan plan = long_plan({});
  const auto first = [&](int64_t memory) { return wanted_pushes(plan, 1000, memory).from; };
  EXPECT_EQ(first(int64_t{1} << 40), 40 - kLastSteps);
  EXPECT_EQ(first(0), 39);
  EXPECT_EQ(first(3 * 2 * 1000 * 8 * 11), 37);
  const WantedPushes wanted = wanted_pushes(plan, 1000, 0);
  EXPECT_TRUE(wanted.has(wanted.worker, wanted.step));
  EXPECT_FALSE(wanted.has(1 - wanted.worker, wanted.step));
  EXPECT_LT(wanted.step, 39);
}

TEST(StaleCertificate, TellsALossThatIsNotTheOrders) {
  const Plan plan = small_plan(
      stale(3, 2, 2, {{"model.dtype", "f32"}, {"train.steps", "5"}, {"optimizer.lr", "0.01"}}));
  const Registries registries = builtin_registries();
  const auto certified = [&](const std::function<void(PushedRun&)>& spoil) {
    Certificate c;
    tests::run_ranks(3, [&](Communicator& world) {
      const auto data = tests::data_of(plan);
      PushedRun run;
      {
        Engine engine(plan, registries, world, *data, {.push_script = script()});
        witness_pushes(engine, int64_t{1} << 40);
        std::vector<double> losses;
        for (int64_t t = 0; t < plan.train.steps; ++t) losses.push_back(engine.step().loss);
        run = pushed_run(engine, world, losses);
      }
      spoil(run);
      const Certificate mine =
          certify(plan, registries, world, tests::data_of, {}, int64_t{1} << 40, {.pushed = &run});
      if (world.rank() == 0) c = mine;
    });
    return c;
  };
  EXPECT_EQ(certified([](PushedRun&) {}).native.verdict, "equal");
  const Certificate wrong = certified([](PushedRun& run) { run.losses[2][2] *= 1.0001; });
  EXPECT_EQ(wrong.native.verdict, "different") << wrong.native.describe();
  EXPECT_EQ(wrong.verdict, "different");
  EXPECT_EQ(wrong.native.loss.where, "loss, step 3 of worker 2");
  const Certificate order = certified([](PushedRun& run) {
    for (PushOrder& o : run.orders) std::swap(o[1], o[2]);
  });
  EXPECT_EQ(order.native.verdict, "different") << order.native.describe();
  expect_says(order.native.reason,
              {"server 0: update 4, of worker 0", "version 2; the worker had read 3"});
  const Certificate last = certified([](PushedRun& run) {
    if (!run.values.empty()) run.values.begin()->second.add_(1e-3);
  });
  EXPECT_EQ(last.native.verdict, "different") << last.native.describe();
  EXPECT_GT(last.native.update.error, last.native.update.bound);
}

}  // namespace
}  // namespace kuafu
