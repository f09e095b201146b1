// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>

#include "kuafu/comm/simulated.h"
#include "kuafu/comm/worlds.h"
#include "tests/support/plans.h"
#include "tests/support/ranks.h"
#include "tests/support/tensors.h"

namespace kuafu {
namespace {

using tests::Family;
using tests::plan_of;
using tests::run_plan;
using tests::small_plan;
using tests::train;
using tests::Trained;

class Training : public testing::TestWithParam<Family> {};

TEST_P(Training, TwoRunsAreBitIdentical) {
  for (const char* dtype : {"f32", "bf16"}) {
    const Plan plan = plan_of(GetParam(), {{"model.dtype", dtype}, {"model.dropout", "0.1"}});
    EXPECT_TRUE(tests::is_same(train(plan), train(plan))) << dtype;
  }
}

TEST_P(Training, RecomputationIsBitIdentical) {
  const Overrides common = {{"model.dtype", "f32"}, {"model.dropout", "0.1"}};
  const Trained kept = train(plan_of(GetParam(), common));
  for (const char* policy : {"selective", "full"}) {
    Overrides again = common;
    again.emplace_back("memory.recompute", policy);
    EXPECT_TRUE(tests::is_same(train(plan_of(GetParam(), again)), kept)) << policy;
  }
}

TEST_P(Training, LossFalls) {
  const Plan plan = plan_of(GetParam(), {{"model.dtype", "f32"}, {"train.steps", "30"}});
  const auto losses = run_plan(plan)[0].losses;
  ASSERT_EQ(losses.size(), 30u);
  // Untrained: ln(37) = 3.61. The chain's entropy is 0.91.
  EXPECT_NEAR(losses.front(), 3.61, 0.1);
  EXPECT_LT(losses.back(), losses.front() - 0.5);
}

TEST_P(Training, ValidationLossEqualsOneRank) {
  const Overrides more = {{"train.validation_batches", "3"}, {"train.batch", "24"}};
  const double one = run_plan(small_plan(more))[0].validation_loss;
  const auto all = run_plan(plan_of(GetParam(), more));
  // After three steps in f64: what certificates allow, see certificate.cpp.
  for (const RankResult& r : all) EXPECT_NEAR(r.validation_loss / one, 1, 1e-9);
}

TEST_P(Training, EveryRankSeesTheSameLosses) {
  const auto all = run_plan(plan_of(GetParam(), {{"model.dtype", "f32"}}));
  for (const RankResult& r : all) EXPECT_EQ(r.losses, all[0].losses);
}

TEST_P(Training, MetersOnOrOffGiveTheSameBits) {
  const Plan plan = plan_of(GetParam(), {{"model.dtype", "f32"}});
  RunOptions off;
  off.is_metered = false;
  const auto metered = run_plan(plan), unmetered = run_plan(plan, off);
  for (size_t r = 0; r < metered.size(); ++r) {
    EXPECT_EQ(metered[r].losses, unmetered[r].losses);
    EXPECT_EQ(metered[r].validation_loss, unmetered[r].validation_loss);
    EXPECT_EQ(unmetered[r].flops, 0);
    EXPECT_TRUE(unmetered[r].traffic.empty());
  }
}

/// A call or a wait.
struct Event {
  TraceKind kind;
  std::string verb;
  int64_t group, call, bytes;
  int32_t to, from, tag;
  bool operator==(const Event&) const = default;
};

/// What rank 0 calls and waits for in two steps, in order.
std::vector<Event> schedule_of(const Plan& plan, bool is_metered) {
  const Registries registries = builtin_registries();
  SimulatedWorld world(static_cast<int>(num_ranks(plan)));
  RankBook book(0);
  book.is_counting = is_metered;
  const BookScope booked(&book);
  Ledger ledger;
  const auto me = world.communicator(0);
  const auto data = tests::data_of(plan);
  Engine engine(plan, registries, *me, *data,
                {.device = at::kMeta, .ledger = is_metered ? &ledger : nullptr});
  TraceRecorder recorder(TraceRecorder::Clock::kNone, TraceRecorder::Keeps::kWork);
  const TraceScope traced(&recorder);
  for (int step = 0; step < 2; ++step) engine.step();
  const Trace trace = recorder.take();
  std::vector<Event> events;
  for (const TraceRecord& r : trace.records) {
    if (r.kind == TraceKind::kOp) continue;
    const TraceCall& call = trace.calls[static_cast<size_t>(r.payload[0])];
    const TraceGroup& group = trace.groups[static_cast<size_t>(call.group)];
    events.push_back({r.kind, trace.names[static_cast<size_t>(r.name)], group.number, r.payload[2],
                      r.payload[1], call.to, call.from, call.tag});
  }
  return events;
}

bool is_issue(const Event& e) { return e.kind == TraceKind::kCall; }

TEST_P(Training, MetersOnOrOffLeaveEveryCallAndWaitInItsPlace) {
  const Plan plan = plan_of(GetParam(), {{"parallel.data.bucket", "1000"}});
  const auto metered = schedule_of(plan, true);
  EXPECT_EQ(metered, schedule_of(plan, false));
  if (plan.parallel.data.size == 1) return;
  // Overlap: a bucket is under way while the next one is being filled.
  const auto two =
      std::adjacent_find(metered.begin(), metered.end(),
                         [](const Event& a, const Event& b) { return is_issue(a) && is_issue(b); });
  EXPECT_NE(two, metered.end());
}

INSTANTIATE_TEST_SUITE_P(All, Training, testing::ValuesIn(tests::families()),
                         [](const auto& info) { return info.param.name; });

// From a bucket a tensor to one bucket for five models, overlapped with backward or not.
TEST(Buckets, OfEverySizeGiveTheSameBits) {
  for (const char* name : {"data_2", "data_3", "data_2_t1d_sp_2"}) {
    const auto run = [&](const char* bytes, const char* overlap) {
      return train(plan_of(tests::family(name), {{"model.dtype", "f32"},
                                                 {"parallel.data.bucket", bytes},
                                                 {"parallel.data.overlap", overlap}}));
    };
    const Trained expected = run("1", "false");
    for (const char* bytes : {"1", "1000", "20000", "1048576"}) {
      for (const char* overlap : {"true", "false"}) {
        EXPECT_TRUE(tests::is_same(run(bytes, overlap), expected))
            << name << ", bucket " << bytes << ", overlap " << overlap;
      }
    }
  }
}

// The step of a resumed or accumulated run decides samples, not the way there.
TEST(Training, AccumulationChangesTheLossByRoundingOnly) {
  const double whole = train(small_plan({{"train.batch", "20"}})).losses.back();
  const double parts =
      train(small_plan({{"train.batch", "20"}, {"train.micro_batch", "4"}})).losses.back();
  EXPECT_NEAR(parts / whole, 1, 1e-9);
}

TEST(Training, DropoutIsOffInValidation) {
  const auto validation = [](const char* p) {
    const Plan plan = small_plan({{"model.dropout", p}});
    const auto data = tests::data_of(plan);
    const Registries registries = builtin_registries();
    const auto world = make_self();
    return Engine(plan, registries, *world, *data, {}).validate();
  };
  EXPECT_EQ(validation("0.5"), validation("0"));
}

TEST(Training, DropoutChangesTheTrainingLoss) {
  EXPECT_NE(train(small_plan({{"model.dropout", "0.5"}})).losses, train(small_plan()).losses);
}

TEST(Training, DivergenceNamesTheStep) {
  const Plan plan = plan_of(tests::family("data_2"), {{"model.dtype", "f32"},
                                                      {"optimizer.kind", "sgd"},
                                                      {"optimizer.lr", "1e6"},
                                                      {"optimizer.clip", "0"},
                                                      {"optimizer.weight_decay", "1e6"},
                                                      {"train.steps", "10"}});
  try {
    run_plan(plan);
    FAIL() << "training with a learning rate of 1e6 did not diverge";
  } catch (const ConfigError& e) {
    EXPECT_NE(std::string(e.what()).find("at step "), std::string::npos) << e.what();
    EXPECT_NE(std::string(e.what()).find("optimizer.lr"), std::string::npos) << e.what();
  }
}

TEST(Budget, OverrunCarriesBytesAndLeavesTheNextRunClean) {
  const Plan plan = plan_of(tests::family("data_2"));
  const int64_t peak = run_plan(plan)[0].peak_bytes;
  Plan small = plan;
  small.memory.device = peak - 1;
  try {
    run_plan(small);
    FAIL() << "a budget one byte below the peak was enough";
  } catch (const OutOfMemory& e) {
    EXPECT_EQ(e.budget, peak - 1);
    EXPECT_GT(e.requested, 0);
    EXPECT_LE(e.live, e.budget);
    EXPECT_GT(e.live + e.requested, e.budget);
  }
  small.memory.device = peak;  // exactly enough
  const auto after = run_plan(small);
  EXPECT_EQ(after[0].peak_bytes, peak);
}

TEST(Budget, CategoriesAddUpToThePeak) {
  for (const Family& f : tests::families()) {
    for (const RankResult& r : run_plan(plan_of(f))) {
      EXPECT_EQ(std::accumulate(r.at_peak.begin(), r.at_peak.end(), int64_t{0}), r.peak_bytes) << f;
      EXPECT_GT(r.at_peak[static_cast<size_t>(Category::kParameter)], 0) << f;
    }
  }
}

TEST(Memory, FullRecomputationHoldsFewerActivations) {
  const auto activations = [](const char* policy) {
    const Plan plan = small_plan({{"memory.recompute", policy}, {"model.layers", "6"}});
    return run_plan(plan)[0].peak_by_category[static_cast<size_t>(Category::kActivation)];
  };
  EXPECT_LT(activations("selective"), activations("none"));
  EXPECT_LT(activations("full"), activations("selective"));
}

/// Six rows a rank: what a library that takes all cores for a product sums in another order.
TEST(TrainingOfAThread, HasTheBitsThatLaterEnginesMakeInItsFirstStep) {
  const Plan plan = small_plan({{"model.dtype", "f32"},
                                {"model.hidden", "64"},
                                {"model.vocab", "256"},
                                {"model.sequence", "1"},
                                {"parallel.data", "2"},
                                {"train.batch", "12"}});
  const auto data = tests::data_of(plan);
  run_on_threads(2, [&](Communicator& world) {
    double first = 0;
    for (int i = 0; i < 2; ++i) {
      Engine engine(plan, builtin_registries(), world, *data, {});
      const double norm = engine.step().grad_norm;
      if (i == 0) first = norm;
      EXPECT_EQ(norm, first) << "rank " << world.rank();
    }
  });
}

TEST(StepTimes, DropWarmUpAndEncloseTheMedian) {
  const StepTime t = summarise({9.0, 5.0, 1.0, 1.01, 0.99, 1.0, 1.02, 0.98, 1.0, 1.0});
  EXPECT_EQ(t.warmup, 2);
  EXPECT_DOUBLE_EQ(t.median, 1.0);
  ASSERT_TRUE(t.ci95);
  EXPECT_LT((*t.ci95)[0], t.median);
  EXPECT_GT((*t.ci95)[1], t.median);
  EXPECT_EQ(summarise({}).median, 0);
  EXPECT_EQ(summarise({2.0}).median, 2.0);
}

// Of five samples not even least and most enclose the median in 95 % of cases.
TEST(StepTimes, HaveNoIntervalOfFewerThanSixSamples) {
  std::vector<double> seconds;
  for (int i = 0; i < 12; ++i) {
    EXPECT_EQ(summarise(seconds).ci95.has_value(), i >= 6) << i;
    seconds.push_back(1 + 0.001 * i);
  }
  EXPECT_FALSE(summarise({9.0, 1.0, 1.01, 0.99, 1.0, 1.02}).ci95) << "five after the warm-up";
}

}  // namespace
}  // namespace kuafu
