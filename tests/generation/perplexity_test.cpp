// SPDX-License-Identifier: Apache-2.0
//
// Perplexity: which tokens are foretold from where, and how well under every plan.

#include "kuafu/generation/perplexity.h"

#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include <cmath>
#include <map>

#include "kuafu/dataset/no_data.h"
#include "tests/generation/support.h"
#include "tests/support/ranks.h"

namespace kuafu {
namespace {

using tests::Family;

TEST(Windows, ForetellEachTokenOnceWithAllThatTheirWindowHasBeforeIt) {
  for (int64_t sequence = 2; sequence <= 7; ++sequence) {
    for (int64_t stride = 1; stride <= sequence; ++stride) {
      for (int64_t count = 2; count <= 30; ++count) {
        std::vector<int64_t> text;
        for (int64_t i = 0; i < count; ++i) text.push_back(100 + i);
        const std::vector<int64_t> starts = window_starts(count, sequence, stride);
        std::map<int64_t, int64_t> foretold;  // token: tokens before it in its window
        const Tokens all = window_batch(text, starts, 0, std::ssize(starts) + 2, sequence);
        for (size_t i = 0; i < all.targets.size(); ++i) {
          if (all.targets[i] == -1) continue;
          EXPECT_EQ(all.targets[i], all.inputs[i] + 1);
          const auto place = static_cast<int64_t>(i) % sequence;
          EXPECT_TRUE(foretold.emplace(all.targets[i] - 100, place + 1).second);
        }
        for (int64_t t = 0; t < count; ++t) {
          const bool is_first = t == 0 || (stride == sequence && t % sequence == 0);
          EXPECT_EQ(foretold.contains(t), !is_first) << sequence << " " << stride << " " << t;
          if (is_first) continue;
          // The first window that ends behind it.
          int64_t w = 0;
          while (w * stride + sequence <= t) ++w;
          EXPECT_EQ(foretold.at(t), t - w * stride);
        }
      }
    }
  }
}

TEST(Windows, OfABatchAreThoseOfAllFromItsFirstOn) {
  std::vector<int64_t> text;
  for (int64_t i = 0; i < 23; ++i) text.push_back(i * i % 19);
  const std::vector<int64_t> starts = window_starts(23, 6, 4);
  ASSERT_EQ(starts, (std::vector<int64_t>{0, 4, 8, 12, 16, 20}));
  const Tokens all = window_batch(text, starts, 0, 6, 6),
               last = window_batch(text, starts, 4, 4, 6);
  EXPECT_EQ(std::vector(all.targets.begin() + 24, all.targets.end()),
            std::vector(last.targets.begin(), last.targets.begin() + 12));
  EXPECT_EQ(std::vector(all.inputs.begin() + 24, all.inputs.end()),
            std::vector(last.inputs.begin(), last.inputs.begin() + 12));
  EXPECT_EQ(std::ranges::count(last.targets, -1), 24 - 4 - 1);
}

class PerplexityUnder : public testing::TestWithParam<Family> {};

// Each -log p is off by twice what a logit may be.
TEST_P(PerplexityUnder, IsTheOracles) {
  const Plan plan = tests::generating_plan(GetParam());
  const int64_t stride = plan.model.sequence / 2;
  std::vector<int64_t> text;
  for (int64_t i = 0; i < 3 * plan.train.batch * stride + 2; ++i) {
    text.push_back((5 * i * i + 3 * i + 1) % plan.model.vocab);
  }
  const std::vector<int64_t> starts = window_starts(std::ssize(text), plan.model.sequence, stride);
  ASSERT_GT(std::ssize(starts), plan.train.batch);
  double nats = 0, tolerance = 0;
  int64_t tokens = 0;
  for (size_t w = 0; w < starts.size(); ++w) {
    const Tokens window = window_batch(text, starts, w, 1, plan.model.sequence);
    const Tensor logits = tests::oracle_logits(plan, window.inputs)[0];
    const Tensor log_p = logits.log_softmax(-1);
    for (size_t i = 0; i < window.targets.size(); ++i) {
      if (window.targets[i] == -1) continue;
      nats -= log_p[static_cast<int64_t>(i)][window.targets[i]].item<double>();
      tolerance += 2 * tests::logit_tolerance(logits);
      ++tokens;
    }
  }
  Perplexity found;
  const Registries registries = builtin_registries();
  tests::run_ranks(static_cast<int>(num_ranks(plan)), [&](Communicator& world) {
    const NoData none(plan.model);
    Engine engine(plan, registries, world, none, {});
    tests::enliven(engine, world);
    const Perplexity mine = perplexity_of(engine, world, text, stride);
    EXPECT_EQ(mine.windows, std::ssize(starts));
    EXPECT_EQ(mine.tokens, std::ssize(text) - 1);
    if (world.rank() == 0) found = mine;
  });
  EXPECT_EQ(tokens, std::ssize(text) - 1);
  EXPECT_GT(nats / static_cast<double>(tokens), 2);
  EXPECT_NEAR(found.nats, nats, tolerance);
  EXPECT_NEAR(found.value(), std::exp(nats / static_cast<double>(tokens)), 1e-6);
}

TEST(Perplexity, LeavesTheRestWhereItIsToldTo) {
  const Plan plan = tests::generating_plan({"", {{"parallel.data", "2"}, {"train.batch", "2"}}});
  const Registries registries = builtin_registries();
  const std::vector<int64_t> text(static_cast<size_t>(10 * plan.model.sequence), 3);
  tests::run_ranks(2, [&](Communicator& world) {
    const NoData none(plan.model);
    Engine engine(plan, registries, world, none, {});
    const auto after_two = [&](const Perplexity& so_far, int64_t windows) -> int64_t {
      EXPECT_EQ(windows, 10);
      return so_far.windows == 4 ? 7 : 0;
    };
    const Perplexity found = perplexity_of(engine, world, text, plan.model.sequence, after_two);
    EXPECT_EQ(found.stopped, 7);
    EXPECT_EQ(found.windows, 4);
  });
}

INSTANTIATE_TEST_SUITE_P(All, PerplexityUnder, testing::ValuesIn(tests::generating_plans()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace kuafu
