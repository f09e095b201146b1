// SPDX-License-Identifier: Apache-2.0
//
// The generator of random plans and the minimiser, without training a plan.

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "app/worker/fuzz.h"
#include "kuafu/base/errors.h"
#include "kuafu/meter/op_kinds.h"
#include "kuafu/simulate/last_step.h"

namespace kuafu::fuzz {
namespace {

std::string value_of(const Overrides& settings, const std::string& key) {
  for (const auto& [name, value] : settings) {
    if (name == key) return value;
  }
  return {};
}

TEST(FuzzPlans, DrawEveryKeyWithAtLeastTwoValues) {
  const Registries registries = builtin_registries();
  std::map<std::string, std::set<std::string>> values;
  for (uint64_t i = 0; i < 1200; ++i) {
    Draw draw(3, i);
    for (const auto& [key, value] : draw_plan(registries, 8, draw)) values[key].insert(value);
  }
  for (const KeyDoc& key : plan_keys()) {
    EXPECT_GE(values[key.key].size(), 2u) << key.key;
  }
  EXPECT_GE(values["parallel.layers"].size(), 2u);
  EXPECT_EQ(values["model.kind"].size(), registries.models.names().size());
}

// Else the plan is refused before anything is proven: a rate of 0 is none.
TEST(FuzzPlans, DrawNumbersThatTheirKeysTake) {
  const Registries registries = builtin_registries();
  Draw draw(5, 1);
  for (const plan::Key& key : plan::keys()) {
    const plan::Limits& limits = key.range;
    for (int i = 0; i < 200 && key.form == plan::Form::kNumber; ++i) {
      const double x = std::stod(draw_value(key, registries, draw));
      EXPECT_TRUE(limits.is_open_below ? x > limits.from : x >= limits.from)
          << key.name << " " << x;
      EXPECT_TRUE(limits.is_open ? x < limits.to : x <= limits.to) << key.name << " " << x;
    }
  }
}

TEST(FuzzPlans, DrawAKeyThatIsNewByItsFormAlone) {
  const Registries registries = builtin_registries();
  plan::Key key = *plan::find_key("model.layers");
  key.name = "model.new";
  key.range = {3, 5};
  std::set<std::string> values;
  Draw draw(1, 1);
  for (int i = 0; i < 60; ++i) values.insert(draw_value(key, registries, draw));
  EXPECT_EQ(values, (std::set<std::string>{"3", "4", "5"}));
  key.form = plan::Form::kNumber;
  key.range = {0.5, 1, true};
  for (int i = 0; i < 60; ++i) {
    const double x = std::stod(draw_value(key, registries, draw));
    EXPECT_GE(x, 0.5);
    EXPECT_LT(x, 1);
  }
}

TEST(FuzzPlans, AreTheSameForASeedAndANumber) {
  const Registries registries = builtin_registries();
  const auto drawn = [&](uint64_t seed, uint64_t index) {
    Draw draw(seed, index);
    return draw_plan(registries, 8, draw);
  };
  EXPECT_EQ(drawn(5, 7), drawn(5, 7));
  EXPECT_NE(drawn(5, 7), drawn(5, 8));
  EXPECT_NE(drawn(5, 7), drawn(6, 7));
}

TEST(FuzzPlans, AreMostlyPlacedAndOfFewRanks) {
  const Registries registries = builtin_registries();
  int64_t num_placed = 0;
  for (uint64_t i = 0; i < 100; ++i) {
    Draw draw(2, i);
    try {
      EXPECT_LE(num_ranks(placed(draw_plan(registries, 4, draw), registries)), 4);
      ++num_placed;
    } catch (const ConfigError&) {
    }
  }
  EXPECT_GE(num_placed, 70);
  EXPECT_LT(num_placed, 100);
}

// The watch on the dispatcher, over all keys: no step makes an op that nothing books. A rank on
// threads makes the ops of the same rank simulated (tests/simulate/trace_test.cpp).
TEST(FuzzPlans, MakeNoOpThatNothingBooks) {
  const Registries registries = builtin_registries();
  std::set<std::string> unbooked;
  int64_t num_traced = 0, num_ops = 0;
  for (uint64_t i = 0; i < 40; ++i) {
    Draw draw(4, i);
    try {
      const Plan plan = placed(draw_plan(registries, 4, draw), registries);
      for (const Trace& trace : trace_last_step(plan, registries)) {
        for (const std::string& op : unbooked_ops(trace)) unbooked.insert(op);
        for (const TraceRecord& r : trace.records) num_ops += r.kind == TraceKind::kOp ? 1 : 0;
      }
      ++num_traced;
    } catch (const ConfigError&) {  // refused, as staleness is
    } catch (const OutOfMemory&) {
    }
  }
  EXPECT_EQ(unbooked, std::set<std::string>{});
  EXPECT_GE(num_traced, 25);
  EXPECT_GE(num_ops, 3000);
}

// It fails from 3 layers on with two ranks, whatever else is set.
TEST(FuzzMinimise, KeepsWhatTheFailureNeeds) {
  const Overrides least =
      minimise({{"model.layers", "24"}, {"model.vocab", "64"}, {"parallel.data", "2"}},
               PlanEnding::kCrash, 100, [](const Overrides& settings) {
                 const std::string layers = value_of(settings, "model.layers");
                 const bool fails = !layers.empty() && std::stoll(layers) >= 3 &&
                                    value_of(settings, "parallel.data") == "2";
                 return fails ? PlanEnding::kCrash : PlanEnding::kEqual;
               });
  EXPECT_EQ(least, (Overrides{{"model.layers", "3"}, {"parallel.data", "2"}}));
}

TEST(FuzzCommand, ShowsAFindingInItsWorld) {
  const Overrides settings = {{"a.b", "3"}, {"parallel.layers", "[{ from = 0 }]"}};
  const std::string sets = " --set a.b=3 --set 'parallel.layers=[{ from = 0 }]'";
  EXPECT_EQ(command_of(settings, RealWorld::kThreads, PlanEnding::kDifferent, 2),
            "kuafu run /dev/null --certify" + sets);
  EXPECT_EQ(command_of(settings, RealWorld::kMpi, PlanEnding::kCrash, 2),
            "kuafu run /dev/null --certify --world mpi --ranks 2" + sets);
  EXPECT_EQ(command_of(settings, RealWorld::kMpiNative, PlanEnding::kError, 3),
            "kuafu run /dev/null --certify --world mpi --ranks 3 --mpi-collectives native" + sets);
  EXPECT_EQ(command_of(settings, RealWorld::kMpi, PlanEnding::kMetered, 2),
            "kuafu fuzz --world mpi" + sets);
}

TEST(FuzzWorlds, AreDrawnByTheSeedBesideThePlans) {
  const std::vector<RealWorld> all = {RealWorld::kThreads, RealWorld::kMpi, RealWorld::kMpiNative};
  std::map<RealWorld, int> met;
  for (uint64_t i = 0; i < 300; ++i) {
    EXPECT_EQ(draw_world(all, 7, i), draw_world(all, 7, i));
    EXPECT_EQ(draw_world({RealWorld::kMpi}, 7, i), RealWorld::kMpi);
    ++met[draw_world(all, 7, i)];
  }
  for (const RealWorld world : all) EXPECT_GE(met[world], 60) << to_string(world);
}

TEST(FuzzEndings, OfCertificatesThatWereNotRunAreFindingsUnlessTheirReasonIsListed) {
  const auto ends = [](const char* reason) {
    const PlanOutcome out = outcome_of_not_run(reason);
    EXPECT_EQ(out.why, reason);
    EXPECT_NE(out.cause.empty(), out.ending == PlanEnding::kDiverged);
    return out.ending;
  };
  EXPECT_EQ(ends("step 3: loss nan: the run has diverged"), PlanEnding::kDiverged);
  EXPECT_EQ(ends("every step that was compared was skipped, since a gradient overflowed"),
            PlanEnding::kDiverged);
  EXPECT_EQ(ends("it would be compared with itself"), PlanEnding::kNoOracle);
  EXPECT_EQ(ends("the oracle has no such model"), PlanEnding::kUnexplained);
  EXPECT_EQ(ends(""), PlanEnding::kUnexplained);
  EXPECT_FALSE(is_finding(PlanEnding::kDiverged));
  EXPECT_FALSE(is_finding(PlanEnding::kNoOracle));
  EXPECT_TRUE(is_finding(PlanEnding::kUnexplained));
  for (int i = 0; i < kNumEndings; ++i) {
    EXPECT_EQ(ending_of(to_string(static_cast<PlanEnding>(i))), static_cast<PlanEnding>(i));
  }
  EXPECT_THROW(ending_of("well"), ConfigError);
}

TEST(FuzzMinimise, EndsAfterItsTrials) {
  int64_t trials = 0;
  minimise({{"model.layers", "65536"}}, PlanEnding::kHang, 5, [&](const Overrides& settings) {
    ++trials;
    return settings.empty() ? PlanEnding::kEqual : PlanEnding::kHang;
  });
  EXPECT_EQ(trials, 5);
}

}  // namespace
}  // namespace kuafu::fuzz
