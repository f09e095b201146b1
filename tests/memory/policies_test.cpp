// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>

#include "kuafu/base/errors.h"
#include "kuafu/memory/play.h"
#include "kuafu/memory/room.h"
#include "kuafu/memory/samples.h"

namespace kuafu::memory {
namespace {

using enum Access;

Played play(const std::string& name, const UseTrace& trace, int64_t budget, Knobs knobs = {}) {
  return memory::play(trace, budget, builtin_policies().find(name), knobs);
}

/// One chunk of 10 bytes a moment, read, in this order.
UseTrace reading(const std::vector<int64_t>& order, int64_t chunks) {
  UseTrace trace;
  trace.chunks.assign(static_cast<size_t>(chunks), {10});
  for (const int64_t c : order) trace.moments.push_back({0, 1, {{c, kRead}}});
  return trace;
}

/// Of each moment, the chunks that left and those that came.
std::string drawn(const Played& played) {
  std::string out;
  int64_t moment = -1;
  for (const Move& move : played.moves) {
    if (move.moment != moment) out += text(out.empty() ? "" : "  ", move.moment, ":");
    moment = move.moment;
    const char* kSigns[] = {"+", "*", "^", "-"};
    out += text(" ", kSigns[static_cast<int>(move.kind)], move.chunk);
  }
  return out;
}

TEST(Host, HasNothingBetweenUses) {
  const Played played = play("host", reading({0, 1, 1, 2}, 3), 1000);
  EXPECT_EQ(drawn(played), "0: -2 +0  1: -0 +1  3: -1 +2");
  EXPECT_EQ(played.traffic.loaded, 30);
  EXPECT_EQ(played.live, (std::vector<int64_t>{10, 10, 10, 10}));
}

TEST(Host, WritesBackWhatWasWrittenAndIsReadAgain) {
  UseTrace trace = reading({0, 1, 0, 1}, 2);
  trace.moments[0].uses[0].access = kUpdate;
  trace.moments[1].uses[0].access = kUpdate;
  trace.moments[3].uses[0].access = kOverwrite;
  // Chunk 1 is written back before moment 0, where it was overwritten, not before 2: that is lost.
  EXPECT_EQ(drawn(play("host", trace, 10)), "0: ^1 -1 +0  1: ^0 -0 +1  2: -1 +0  3: -0 *1");
}

TEST(Static, KeepsTheFirstOfItsShare) {
  const UseTrace trace = reading({0, 1, 2, 3}, 4);
  EXPECT_EQ(play("static", trace, 40, {.static_share = 0.5}).traffic.loaded, 20);
  EXPECT_EQ(play("static", trace, 40, {.static_share = 0}).traffic.loaded, 40);
  EXPECT_EQ(play("static", trace, 40).traffic.loaded, 0);
}

TEST(Static, KeepsNoMoreThanFitsEveryMoment) {
  UseTrace trace = reading({0, 1, 2, 3}, 4);
  EXPECT_EQ(play("static", trace, 30).traffic.loaded, 20);
  trace.moments[2].in_use = 15;  // beside chunk 2 no other; 2 itself takes nothing of others there
  EXPECT_EQ(play("static", trace, 30).traffic.loaded, 30);
}

/// Three chunks forwards and backwards, then all change at home.
UseTrace training() {
  UseTrace trace = reading({0, 1, 2, 2, 1, 0}, 3);
  trace.moments.push_back(
      {0, 1, {{0, Access::kAtHome}, {1, Access::kAtHome}, {2, Access::kAtHome}}});
  return trace;
}

TEST(Policies, LetAllGoHomeWhereItChangesThere) {
  EXPECT_EQ(drawn(play("host", training(), 30)),
            "0: +0  1: -0 +1  2: -1 +2  4: -2 +1  5: -1 +0  6: -0");
  EXPECT_EQ(drawn(play("belady", training(), 30)), "0: +0  1: +1  2: +2  6: -0 -1 -2");
  EXPECT_EQ(drawn(play("lru", training(), 30)), "0: +0  1: +1  2: +2  6: -0 -1 -2");
  EXPECT_EQ(drawn(play("static", training(), 30)), "0: +0  1: +1  2: +2  6: -0 -1 -2");
  // In two: what will change at home before it is used again leaves first, which "lru" cannot know.
  EXPECT_EQ(drawn(play("belady", training(), 20)), "0: +0  1: +1  2: -0 +2  5: -1 +0  6: -0 -2");
}

TEST(Policies, LoadNothingAheadOfItsChangeAtHome) {
  const Played played = play("belady", training(), 30, {.prefetch = 3});
  EXPECT_EQ(drawn(played), "0: +0 +1 +2  6: -0 -1 -2");
  EXPECT_EQ(played.prefetches, 2);
}

TEST(Lru, LetsTheLongestUnusedLeave) {
  // A loop over three where two fit: the one that is needed next has always just left.
  EXPECT_EQ(drawn(play("lru", reading({0, 1, 2}, 3), 20)), "0: -1 +0  1: -2 +1  2: -0 +2");
}

TEST(Belady, LetsTheFurthestLeave) {
  const Played played = play("belady", reading({0, 1, 2}, 3), 20);
  // Half of the uses but one in three hit, over two steps; no step by itself does better than 20.
  EXPECT_EQ(played.steps, 2);
  EXPECT_EQ(played.traffic.loaded, 30);
}

TEST(Auto, SeesTheEndOfTheStepAlone) {
  // Before moment 3 one of 0 and 1 must leave. The step uses neither again, the next step 0 first.
  const UseTrace trace = reading({0, 1, 1, 2}, 3);
  const Knobs none{.margin = 0}, around{.margin = 0, .horizon = Horizon::kCycle};
  EXPECT_EQ(drawn(play("auto", trace, 20, none)), "0: -2 +0  3: -0 +2");
  EXPECT_EQ(drawn(play("auto", trace, 20, around)), drawn(play("belady", trace, 20)));
}

TEST(Auto, LeavesAMarginWhereItCan) {
  const UseTrace trace = reading({0, 1, 2}, 3);
  const Knobs cycle{.margin = 0.4, .horizon = Horizon::kCycle};
  const Played played = play("auto", trace, 30, cycle);
  EXPECT_EQ(*std::max_element(played.live.begin(), played.live.end()), 10);
  UseTrace full = trace;
  full.moments[1].in_use = 20;
  EXPECT_EQ(play("auto", full, 30, cycle).live[1], 30);  // what it needs, it has
}

TEST(Prefetch, ComesSoManyMomentsAhead) {
  const UseTrace trace = reading({0, 1, 2, 3}, 4);
  for (const char* name : {"host", "lru", "belady"}) {
    const Played played = play(name, trace, 30, {.prefetch = 1});
    EXPECT_GT(played.prefetches, 0) << name;
    EXPECT_EQ(played.prefetch_hits, played.prefetches) << name;
    EXPECT_EQ(played.prefetches, static_cast<int64_t>(played.traffic.loaded / 10)) << name;
  }
  EXPECT_EQ(drawn(play("host", trace, 30, {.prefetch = 2})),
            "0: -3 +2  1: -0 +3  2: -1 +0  3: -2 +1");
}

TEST(Prefetch, ComesOnlyWhereItFitsUntilItsUse) {
  UseTrace trace = reading({0, 1, 2}, 3);
  trace.moments[1].in_use = 20;  // no room for 2 beside 1
  const Played played = play("host", trace, 30, {.prefetch = 2});
  EXPECT_EQ(played.prefetch_hits, played.prefetches);
  for (const Move& move : played.moves) {
    EXPECT_FALSE(move.chunk == 2 && move.kind == MoveKind::kLoad && move.moment < 2) << move;
  }
}

TEST(Prefetch, HitsAreUsesBeforeTheChunkLeaves) {
  // A policy that loads chunk 1 ahead of moment 1, and lets it go there.
  const auto wasteful = [](const Known& known) -> Choice {
    if (known.moment == 0) return {{}, {1}};
    if (known.moment == 1) return {{1}, {}};
    return {};
  };
  const Played played = memory::play(reading({0, 0}, 2), 20, wasteful);
  EXPECT_EQ(played.prefetches, 1);
  EXPECT_EQ(played.prefetch_hits, 0);
}

TEST(Policies, HoldTheRulesOnRandomTraces) {
  for (uint64_t i = 0; i < 400; ++i) {
    const Sample s = sample(3, i, shape_of(i));
    for (const auto& entry : builtin_policies().entries()) {
      const bool is_left_out = entry.make.searches && i >= 50;  // each takes its time
      if (is_left_out || !entry.make.lacks.empty()) continue;
      for (const int64_t prefetch : {0, 1, 3}) {
        const Played played = play(entry.name, s.trace, s.budget, {.prefetch = prefetch});
        EXPECT_LE(*std::max_element(played.live.begin(), played.live.end()), s.budget);
        EXPECT_LE(played.prefetch_hits, played.prefetches);
        EXPECT_EQ(played, play(entry.name, s.trace, s.budget, {.prefetch = prefetch}));
      }
    }
  }
}

TEST(Policies, MoveNothingWhereEverythingFits) {
  for (uint64_t i = 0; i < 50; ++i) {
    Sample s = sample(4, i, shape_of(i));
    for (const Chunk& chunk : s.trace.chunks) s.budget += chunk.bytes;
    for (const char* name : {"static", "lru", "belady"}) {
      EXPECT_EQ(play(name, s.trace, s.budget, {.prefetch = 2}).moves, std::vector<Move>{}) << name;
    }
  }
}

TEST(Policies, ThatMakeNoRoomAreTold) {
  const auto nothing = [](const Known&) { return Choice{}; };
  try {
    memory::play(reading({0, 1}, 2), 10, nothing);
    FAIL() << "two chunks do not fit";
  } catch (const ConfigError& e) {
    EXPECT_STREQ(e.what(),
                 "move \"1: load 1, host to device\", which makes 20 live bytes, budget 10");
  }
  const auto stranger = [](const Known&) { return Choice{{7}, {}}; };
  EXPECT_THROW(memory::play(reading({0, 1}, 2), 10, stranger), ConfigError);
}

TEST(Policies, WithAStateOfTheirOwnAreTold) {
  int64_t calls = 0;
  const auto fickle = [&calls](const Known& known) {
    Room room(known, known.budget);
    if (++calls % 7 < 3) {
      for (int64_t c = 0; c < 2; ++c) {
        if (room.has(c) && room.distance(c) > 0) room.leave(c);
      }
    }
    return room.choice();
  };
  EXPECT_THROW(memory::play(reading({0, 1}, 2), 20, fickle), ConfigError);
}

TEST(Policies, ArePluggedIn) {
  PolicyRules policies("memory policy");
  register_policies(policies);
  policies.add("mine", "as host", {.choose = host_policy});
  policies.add("planned", "as host, once it has seen the trace",
               {.make = [](const UseTrace& trace, int64_t budget) -> Policy {
                 EXPECT_EQ(trace.num_moments(), 2);
                 EXPECT_EQ(budget, 10);
                 return host_policy;
               }});
  for (const char* name : {"mine", "planned"}) {
    EXPECT_EQ(memory::play(reading({0, 1}, 2), 10, policies.find(name)).traffic.loaded, 20);
  }
  try {
    policies.find("beladi");
    FAIL();
  } catch (const NotFound& e) {
    const std::string what = e.what();
    EXPECT_TRUE(what.starts_with(
        "no memory policy \"beladi\"; nearest: \"belady\"; allowed: \"host\", \"static\", "))
        << what;
    EXPECT_TRUE(what.ends_with(", \"mine\", \"planned\"")) << what;
  }
}

TEST(Policies, ThatCanBeNoneAreRefused) {
  const auto refused = [](const std::string& name, const PolicyRule& rule) -> std::string {
    try {
      check_policy(name, rule);
    } catch (const ConfigError& e) {
      return e.what();
    }
    return "";
  };
  EXPECT_EQ(refused("mine", {.keys = {"margin"}, .choose = host_policy}), "");
  EXPECT_EQ(refused("mine", {}),
            "memory policy \"mine\" has neither of choose and make; allowed: one of them");
  EXPECT_NE(refused("mine", {.choose = host_policy, .make = make_optimal_policy}).find("has both"),
            std::string::npos);
  EXPECT_NE(refused("plain", {.choose = host_policy}).find("nearest: \"my_plain\""),
            std::string::npos);
  EXPECT_EQ(refused("mine", {.keys = {"margins"}, .choose = host_policy}),
            "memory policy \"mine\" reads a key \"margins\"; allowed: \"prefetch\", "
            "\"static_share\", \"margin\", \"horizon\"; nearest: \"margin\"");
}

TEST(Policies, KnobsAreChecked) {
  const UseTrace trace = reading({0}, 1);
  EXPECT_THROW(play("host", trace, 10, {.prefetch = -1}), ConfigError);
  EXPECT_THROW(play("static", trace, 10, {.static_share = 1.5}), ConfigError);
  EXPECT_THROW(play("auto", trace, 10, {.margin = 1}), ConfigError);
}

}  // namespace
}  // namespace kuafu::memory
