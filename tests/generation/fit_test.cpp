// SPDX-License-Identifier: Apache-2.0
//
// What a batch needs by forwards on meta tensors is what generating really needs.

#include <gtest/gtest.h>

#include "kuafu/base/errors.h"
#include "kuafu/dataset/no_data.h"
#include "kuafu/generation/fit.h"
#include "kuafu/meter/book.h"
#include "kuafu/states/tiers.h"
#include "tests/generation/support.h"
#include "tests/support/ranks.h"

namespace kuafu {
namespace {

constexpr int64_t kTokens = 6;

class Fitted {
 public:
  Fitted(const tests::Family& family, Cache cache)
      : plan_(tests::generating_plan(family)),
        prompts_(tests::uneven_prompts(plan_)),
        size_{.tokens = kTokens, .cache = cache} {
    for (const auto& prompt : prompts_) size_.longest = std::max(size_.longest, std::ssize(prompt));
  }

  bool fits(int64_t bytes) {
    plan_.memory.device = bytes;
    try {
      require_fits(plan_, registries_, size_);
      return true;
    } catch (const OutOfMemory&) {
      return false;
    }
  }

  /// The least bytes that a rank must have, to 64 of them.
  int64_t need() {
    int64_t fails = 1, holds = int64_t{1} << 30;
    while (holds - fails > 64) {
      const int64_t middle = fails + (holds - fails) / 2;
      (fits(middle) ? holds : fails) = middle;
    }
    return holds;
  }

  /// Generates for real on ranks that have so many.
  void generate_within(int64_t bytes) {
    plan_.memory.device = bytes;
    tests::run_ranks(static_cast<int>(num_ranks(plan_)), [&](Communicator& world) {
      RankBook book = device_book(plan_, world.rank(), compute_device());
      const BookScope booked(&book);
      const NoData none(plan_.model);
      Engine engine(plan_, registries_, world, none, {.is_foretold = false});
      generate(engine, world, {.prompts = prompts_, .tokens = kTokens, .cache = size_.cache});
    });
  }

  int64_t ranks() const { return num_ranks(plan_); }

 private:
  const Registries registries_ = builtin_registries();
  Plan plan_;
  std::vector<std::vector<int64_t>> prompts_;
  BatchSize size_;
};

TEST(Fit, IsWhatGeneratingNeeds) {
  int64_t alone = 0, several = 0;
  const std::vector<tests::Family> plans = tests::generating_plans();
  for (size_t i = 0; i < plans.size(); ++i) {
    const bool is_wanted = i % 5 == 0 || plans[i].name == "tiers" || plans[i].name == "llama";
    if (!is_wanted) continue;
    SCOPED_TRACE(plans[i].name);
    Fitted fitted(plans[i], i % 2 == 0 ? Cache::kWherePossible : Cache::kOff);
    const int64_t need = fitted.need();
    EXPECT_NO_THROW(fitted.generate_within(need));
    // Rank 0 of several is counted to receive all logits at once.
    const bool is_alone = fitted.ranks() == 1;
    const int64_t less = is_alone ? need - 128 : need / 2;
    EXPECT_THROW(fitted.generate_within(less), OutOfMemory) << need;
    ++(is_alone ? alone : several);
  }
  EXPECT_GE(alone, 2);
  EXPECT_GE(several, 5);
}

}  // namespace
}  // namespace kuafu
