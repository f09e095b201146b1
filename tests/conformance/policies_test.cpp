// SPDX-License-Identifier: Apache-2.0
//
// The conformance kit on memory policies: those of this build hold, and each way to break what a
// policy promises is found by the check that stands for it.

#include "kuafu/conformance/policies.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <stdexcept>

#include "kuafu/memory/room.h"

namespace kuafu {
namespace {

using conformance::check_policy;
using conformance::Finding;
using memory::Known;
using memory::Policy;

/// Of a policy, by the furthest next use, what is done to its choice.
memory::PolicyRule spoilt(void (*spoil)(const Known&, memory::Choice&)) {
  return {.keys = {"prefetch"}, .choose = [spoil](const Known& known) {
            memory::Choice choice = memory::belady_policy(known);
            spoil(known, choice);
            return choice;
          }};
}

/// What is found of a policy: "check: detail" of each that does not hold.
std::string found(const memory::PolicyRule& rule, const std::vector<int64_t>& sizes = {}) {
  Registries registries = builtin_registries();
  registries.policies.add("mine", "of a test", rule);
  std::string all;
  for (const Finding& f : check_policy(registries, "mine", sizes)) {
    if (!f.is_ok) all += f.check + ": " + f.detail + "\n";
  }
  return all;
}

void expect_found(const memory::PolicyRule& rule, const std::string& check,
                  const std::string& words) {
  const std::string all = found(rule);
  EXPECT_EQ(all.find(check + ": "), 0u) << all;
  EXPECT_NE(all.find(words), std::string::npos) << all;
}

// Of the others too in `full`.
TEST(ConformanceOfPolicies, HoldsForOneThatSearchesAndOneThatDoesNot) {
  const Registries registries = builtin_registries();
  for (const char* name : {"static", "optimal"}) {
    const std::vector<Finding> findings = check_policy(registries, name, {1});
    EXPECT_EQ(findings.size(), 4u);
    for (const Finding& f : findings) {
      EXPECT_TRUE(f.is_ok) << f.check << " of " << name << " on " << f.where << ": " << f.detail;
    }
  }
}

/// Nothing leaves but what changes at home now.
void keep_all(const Known& known, memory::Choice& choice) {
  std::erase_if(choice.evict, [&](int64_t c) {
    const memory::ChunkUse* use = memory::use_of(known.moment_ahead(0), c);
    return use == nullptr || memory::needs_device(use->access);
  });
}

TEST(ConformanceOfPolicies, FindsLoadsOfWhatIsThere) {
  const auto again = [](const Known& known, memory::Choice& choice) {
    for (int64_t c = 0; c < known.trace.num_chunks(); ++c) {
      const bool stays = known.on_device.has(c) && choice.evict.empty() && choice.prefetch.empty();
      if (stays && known.distance(c) == 1) choice.prefetch.push_back(c);
    }
  };
  expect_found(spoilt(again), "moves", "which is on the device already");
}

TEST(ConformanceOfPolicies, FindsThoseThatMakeNoRoom) {
  expect_found(spoilt(keep_all), "moves", "live bytes, budget");
}

TEST(ConformanceOfPolicies, FindsDropsOfWhatIsNotThere) {
  const auto twice = [](const Known&, memory::Choice& choice) {
    if (!choice.evict.empty()) choice.evict.push_back(choice.evict.front());
  };
  expect_found(spoilt(twice), "moves", "which is not on the device");
}

// Room is made for the moment alone: what is loaded ahead passes the budget.
TEST(ConformanceOfPolicies, FindsThoseThatPassTheBudget) {
  const auto greedy = [](const Known& known, memory::Choice& choice) {
    choice.prefetch.clear();
    for (int64_t c = 0; c < known.trace.num_chunks(); ++c) {
      const bool is_used = memory::use_of(known.moment_ahead(0), c) != nullptr;
      const bool leaves = std::count(choice.evict.begin(), choice.evict.end(), c) > 0;
      if (!known.on_device.has(c) && !is_used && !leaves && known.distance(c) == 1) {
        choice.prefetch.push_back(c);
      }
    }
  };
  expect_found(spoilt(greedy), "moves", "live bytes, budget");
}

TEST(ConformanceOfPolicies, FindsThoseThatLoadWhatTheHostHasYetToChange) {
  const auto early = [](const Known& known, memory::Choice& choice) {
    choice = memory::host_policy(known);
    const memory::Moment& moment = known.moment_ahead(0);
    for (const memory::ChunkUse& use : moment.uses) {
      if (!memory::needs_device(use.access)) choice.prefetch.push_back(use.chunk);
    }
  };
  expect_found(spoilt(early), "moves", "");
}

TEST(ConformanceOfPolicies, FindsAStateOfItsOwn) {
  // As "belady", but every eleventh time it is asked as "lru": the moves are legal.
  int64_t calls = 0;
  const auto moody = [&calls](const Known& known) {
    return ++calls % 11 == 0 ? memory::lru_policy(known) : memory::belady_policy(known);
  };
  const std::string all = found({.choose = moody});
  EXPECT_NE(all.find("a state of its own"), std::string::npos) << all;
  // The same where the state is of the one that was made: it remembers which moment it saw last.
  const auto made = [](const memory::UseTrace&, int64_t) -> Policy {
    return [last = std::make_shared<int64_t>(-1)](const Known& known) {
      const bool follows = known.moment == 0 || known.moment == *last + 1;
      *last = known.moment;
      return follows ? memory::belady_policy(known) : memory::host_policy(known);
    };
  };
  EXPECT_EQ(found({.make = made}).find("pure: "), 0u);
}

TEST(ConformanceOfPolicies, FindsThoseThatThrow) {
  const auto throwing = [](const Known& known, memory::Choice&) {
    if (known.moment == 3) throw std::runtime_error("no luck today");
  };
  expect_found(spoilt(throwing), "moves", "no luck today");
  expect_found({.make = [](const memory::UseTrace&, int64_t) -> Policy {
                 throw std::runtime_error("no plan today");
               }},
               "moves", "no plan today");
}

// What holds on random traces and breaks in a training is found there.
TEST(ConformanceOfPolicies, FindsWhatBreaksInATrainingAlone) {
  const auto few = [](const Known& known, memory::Choice& choice) {
    if (!known.trace.chunks[0].group.empty()) keep_all(known, choice);  // chunks of a model
  };
  const std::string all = found(spoilt(few), {1});
  EXPECT_EQ(all.find("training: "), 0u) << all;
  EXPECT_NE(all.find("memory.policy = \"mine\": mo"), std::string::npos) << all;
  EXPECT_NE(all.find("live bytes, budget"), std::string::npos) << all;
}

TEST(ConformanceOfPolicies, TellsWhatThisBuildCannotRun) {
  Registries registries = builtin_registries();
  registries.policies.add("afar", "of a test",
                          {.choose = memory::host_policy, .lacks = "CBC (not found)"});
  for (const Finding& f : check_policy(registries, "afar", {1})) {
    EXPECT_TRUE(f.is_ok);
    EXPECT_EQ(f.refusal, "this build has no CBC (not found)") << f.check;
  }
}

}  // namespace
}  // namespace kuafu
