// SPDX-License-Identifier: Apache-2.0
//
// Workers that go on by themselves: every order that happens is recorded, within the bound, and one
// rank that replays it gets the same. The oracle replays it, too.

#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include <filesystem>

#include "kuafu/engine/proof/certificate_replay.h"
#include "kuafu/engine/proof/push_replay.h"
#include "kuafu/engine/whole.h"
#include "kuafu/parallel/stale/replicas.h"
#include "kuafu/simulate/simulate.h"
#include "tests/base/messages.h"
#include "tests/dataset/folder.h"
#include "tests/parallel/stale/stale_plans.h"
#include "tests/support/ranks.h"

namespace kuafu {
namespace {

using tests::certificate_of;
using tests::run_plan;
using tests::script;
using tests::small_plan;
using tests::stale;

struct ServerShape {
  int64_t workers, servers, staleness;
};
std::ostream& operator<<(std::ostream& out, const ServerShape& s) {
  return out << s.workers << "_" << s.servers << "_" << s.staleness;
}

class Staleness : public testing::TestWithParam<ServerShape> {
 protected:
  static Overrides overrides(const Overrides& more) {
    return stale(GetParam().workers, GetParam().servers, GetParam().staleness, more);
  }
};

TEST_P(Staleness, EqualsOneRankThatReplaysTheOrder) {
  for (const char* optimizer : {"adamw", "sgd"}) {
    const Certificate c = certificate_of(small_plan(overrides({{"optimizer.kind", optimizer}})));
    EXPECT_EQ(c.verdict, "equal") << optimizer << ": " << c.describe() << "; native "
                                  << c.native.describe();
    EXPECT_EQ(c.level, "full");
  }
}

TEST_P(Staleness, AccumulationAndDropoutEqualOneRank) {
  const std::string batch = text(GetParam().workers * 6);
  const Certificate c = certificate_of(small_plan(
      overrides({{"train.batch", batch}, {"train.micro_batch", "2"}, {"model.dropout", "0.1"}})));
  EXPECT_EQ(c.verdict, "equal") << c.describe() << "; native " << c.native.describe();
}

TEST_P(Staleness, RecordsALawfulOrderOfEveryServer) {
  const int64_t workers = GetParam().workers, servers = GetParam().servers;
  const int64_t staleness = GetParam().staleness;
  RunOptions slow;
  slow.slowdown = [workers](int rank, int64_t) { return rank + 1 == workers ? 5 : 1; };
  const auto ranks = run_plan(small_plan(overrides({{"train.steps", "8"}})), slow);
  for (const RankResult& r : ranks) {
    EXPECT_EQ(r.pushes, ranks[0].pushes);
    EXPECT_EQ(r.losses, ranks[0].losses);
    EXPECT_EQ(r.validation_loss, ranks[0].validation_loss);
  }
  ASSERT_EQ(static_cast<int64_t>(ranks[0].pushes.size()), servers);
  const PushRules rules{.workers = workers, .steps = 8, .staleness = staleness};
  EXPECT_EQ(why_unlawful(ranks[0].pushes, rules), "");
}

TEST_P(Staleness, LossFalls) {
  const auto losses = run_plan(small_plan(overrides({{"train.steps", "50"}})))[0].losses;
  EXPECT_LT(losses.back(), losses.front() - 0.5);
}

std::vector<int> in_turn(const Plan& plan) {
  std::vector<int> order;
  for (int64_t i = 0; i < plan.train.steps * plan.parallel.data.size; ++i)
    order.push_back(static_cast<int>(i % plan.parallel.data.size));
  return order;
}

// All meet at a save, so that what was saved is all there is to know.
TEST_P(Staleness, GoesOnFromASaveToTheSameBits) {
  const int64_t workers = GetParam().workers;
  for (const char* type : {"f64", "bf16"}) {
    SCOPED_TRACE(type);
    const Folder folder;
    const Plan plan = small_plan(overrides({{"train.steps", "8"}, {"model.dtype", type}}));
    RunOptions options;
    options.push_script = in_turn(plan);
    options.checkpoint = {.folder = folder.path() + "/saved", .every = 3};
    const RankResult whole = run_plan(plan, options)[0];
    EXPECT_EQ(whole.met, (std::vector<int64_t>{3, 6, 8}));
    const PushRules rules{
        .workers = workers, .steps = 8, .staleness = GetParam().staleness, .met = whole.met};
    EXPECT_EQ(why_unlawful(whole.pushes, rules), "");
    for (const char* later : {"/saved/step-00000006", "/saved/step-00000008"})
      EXPECT_GT(std::filesystem::remove_all(folder.path() + later), 1U);
    options.checkpoint.resumes = true;
    options.is_certified = true;
    const RankResult rest = run_plan(plan, options)[0];
    EXPECT_EQ(rest.resumed_from, 3);
    EXPECT_EQ(rest.losses, std::vector<double>(whole.losses.begin() + 3, whole.losses.end()));
    EXPECT_EQ(rest.validation_loss, whole.validation_loss);
    for (size_t s = 0; s < rest.pushes.size(); ++s) {
      const PushOrder& all = whole.pushes[s];
      EXPECT_EQ(rest.pushes[s], PushOrder(all.begin() + 3 * workers, all.end()));
    }
    EXPECT_EQ(rest.certificate.native.verdict, "equal") << rest.certificate.native.describe();
    EXPECT_EQ(rest.certificate.native.steps, (std::vector<int64_t>{3, 4, 5, 6, 7}));
  }
}

INSTANTIATE_TEST_SUITE_P(All, Staleness,
                         testing::ValuesIn(std::vector<ServerShape>{
                             {1, 1, 1}, {2, 1, 1}, {2, 2, 1}, {3, 1, 2}, {3, 2, 1}, {5, 3, 4}}),
                         [](const auto& info) { return testing::PrintToString(info.param); });

std::vector<RankResult> run_script(const Plan& plan, const std::vector<int>& order) {
  RunOptions options;
  options.push_script = order;
  return run_plan(plan, options);
}

TEST(Script, DecidesTheOrderAndWithItTheVersions) {
  const auto ranks = run_script(small_plan(stale(3, 1, 2)), script());
  const PushOrder expected = {{0, 0, 0}, {0, 1, 1}, {1, 0, 0}, {0, 2, 2}, {1, 1, 3},
                              {2, 0, 0}, {2, 1, 6}, {1, 2, 5}, {2, 2, 7}};
  EXPECT_EQ(ranks[0].pushes, std::vector<PushOrder>{expected});
}

TEST(Script, RepeatsToTheBit) {
  const Plan plan = small_plan(stale(3, 2, 2, {{"model.dtype", "f32"}}));
  const auto once = run_script(plan, script()), again = run_script(plan, script());
  EXPECT_EQ(once[0].losses, again[0].losses);
  EXPECT_EQ(once[0].validation_loss, again[0].validation_loss);
  EXPECT_EQ(once[0].pushes, again[0].pushes);
}

TEST(Script, OfAnotherOrderTrainsOtherwise) {
  const Plan plan = small_plan(stale(3, 1, 2));
  const auto ahead = run_script(plan, script());
  const auto in_turn = run_script(plan, {0, 1, 2, 0, 1, 2, 0, 1, 2});
  EXPECT_EQ(ahead[0].losses[0], in_turn[0].losses[0]);  // all read version 0
  EXPECT_NE(ahead[0].losses[2], in_turn[0].losses[2]);
}

/// A run of a script, and what the reference makes of an order.
struct Followed {
  std::vector<std::vector<double>> losses;  // by worker and step
  WholeTensors parameters;
  ReplayedPushes replayed;
};
Followed follow_script(const Plan& plan, const std::vector<int>& order,
                       const std::function<void(std::vector<PushOrder>&)>& change) {
  const Registries registries = builtin_registries();
  Followed out;
  tests::run_ranks(static_cast<int>(num_ranks(plan)), [&](Communicator& world) {
    const auto data = tests::data_of(plan);
    Engine engine(plan, registries, world, *data, {.push_script = order});
    std::vector<double> losses;
    for (int64_t step = 0; step < plan.train.steps; ++step) losses.push_back(engine.step().loss);
    PushedRun run = pushed_run(engine, world, losses);
    const WholeTensors parameters =
        whole_parameters(engine, world.rank() == 0 ? Keep::kYes : Keep::kNo);
    if (world.rank() != 0) return;
    out.losses = run.losses;
    out.parameters = parameters;
    change(run.orders);
    const FlatBucket layout =
        whole_model(engine.params(), engine.mesh(), plan.parallel.data.servers);
    const auto reference = make_reference(plan, registries, *data);
    EXPECT_EQ(reference->name(), "oracle");
    out.replayed = replay_pushes({plan, layout, run.orders, plan.train.steps}, *reference);
  });
  return out;
}

double far(const Followed& r) {
  double most = 0;
  for (const auto& [name, value] : r.parameters) {
    const Tensor difference = (value - r.replayed.weights.at(name)).abs().max();
    most = std::max(most, difference.item<double>());
  }
  return most;
}

// Plain SGD: rounding stays rounding, so other orders and versions stand out.
TEST(PushReplay, OfTheRecordedOrderIsTheRunAndOfAnyOtherIsNot) {
  const Plan plan = small_plan(
      stale(3, 2, 2,
            {{"optimizer.kind", "sgd"}, {"optimizer.momentum", "0.9"}, {"optimizer.lr", "0.1"}}));
  const auto with = [&](const auto& change) { return far(follow_script(plan, script(), change)); };
  EXPECT_LT(with([](auto&) {}), 1e-12);
  EXPECT_GT(with([](auto& orders) { std::swap(orders[1][1], orders[1][2]); }), 1e-9);
  EXPECT_GT(with([](auto& orders) { orders[0][3].version = 1; }), 1e-9);
}

TEST(PushReplay, CarriesTheLossesOfEveryStep) {
  const Plan plan = small_plan(stale(3, 1, 2, {{"optimizer.kind", "sgd"}}));
  const Followed r = follow_script(plan, script(), [](auto&) {});
  for (size_t w = 0; w < 3; ++w) {
    for (size_t t = 0; t < 3; ++t) {
      EXPECT_NEAR(r.losses[w][t] / r.replayed.losses[w][t], 1, 1e-12) << w << t;
    }
  }
}

// Three workers, at most two steps ahead, as script() has them.
TEST(PushRules, TellWhichUpdateOfWhomNoServerCanHaveApplied) {
  const PushOrder lawful = {{0, 0, 0}, {0, 1, 1}, {1, 0, 0}, {0, 2, 2}, {1, 1, 3},
                            {2, 0, 0}, {2, 1, 6}, {1, 2, 5}, {2, 2, 7}};
  const auto why = [](const PushOrder& order, int64_t staleness) {
    return why_unlawful({order}, {.workers = 3, .steps = 3, .staleness = staleness});
  };
  EXPECT_EQ(why(lawful, 2), "");
  expect_says(why(lawful, 1), {"update 4, of worker 0", "step 3, 2 ahead", "staleness = 1"});
  PushOrder late = lawful, twice = lawful, other = lawful;
  late[6].version = 0;
  expect_says(why(late, 2), {"update 7, of worker 2", "version 0; the worker had read 6"});
  twice[4].step = 0;
  expect_says(why(twice, 2), {"update 5, of worker 1", "step 1 after step 1"});
  other[8].worker = 3;
  expect_says(why(other, 2), {"update 9, of worker 3", "no such worker"});
  other.pop_back();
  expect_says(why(other, 2), {"8 updates for 3 steps of 3 workers"});
}

TEST(PushRules, LetAllReadTheNewestWhereTheyMet) {
  PushRules rules{.workers = 2, .steps = 2, .staleness = 1, .begun = 3, .met = {4}};
  const PushOrder order = {{0, 3, 6}, {1, 3, 6}, {0, 4, 8}, {1, 4, 8}};
  EXPECT_EQ(why_unlawful({order}, rules), "");
  rules.met = {};
  expect_says(why_unlawful({order}, rules), {"update 3, of worker 0", "8; the worker had read 7"});
  rules.begun = 0;
  expect_says(why_unlawful({order}, rules), {"update 1, of worker 0", "step 4 after step 0"});
}

/// Three workers whose pushes come in turn, two steps ahead at most.
struct InTurn {
  explicit InTurn(const Overrides& more) : plan(small_plan(stale(3, 2, 2, more))) {
    options.push_script = in_turn(plan);
  }
  Plan plan;
  RunOptions options;
};

TEST(Staleness, TellsWhatAllHaveMadeWhereARunBreaksOff) {
  InTurn run(Overrides{{"train.steps", "8"}});
  const std::vector<double> whole = run_plan(run.plan, run.options)[0].losses;
  std::vector<double> made;
  run.options.on_made = [&](const RankResult& so_far) {
    made = so_far.losses;
    EXPECT_EQ(so_far.step_seconds.size(), made.size());
  };
  run.options.slowdown = [](int rank, int64_t step) {
    if (rank == 0 && step == 5) throw Error("broken off");
    return 1.0;
  };
  EXPECT_THROW(run_plan(run.plan, run.options), Error);
  ASSERT_GE(made.size(), 3u);  // worker 0 was two ahead at most
  ASSERT_LE(made.size(), 5u);
  for (size_t t = 0; t < made.size(); ++t) EXPECT_DOUBLE_EQ(made[t], whole[t]);
}

// Whichever worker sees it, all leave the steps from the first loss on that is no number.
TEST(Staleness, DivergesOnAllWorkersAtOneStep) {
  InTurn run(Overrides{{"train.steps", "40"}, {"model.dtype", "f32"}, {"optimizer.lr", "1000"}});
  const Requests requests;
  const Folder folder;
  run.options.requests = &requests;
  run.options.checkpoint = {.folder = folder.path() + "/saved", .every = 1};
  run.options.push_script.clear();
  const auto ranks = run_plan(run.plan, run.options);
  ASSERT_LT(ranks[0].losses.size(), 10u);
  for (const RankResult& r : ranks) {
    expect_says(r.diverged, {"no finite number at step", text(r.losses.size() + 1)});
    EXPECT_EQ(r.losses, ranks[0].losses);
    EXPECT_EQ(r.step_seconds.size(), r.losses.size());
  }
  for (const double loss : ranks[0].losses) EXPECT_TRUE(std::isfinite(loss));
  const std::string good = ranks[0].last_good;
  EXPECT_EQ(good.substr(good.size() - 1), text(ranks[0].losses.size() - 1)) << good;
}

TEST(Script, BeyondTheBoundIsRefusedWithItsEntry) {
  const Plan plan = small_plan(stale(3, 1, 1));
  const auto error = [&](const std::vector<int>& order) {
    return message_of<ConfigError>([&] { run_script(plan, order); });
  };
  expect_says(error({0, 1, 0, 0}), {"entry 3", "step 2 of worker 0", "staleness = 1"});
  expect_says(error({0, 3}), {"entry 1", "worker 3", "0 to 2"});
}

TEST(Staleness, IsRefusedWhereItCannotWork) {
  const auto refusal = [](const Overrides& o) {
    return message_of<Refused>([&] { small_plan(o); });
  };
  expect_says(refusal(stale(2, 1, 1, {{"optimizer.clip", "0.5"}})),
              {"optimizer.clip = 0.5", "parallel.data.staleness = 1", "nearest: clip = 0"});
  expect_says(
      refusal(stale(2, 1, 1, {{"parallel.tensor.mode", "1d"}, {"parallel.tensor.size", "2"}})),
      {"replicas of 2 ranks", "nearest: tensor, sequence and pipeline of size 1"});
  expect_says(refusal(stale(2, 1, 1, {{"model.kind", "moe_gpt"}})), {"moe_gpt"});
  expect_says(
      message_of<Refused>([] { simulate(small_plan(stale(2, 1, 3)), builtin_registries()); }),
      {"parallel.data.staleness = 3", "cannot be simulated", "nearest: staleness = 0"});
}

}  // namespace
}  // namespace kuafu
