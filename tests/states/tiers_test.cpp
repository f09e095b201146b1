// SPDX-License-Identifier: Apache-2.0
//
// Plans with tiers of memory: the same bits as without, bytes that move as foretold, a budget that
// holds.

#include "kuafu/states/tiers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <mutex>
#include <numeric>

#include "kuafu/base/build_folders.h"
#include "kuafu/base/plugin_error.h"
#include "kuafu/base/reason.h"
#include "kuafu/base/trace.h"
#include "kuafu/comm/simulated.h"
#include "kuafu/device/arena.h"
#include "kuafu/engine/engine.h"
#include "kuafu/engine/whole.h"
#include "kuafu/memory/regret.h"
#include "kuafu/meter/allocator.h"
#include "tests/states/tier_runs.h"
#include "tests/support/ranks.h"
#include "tests/support/tensors.h"

namespace kuafu {
namespace {

using namespace tests;         // NOLINT: data_of, is_same, run_ranks
using namespace tests::tiers;  // NOLINT: the words of tier_runs.h

void expect_same_bits(const Plan& plan, const Trained& plain, const std::string& where) {
  const std::vector<Booked> ranks = on_threads(plan);
  for (const Booked& rank : ranks) {
    EXPECT_TRUE(is_same(rank.trained, plain)) << where;
    EXPECT_LE(rank.peak, *plan.memory.device) << where;
    EXPECT_LE(rank.high_water, rank.arena) << where;
    EXPECT_EQ(rank.moves.to_device, rank.moves.foretold) << where;
    EXPECT_GT(rank.moves.to_device, 0) << where;
    // Every gradient once a step, with the padding of chunks: under 64 bytes a parameter and rank.
    const int64_t least = plan.train.steps * rank.gradients;
    const auto tensors = static_cast<int64_t>(rank.trained.parameters.size());
    EXPECT_GE(rank.moves.to_host, least) << where;
    EXPECT_LT(rank.moves.to_host, least + 64 * plan.train.steps * tensors) << where;
  }
}

/// Every policy, on budgets from the least one up.
void expect_every_policy(const Overrides& base, const Overrides& more, const std::string& where) {
  const Trained plain = on_threads(plan_with(base))[0].trained;
  const int64_t least = least_budget(both(base, more));
  for (const std::string& name : policies()) {
    for (const int64_t budget : {least, least + least / 8, 4 * least}) {
      const Plan plan = plan_with(both(both(base, more), policy(name, budget)));
      expect_same_bits(plan, plain, text(where, ", ", name, " in ", budget));
    }
  }
}

TEST(Tiers, TrainToTheBitsOfPlainUnderEveryPolicy) { expect_every_policy({}, {}, "one rank"); }

TEST(Tiers, TrainToTheBitsOfPlainUnderEveryStageOfZero) {
  for (int64_t stage = 0; stage <= kLastZeroStage; ++stage) {
    const Overrides base = replicas(2, stage);
    const Trained plain = on_threads(plan_with(base))[0].trained;
    const int64_t least = least_budget(base);
    for (const char* name : {"host", "auto"}) {
      expect_same_bits(plan_with(both(base, policy(name, least))), plain,
                       text(name, ", ZeRO-", stage));
    }
  }
}

TEST(TiersWhole, TrainToTheBitsOfPlainUnderEveryPolicyStageChunkAndPrefetch) {
  for (const int64_t n : {1, 2, 3}) {
    for (int64_t stage = 0; stage <= kLastZeroStage; ++stage) {
      for (const char* chunk : {"1", "3000", "26214400"}) {
        for (const char* prefetch : {"0", "1", "3"}) {
          expect_every_policy(
              replicas(n, stage), {{"memory.chunk_size", chunk}, {"memory.prefetch", prefetch}},
              text(n, " ranks, ZeRO-", stage, ", chunk ", chunk, ", prefetch ", prefetch));
        }
      }
    }
  }
}

TEST(TiersWhole, TrainOnFiveSixAndSevenRanksToTheBitsOfPlain) {
  for (const int64_t n : {5, 6, 7}) {
    for (int64_t stage = 0; stage <= kLastZeroStage; ++stage) {
      const Overrides base = both(replicas(n, stage), {{"train.batch", text(n)}});
      const Overrides chunks = {{"memory.chunk_size", "3000"}};
      const Trained plain = on_threads(plan_with(base))[0].trained;
      const int64_t least = least_budget(both(base, chunks));
      for (const std::string& name : policies()) {
        const Plan plan = plan_with(both(both(base, chunks), policy(name, least + least / 8)));
        expect_same_bits(plan, plain, text(n, " ranks, ZeRO-", stage, ", ", name));
      }
    }
  }
}

TEST(Tiers, TrainEveryKindOfPlanToTheBitsOfPlain) {
  for (const auto& [name, base] : kinds()) {
    const std::vector<Booked> plain = on_threads(plan_with(base));
    const std::vector<Booked> tiered =
        on_threads(plan_with(both(base, policy("belady", least_budget(base)))));
    for (size_t r = 0; r < plain.size(); ++r) {
      EXPECT_TRUE(is_same(tiered[r].trained, plain[r].trained)) << name;
      EXPECT_EQ(tiered[r].moves.to_device, tiered[r].moves.foretold) << name;
      EXPECT_GT(tiered[r].moves.to_host, 0) << name;
    }
  }
}

TEST(Tiers, TrainWhatDoesNotFitTheDevice) {
  const Overrides base = {{"model.layers", "8"}, {"train.batch", "1"}};
  const int64_t budget = least_budget(base);
  const Booked rank = on_threads(plan_with(both(base, policy("auto", budget))))[0];
  EXPECT_LT(budget, rank.states / 2);
  EXPECT_LE(rank.peak, budget);
  EXPECT_GE(rank.moves.host_peak, rank.states / 2);  // gradients are there between halves of a step
  EXPECT_THROW(on_threads(plan_with(both(base, {{"memory.device", text(budget)}}))), OutOfMemory);
}

TEST(Tiers, OfTheExampleHoldWhatItsDeviceDoesNot) {
  const TensorModes modes = builtin_registries().tensor_modes();
  const std::string path = text(build_info::kSourceDir, "/examples/tiers.toml");
  const Overrides synthetic = {{"data.kind", "synthetic"}, {"train.steps", "3"}};
  const Plan plan = resolve(load_plan(path, modes, synthetic), 1, modes);
  const Booked rank = on_threads(plan)[0];
  EXPECT_GT(rank.states, *plan.memory.device);
  EXPECT_LE(rank.peak, *plan.memory.device);
  EXPECT_GT(rank.moves.to_device, 0);
}

TEST(Tiers, MoveLessWhereMoreFits) {
  const int64_t least = least_budget({});
  const auto moved = [&](const char* name, int64_t budget) {
    return on_threads(plan_with(policy(name, budget)))[0].moves.to_device;
  };
  EXPECT_LE(moved("belady", least), moved("host", least));
  EXPECT_LT(moved("belady", 8 * least), moved("belady", least));
  // Everything stays from its first use to the update; under "auto" from the second step on.
  const Booked all = on_threads(plan_with(policy("belady", 8 * least)))[0];
  EXPECT_EQ(all.moves.to_device, 3 * all.gradients);
  EXPECT_EQ(moved("auto", 8 * least), 2 * all.gradients + moved("host", 8 * least) / 3);
}

// A rank that finds other bytes in use than foretold ends: of every kind of plan none does.
TEST(Tiers, ChooseFromTheFirstStepByUsesThatAreForetold) {
  for (const auto& [name, base] : kinds()) {
    const int64_t budget = least_budget(base) * 9 / 8;
    for (const char* kind : {"belady", "static"}) {
      for (const Booked& rank : on_threads(plan_with(both(base, policy(kind, budget))))) {
        EXPECT_EQ(rank.moves.warm_ups, 0) << name;
        EXPECT_EQ(rank.moves.to_device, 3 * rank.moves.step_to_device) << name << ", " << kind;
      }
    }
  }
  const Booked warmed = on_threads(plan_with(policy("auto", least_budget({}))))[0];
  EXPECT_EQ(warmed.moves.warm_ups, 1);
}

TEST(Tiers, HoldTheFirstStepToWhatIsForetold) {
  RankBook book(0, TierBook{.tier = "device", .budget = 1 << 20, .arena = 8 << 20});
  const BookScope booked(&book);
  const auto step = [](int64_t foretold) {
    Tiers tiers({.policy = {.choose = memory::host_policy}}, at::kCPU);
    const Tensor home = at::rand({100}), here = at::empty({100});
    tiers.add(home, here, "block");
    free_storage(here);
    const int64_t beside = current_book()->live();
    tiers.foretell({beside + foretold, beside, beside}, true);
    tiers.begin({{0}, {}}, Tiers::Then::kUpdate);
    tiers.next();
    const Tensor activation = at::rand({64});
    tiers.next();
  };
  EXPECT_NO_THROW(step(256));
  try {
    step(260);
    FAIL() << "4 bytes were foretold that nobody used";
  } catch (const InternalError& e) {
    const std::string what = e.what();
    EXPECT_NE(what.find("moment 0 of the first step has"), std::string::npos) << what;
  }
}

/// What a rank loads in each step that the policy chose, of 1 to 3 ranks with parameters whole and in
/// parts, in budgets that hold some of the chunks: `optimal` never more than another policy, and
/// exactly the least of its own trace.
TEST(Tiers, MoveTheLeastUnderOptimal) {
  if (!memory::has_optimum()) GTEST_SKIP() << "no CBC";
  int64_t less_than_all = 0, cases = 0;
  for (const auto& [n, stage] : {std::pair<int64_t, int64_t>{1, 0}, {2, 3}, {3, 0}}) {
    const Overrides base =
        both(replicas(n, stage), {{"memory.chunk_size", "3000"}, {"train.steps", "2"}});
    const int64_t budget = least_budget(base) * 9 / 8;
    std::map<std::string, std::vector<Booked>> all;
    for (const std::string& name : policies()) {
      all[name] = on_threads(plan_with(both(base, policy(name, budget))));
    }
    for (size_t r = 0; r < static_cast<size_t>(n); ++r) {
      const Booked& optimal = all.at("optimal")[r];
      const memory::LeastBytes least = memory::least_for_record(optimal.uses, budget);
      EXPECT_TRUE(least.is_proven);
      EXPECT_EQ(optimal.moves.step_to_device, least.bytes) << n << " ranks, ZeRO-" << stage;
      for (const auto& [name, ranks] : all) {
        EXPECT_EQ(ranks[r].uses, optimal.uses) << name;
        EXPECT_LE(optimal.moves.step_to_device, ranks[r].moves.step_to_device) << name;
        less_than_all += optimal.moves.step_to_device < ranks[r].moves.step_to_device ? 1 : 0;
        ++cases;
      }
    }
  }
  EXPECT_GT(less_than_all, cases / 4);
}

TEST(Tiers, NameThePolicyThatBreaksARule) {
  Registries registries = builtin_registries();
  registries.policies.add("lazy", "makes no room",
                          {.choose = [](const memory::Known&) { return memory::Choice{}; }});
  const Overrides chunks = {{"memory.chunk_size", "3000"}};
  Plan plan = plan_with(both(chunks, policy("lru", least_budget(chunks))));
  plan.memory.policy = "lazy";
  run_ranks(1, [&](Communicator& world) {
    RankBook book = device_book(plan, 0, at::kCPU);
    const BookScope booked(&book);
    const auto data = data_of(plan);
    Engine engine(plan, registries, world, *data, {});
    try {
      engine.step();
      FAIL() << "all fits";
    } catch (const PluginError& e) {
      const std::string what = e.what();
      EXPECT_EQ(what.find("memory.policy = \"lazy\": move \""), 0u) << what;
      EXPECT_NE(what.find("live bytes, budget"), std::string::npos) << what;
    }
  });
}

/// What a policy was told and chose.
struct Chosen {
  int64_t bytes = 0, budget = 0, moment = 0, in_use = 0;  // bytes: of the first chunk
  memory::Choice choice;
  bool operator==(const Chosen&) const = default;
};

// A proof of other moves would say nothing of a move that is wrong.
TEST(Tiers, AreCertifiedByTheMovesOfTheRun) {
  std::vector<Chosen> all;
  Registries registries = builtin_registries();
  registries.policies.add(
      "told", "the longest unused leaves first, written down",
      {.keys = {"prefetch"}, .choose = [&](const memory::Known& k) {
         const memory::Choice choice = memory::lru_policy(k);
         all.push_back({k.bytes_of(0), k.budget, k.moment, k.moment_ahead(0).in_use, choice});
         return choice;
       }});
  const Overrides chunks = {{"memory.chunk_size", "3000"}, {"train.steps", "3"}};
  Plan plan = plan_with(both(chunks, policy("lru", least_budget(chunks) * 9 / 8)));
  plan.memory.policy = "told";
  RunOptions options;
  options.is_certified = true;
  options.make_data = data_of;
  run_ranks(1, [&](Communicator& world) {
    const Certificate c = run_rank(plan, registries, world, options).certificate;
    EXPECT_EQ(c.verdict, "equal") << c.describe() << "; native " << c.native.describe();
  });
  const size_t n = all.size() / 3;  // of the run, its native proof, its twin
  ASSERT_GT(n, 0u);
  ASSERT_EQ(all.size(), 3 * n);
  for (size_t i = 0; i < n; ++i) {
    EXPECT_EQ(all[n + i], all[i]) << i;
    const Chosen &once = all[i], &twin = all[2 * n + i];
    EXPECT_EQ(twin.bytes, 2 * once.bytes) << i;
    EXPECT_EQ(twin.budget, 2 * once.budget) << i;
    EXPECT_EQ(twin.moment, once.moment) << i;
    EXPECT_LE(twin.in_use, 2 * once.in_use) << i;
    EXPECT_EQ(twin.choice, once.choice) << i;
  }
}

// Nothing is updated then, which takes less beside the chunks than was foretold.
TEST(Tiers, TrainWhereTheFirstStepOverflows) {
  for (const char* kind : {"lamb", "lars", "adamw"}) {
    const Overrides base = {{"model.dtype", "f16"},
                            {"train.loss_scale", "dynamic"},
                            {"train.loss_scale_start", "4e6"},
                            {"train.telemetry", "true"},
                            {"optimizer.kind", kind},
                            {"train.steps", "6"}};
    const Booked plain = on_threads(plan_with(base))[0];
    for (const char* name : {"host", "static", "lru"}) {
      const Overrides tiers = policy(name, 4 * least_budget({}));
      const Booked rank = on_threads(plan_with(both(base, tiers)))[0];
      EXPECT_TRUE(is_same(rank.trained, plain.trained)) << kind << ", " << name;
      EXPECT_EQ(rank.moves.to_device, rank.moves.foretold) << kind << ", " << name;
    }
  }
}

TEST(Tiers, OfTooLittleSayWhatLiesWhere) {
  for (const int n : {1, 3}) {
    try {
      on_threads(plan_with(both(replicas(n, 3), policy("auto", 20000))));
      FAIL() << "trained in 20 kB";
    } catch (const TierFull& e) {
      EXPECT_EQ(e.fields.tier, "device");
      EXPECT_EQ(e.fields.budget, 20000);
      EXPECT_EQ(e.fields.beside, "host");
      EXPECT_GT(e.fields.live_beside, 0);
      EXPECT_EQ(
          std::accumulate(e.fields.by_category.begin(), e.fields.by_category.end(), int64_t{0}),
          e.fields.live);
      const std::string reason = reason_of(e);
      EXPECT_NE(reason.find("out of device memory"), std::string::npos) << reason;
      EXPECT_NE(reason.find("; on the host "), std::string::npos) << reason;
    }
  }
}

TEST(Tiers, OfTooLittleHostSayThatItIsTheHost) {
  try {
    on_threads(plan_with({{"memory.policy", "host"}, {"memory.host", "50000"}}));
    FAIL() << "50 kB hold all";
  } catch (const TierFull& e) {
    EXPECT_EQ(e.fields.tier, "host");
    EXPECT_EQ(e.fields.beside, "device");
  }
}

TEST(Tiers, MoveAndHoldAsMuchWithoutMemory) {
  for (const int64_t stage : {0, 1, 3}) {
    for (const std::string& name : policies()) {
      if (name == "lru" || name == "auto") continue;
      const Overrides base = replicas(2, stage);
      Plan plan = plan_with(both(base, policy(name, least_budget(base) * 9 / 8)));
      plan.train.steps = 2;
      std::vector<Booked> threads = on_threads(plan);
      const std::vector<Booked> meta = simulated(plan);
      for (size_t r = 0; r < 2; ++r) {
        threads[r].moves.wait_seconds = 0;
        EXPECT_EQ(meta[r].moves, threads[r].moves) << name << ", ZeRO-" << stage;
        EXPECT_EQ(meta[r].peak, threads[r].peak) << name << ", ZeRO-" << stage;
      }
    }
  }
}

/// Bytes by queue, of copies that a trace has; each is needed once, behind it and never before it ends.
std::map<TraceQueue, int64_t> traced_bytes(const Trace& trace) {
  std::map<TraceQueue, int64_t> bytes;
  std::map<int64_t, TraceRecord> under_way;
  for (const TraceRecord& r : trace.records) {
    if (r.kind == TraceKind::kCopy) {
      EXPECT_TRUE(under_way.emplace(r.payload[0], r).second);
      bytes[r.queue] += r.payload[1];
    } else if (r.kind == TraceKind::kArrival) {
      const auto copy = under_way.extract(r.payload[0]);
      EXPECT_FALSE(copy.empty());
      EXPECT_EQ(copy.mapped().queue, r.queue);
      EXPECT_EQ(copy.mapped().payload[1], r.payload[1]);
      EXPECT_LE(copy.mapped().start_ns, copy.mapped().end_ns);
      EXPECT_LE(copy.mapped().end_ns, r.end_ns);
    }
  }
  EXPECT_TRUE(under_way.empty());
  return bytes;
}

TEST(Tiers, TraceEveryCopyWithTheTimesOfItsQueue) {
  const Plan plan =
      plan_with(both(replicas(2, 3), policy("belady", 64 << 20, {{"memory.chunk_size", "4 KiB"}})));
  run_ranks(2, [&](Communicator& world) {
    TraceRecorder recorder;
    Booked booked;
    {
      const TraceScope traced(&recorder);
      train_booked(plan, world, *data_of(plan), at::kCPU, booked);
    }
    const auto bytes = traced_bytes(recorder.trace());
    EXPECT_EQ(bytes.at(TraceQueue::kToDevice), booked.moves.to_device);
    EXPECT_EQ(bytes.at(TraceQueue::kToHost), booked.moves.to_host);
    for (const TraceRecord& r : recorder.trace().records) {
      if (r.kind != TraceKind::kCopy) continue;
      EXPECT_GT(r.end_ns, r.start_ns);
    }
  });
}

TEST(Tiers, ThrottledCopiesTakeTheirTime) {
  const auto waited = [](const char* gbs) {
    return on_threads(plan_with({{"memory.policy", "host"},
                                 {"memory.prefetch", "0"},
                                 {"memory.throttle", "true"},
                                 {"cluster.host_gbs", gbs}}))[0]
        .moves;
  };
  const MoveCounts slow = waited("0.01");
  // Nothing is loaded ahead, so each load is waited for: its bytes at 10 MB/s.
  EXPECT_GE(slow.wait_seconds, 0.9 * static_cast<double>(slow.to_device) / 0.01e9);
  EXPECT_LT(waited("10").wait_seconds, slow.wait_seconds / 2);
}

/// KUAFU_POISON until the scope ends.
class PoisonScope {
 public:
  explicit PoisonScope(const char* word) { ::setenv("KUAFU_POISON", word, 1); }
  ~PoisonScope() { ::unsetenv("KUAFU_POISON"); }
};

// NaN in all that was evicted: who read it would tell, and who wrote into it ends the run.
TEST(Tiers, TrainToTheBitsOfPlainWhereWhatIsEvictedIsPoisoned) {
  const Trained plain = on_threads(plan_with({}))[0].trained;
  const int64_t least = least_budget({});
  const PoisonScope poisoned("on");
  for (const std::string& name : policies()) {
    expect_same_bits(plan_with(policy(name, least + least / 8)), plain, name);
  }
}

/// {home, here} of the only chunk, which the first moment uses and the second does not.
std::pair<Tensor, Tensor> only_chunk(Tiers& tiers, int64_t elements) {
  Tensor home;
  {
    const BookScope host(tiers.host());
    home = at::rand({elements});
  }
  const Tensor here = at::empty({elements});
  tiers.add(home, here, "block");
  free_storage(here);
  tiers.begin({{0}, {}}, Tiers::Then::kUpdate);
  return {home, here};
}

TEST(Tiers, ReadersAndWritersOfAnEvictedChunkAreFound) {
  constexpr int64_t kElements = 1 << 16;
  const PoisonScope poisoned("on");
  RankBook book(0, TierBook{.tier = "device", .budget = 1 << 20, .arena = 1 << 20});
  const BookScope booked(&book);
  Tiers tiers({.policy = {.choose = memory::host_policy}}, at::kCPU);
  const auto [home, here] = only_chunk(tiers, kElements);
  tiers.next();
  auto* const stale = here.data_ptr<float>();
  tiers.next();
  EXPECT_EQ(here.storage().data(), nullptr);  // an op on its tensor ends at address 0
  EXPECT_TRUE(std::isnan(stale[7]));
  stale[7] = 1;
  EXPECT_THROW(at::empty({kElements}), device::UseAfterFree);
  tiers.go_home();
}

TEST(Tiers, PoisonIsOnOrOff) {
  const PoisonScope word("yes");
  EXPECT_THROW(device::poison_choice(), ConfigError);
}

// What has left the device is out of the process: the system says so.
TEST(Tiers, WhatIsDroppedLeavesTheProcess) {
  const PoisonScope off("off");  // poisoned pages stay
  constexpr int64_t kElements = 1 << 20;
  RankBook book(0, TierBook{.tier = "device", .budget = 64 << 20, .arena = 64 << 20});
  const BookScope booked(&book);
  const device::Arena& arena = *book.account()->arena();
  Tiers tiers({.policy = {.choose = memory::host_policy}}, at::kCPU);
  const auto [home, here] = only_chunk(tiers, kElements);
  const int64_t before = arena.resident_bytes();
  tiers.next();
  EXPECT_TRUE(at::equal(here, home));
  EXPECT_GE(arena.resident_bytes(), before);
  EXPECT_GE(arena.resident_bytes(), 4 * kElements);
  tiers.next();  // "host" drops what this moment does not use
  EXPECT_EQ(here.storage().nbytes(), 0u);
  EXPECT_LT(arena.resident_bytes(), 64 << 10);
  tiers.go_home();
  EXPECT_EQ(tiers.counts().to_device, 4 * kElements);
}

TEST(Tiers, HaveThePoliciesThatThereAre) {
  for (const std::string& name : policies()) {
    EXPECT_TRUE(tier_options(small_plan({{"memory.policy", name}, {"memory.device", "1 GB"}})))
        << name;
  }
  EXPECT_FALSE(tier_options(small_plan({})));
}

}  // namespace
}  // namespace kuafu
