// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "kuafu/comm/core_turns.h"
#include "kuafu/comm/simulated.h"
#include "kuafu/comm/turns.h"
#include "kuafu/comm/worlds.h"

namespace kuafu {
namespace {

/// Asked before a test has placed its own thread.
int cores() {
  static const int count = CoreTurns(1).num_cores();
  return count;
}

cpu_set_t affinity() {
  cpu_set_t set;
  CPU_ZERO(&set);
  sched_getaffinity(0, sizeof(set), &set);
  return set;
}

/// A world of so many ranks more than cores that the first ranks have all cores.
struct Full {
  explicit Full(int more) : turns(cores() + more) {
    for (int rank = 0; rank < cores() + more; ++rank) turns.enter(rank);
  }
  ~Full() { pthread_setaffinity_np(pthread_self(), sizeof(before), &before); }
  cpu_set_t before = affinity();
  CoreTurns turns;
};

TEST(CoreTurns, AsManyRanksHaveACoreAsThereAre) {
  Full world(2);
  for (int rank = 0; rank < cores(); ++rank) EXPECT_TRUE(world.turns.ask(rank));
  EXPECT_FALSE(world.turns.ask(cores()));
  EXPECT_FALSE(world.turns.ask(cores() + 1));
  EXPECT_TRUE(world.turns.is_wanted());
}

TEST(CoreTurns, ACoreGoesToWhoeverAskedFirst) {
  Full world(3);
  const int first = cores();
  EXPECT_EQ(world.turns.give_up(0), first);
  EXPECT_TRUE(world.turns.ask(first));
  EXPECT_FALSE(world.turns.ask(0)) << "behind those that have waited for longer";
  EXPECT_EQ(world.turns.give_up(first), first + 1);
  EXPECT_EQ(world.turns.give_up(first + 1), first + 2);
  EXPECT_EQ(world.turns.give_up(first + 2), 0);
  EXPECT_FALSE(world.turns.is_wanted());
  EXPECT_EQ(world.turns.give_up(0), std::nullopt) << "nobody is ready";
  EXPECT_TRUE(world.turns.ask(first)) << "the core lay free";
}

TEST(CoreTurns, WhoBlocksTwiceGivesUpNothingTwice) {
  Full world(2);
  EXPECT_EQ(world.turns.give_up(0), cores());
  EXPECT_EQ(world.turns.give_up(0), std::nullopt);
}

TEST(CoreTurns, WhoGoesOnWithoutACoreLeavesTheQueueAndGivesNoneAway) {
  Full world(2);
  world.turns.overbook(cores());
  EXPECT_TRUE(world.turns.ask(cores()));
  EXPECT_EQ(world.turns.give_up(cores()), std::nullopt);
  EXPECT_EQ(world.turns.give_up(0), cores() + 1) << "the next in the queue";
}

TEST(CoreTurns, WhoLeavesIsNoLongerInTheQueue) {
  Full world(2);
  EXPECT_EQ(world.turns.give_up(cores(), true), std::nullopt);
  EXPECT_FALSE(world.turns.takes_part(cores()));
  EXPECT_TRUE(world.turns.ask(cores())) << "as it likes";
  EXPECT_EQ(world.turns.give_up(0, true), cores() + 1);
  EXPECT_FALSE(world.turns.takes_part(0));
}

TEST(CoreTurns, OverbookingIsNothingForWhoeverHasACore) {
  Full world(1);
  world.turns.overbook(0);
  EXPECT_EQ(world.turns.give_up(0), cores());
}

TEST(CoreTurns, AnHeirStartsOnTheCoreThatIsLeftAndMayRunAnywhereAfterwards) {
  Full world(1);
  cpu_set_t now = affinity();
  EXPECT_TRUE(CPU_EQUAL(&now, &world.before)) << "whoever found a core free starts where it likes";
  EXPECT_EQ(world.turns.give_up(0), cores());
  now = affinity();
  EXPECT_EQ(CPU_COUNT(&now), 1);
  EXPECT_TRUE(CPU_ISSET(sched_getcpu(), &now));
  world.turns.run(cores());
  now = affinity();
  EXPECT_TRUE(CPU_EQUAL(&now, &world.before));
}

/// Ranks that outnumber the cores, in turns.
void run_in_turns(int more, const std::function<void(Communicator&)>& body) {
  run_on_threads(cores() + more, [&](Communicator& world) {
    const TurnsScope turns(turns_of(world));
    body(world);
  });
}

TEST(Turns, SumsAndRingsOfMessagesAreWhatTheyAreWithoutThem) {
  const auto start = std::chrono::steady_clock::now();
  run_in_turns(3, [](Communicator& world) {
    const int n = world.size(), me = world.rank();
    for (int round = 0; round < 100; ++round) {
      std::vector<double> sum(1 + 97 * static_cast<size_t>(round), me + round);
      const auto count = static_cast<int64_t>(sum.size());
      world.all_reduce({sum.data(), count, DType::kF64}, ReduceOp::kSum).wait();
      ASSERT_EQ(sum.back(), n * (n - 1) / 2.0 + n * round);
      double mine = me, got = -1;
      world
          .send_recv({&mine, 1, DType::kF64}, (me + 1) % n, {&got, 1, DType::kF64},
                     (me + n - 1) % n, 7)
          .wait();
      ASSERT_EQ(got, (me + n - 1) % n);
    }
  });
  // Some 300 waits: had anybody kept a core while it waited, each would have cost 100 ms.
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
}

TEST(Turns, AScopeEndsThemAndScopesNest) {
  run_on_threads(cores() + 1, [](Communicator& world) {
    std::optional<Turns> turns = turns_of(world);
    ASSERT_TRUE(turns);
    {
      const TurnsScope outer(turns);
      { const TurnsScope inner(turns); }
      EXPECT_FALSE(turns->enter()) << "the outer scope is still open";
      world.barrier();
    }
    EXPECT_FALSE(turns->leave());
    const cpu_set_t set = affinity();
    EXPECT_EQ(CPU_COUNT(&set), cores());
  });
}

TEST(Turns, AGroupOfRanksHasThoseOfItsWorld) {
  run_on_threads(cores() + 1, [](Communicator& world) {
    const auto group = world.split([](int rank) { return SplitKey{rank % 2, rank}; });
    const TurnsScope outer(turns_of(world));
    std::optional<Turns> turns = turns_of(*group);
    ASSERT_TRUE(turns);
    EXPECT_FALSE(turns->enter()) << "the scope of the world is open";
    world.barrier();
  });
}

TEST(Turns, AreNoneWhereEachRankHasACoreNorInOtherWorlds) {
  run_on_threads(1, [](Communicator& world) { EXPECT_FALSE(turns_of(world)); });
  EXPECT_FALSE(turns_of(*make_self()));
  SimulatedWorld simulated(cores() + 1);
  EXPECT_FALSE(turns_of(*simulated.communicator(0)));
  const TurnsScope none(std::nullopt);
}

// All who have a core wait for one who has none, and not in a call.
TEST(Turns, WhoSleepsInItsTurnHoldsNobodyUpForLong) {
  std::atomic<int> num_come{0};
  const auto start = std::chrono::steady_clock::now();
  run_in_turns(2, [&](Communicator& world) {
    ++num_come;
    while (num_come.load() < world.size())
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
  });
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
}

TEST(Turns, AnErrorEndsThoseThatWaitForACore) {
  try {
    run_in_turns(3, [](Communicator& world) {
      world.barrier();
      KUAFU_REQUIRE(world.rank() != 1, "one is too much");
      world.barrier();
    });
    FAIL() << "no error";
  } catch (const ConfigError& e) {
    EXPECT_EQ(std::string(e.what()), "rank 1: one is too much");
  }
}

TEST(Turns, ADeadlockIsFoundAtOnce) {
  const auto start = std::chrono::steady_clock::now();
  EXPECT_THROW(
      run_in_turns(2,
                   [](Communicator& world) {
                     double x = 0;
                     world.recv({&x, 1, DType::kF64}, (world.rank() + 1) % world.size(), 3).wait();
                   }),
      RankLost);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
}

}  // namespace
}  // namespace kuafu
