// SPDX-License-Identifier: Apache-2.0
//
// Model FLOPs against the closed form of GPT, and against what LibTorch's dispatcher saw.

#include <gtest/gtest.h>

#include "kuafu/comm/worlds.h"
#include "kuafu/meter/flops.h"
#include "tests/support/plans.h"

namespace kuafu {
namespace {

using tests::plan_of;
using tests::small_plan;

/// FLOPs of a step over all ranks, T = B S tokens:
///   a layer's forward   qkv 6 T H^2 + out 2 T H^2 + mlp 16 T H^2 = 24 T H^2, causal attention 2 T
///   S H the head's forward  2 T H V, with V padded to what the ranks divide backward twice the
///   forward
/// = 72 B S L H^2 (1 + S / (12 H) + V / (12 L H)).
int64_t layer_forward(const Plan& p) {
  const int64_t t = p.train.batch * p.model.sequence, h = p.model.hidden;
  return 24 * t * h * h + 2 * t * p.model.sequence * h;
}
int64_t closed_form(const Plan& p, int64_t padded_vocab) {
  const int64_t t = p.train.batch * p.model.sequence;
  return 3 * (p.model.layers * layer_forward(p) + 2 * t * p.model.hidden * padded_vocab);
}

struct Sums {
  int64_t flops = 0, recomputed = 0;
};
Sums measure(const Plan& plan) {
  Sums sums;
  for (const RankResult& r : tests::run_plan(plan)) {
    sums.flops += r.flops;
    sums.recomputed += r.flops_recomputed;
  }
  return sums;
}

TEST(Flops, EqualTheClosedFormWhateverThePlan) {
  for (const tests::Family& f : tests::families()) {
    const Plan plan = plan_of(f, {{"model.vocab", "40"}, {"train.batch", "24"}});
    EXPECT_EQ(measure(plan).flops, closed_form(plan, 40)) << f;
    EXPECT_EQ(measure(plan).recomputed, 0) << f;
  }
}

TEST(Flops, DoNotDependOnTheNumberOfStepsOrMicroBatches) {
  const Plan plan =
      small_plan({{"train.batch", "8"}, {"train.micro_batch", "2"}, {"train.steps", "5"}});
  EXPECT_EQ(measure(plan).flops, closed_form(plan, 37));
}

TEST(Flops, OfPaddingCountWhereRanksPad) {
  const Plan plan = plan_of(tests::family("t1d_4"));  // 37 -> 40
  EXPECT_EQ(measure(plan).flops, closed_form(plan, 40));
}

// The head is never recomputed: its graph is used at once.
TEST(Flops, RecomputedOnesAreTheForwardOfWhatIsMadeAgain) {
  const Plan full = plan_of(tests::family("t2d_4"), {{"memory.recompute", "full"}});
  EXPECT_EQ(measure(full).recomputed, full.model.layers * layer_forward(full));
  EXPECT_EQ(measure(full).flops, closed_form(full, 38));
  const Plan selective = plan_of(tests::family("t1d_2"), {{"memory.recompute", "selective"}});
  const int64_t tokens = selective.train.batch * selective.model.sequence;
  EXPECT_EQ(measure(selective).recomputed, selective.model.layers * 2 * tokens *
                                               selective.model.sequence * selective.model.hidden);
}

// Independently of the formulas: the matrix products that LibTorch was asked for.
TEST(Flops, EqualWhatTheDispatcherSaw) {
  const Registries registries = builtin_registries();
  for (const char* policy : {"none", "selective", "full"}) {
    const Plan plan = small_plan({{"memory.recompute", policy}});
    const auto data = tests::data_of(plan);
    const auto world = make_self();
    RankBook book(0);
    const BookScope booked(&book);
    Engine engine(plan, registries, *world, *data, {});
    engine.step();
    book.restart();
    const FlopWatcher watcher;
    engine.step();
    EXPECT_EQ(watcher.total(), book.flops() + book.flops_recomputed()) << policy;
    EXPECT_EQ(book.flops(), closed_form(plan, 37)) << policy;
  }
}

}  // namespace
}  // namespace kuafu
