// SPDX-License-Identifier: Apache-2.0
//
// A certificate whose routing is too close to call draws another seed, and says which.

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/support/plans.h"
#include "tests/support/ranks.h"

namespace kuafu {
namespace {

/// Every sample is one token over and over. Rotated heads average equal values, so all tokens of a
/// sample reach the router alike: an expert that chooses among them meets nothing but ties.
class OneToken : public Dataset {
 public:
  explicit OneToken(std::unique_ptr<Dataset> inner) : inner_(std::move(inner)) {}
  int64_t vocab() const override { return inner_->vocab(); }
  int64_t num_train_samples() const override { return inner_->num_train_samples(); }
  int64_t num_validation_samples() const override { return inner_->num_validation_samples(); }
  Tokens train(int64_t first, int64_t count) const override {
    Tokens tokens = inner_->train(first, count);
    std::fill(tokens.inputs.begin(), tokens.inputs.end(), 5);
    return tokens;
  }
  Tokens validation(int64_t first, int64_t count) const override {
    return inner_->validation(first, count);
  }
  std::string describe() const override { return "one token"; }

 private:
  std::unique_ptr<Dataset> inner_;
};

Plan choosing_plan() {
  return tests::small_plan({{"model.kind", "moe_gpt"},
                            {"model.experts", "4"},
                            {"model.router", "expert_choice"},
                            {"model.positions", "rotary"},
                            {"parallel.data", "2"},
                            {"parallel.expert.size", "2"},
                            {"train.seed", "11"}});
}

/// Certificates of all ranks; data are ties up to the seed `last_tied`.
std::vector<Certificate> certificates(const Plan& plan, uint64_t last_tied) {
  const Registries registries = builtin_registries();
  std::vector<Certificate> all(2);
  tests::run_ranks(2, [&](Communicator& world) {
    const auto make_data = [&](const Plan& p) -> std::unique_ptr<Dataset> {
      if (p.train.seed > last_tied) return tests::data_of(p);
      return std::make_unique<OneToken>(tests::data_of(p));
    };
    all[static_cast<size_t>(world.rank())] =
        certify(plan, registries, world, make_data, {}, int64_t{1} << 40);
  });
  return all;
}

TEST(RoutingRedraw, ClearDecisionsKeepTheSeed) {
  for (const Certificate& c : certificates(choosing_plan(), 0)) {
    EXPECT_EQ(c.seed, 11u);
    EXPECT_EQ(c.verdict, "equal");
  }
}

TEST(RoutingRedraw, TiesTakeTheNextSeedOnEveryRank) {
  for (const Certificate& c : certificates(choosing_plan(), 11)) {
    EXPECT_EQ(c.seed, 12u);
    EXPECT_EQ(c.verdict, "equal");
  }
  for (const Certificate& c : certificates(choosing_plan(), 14)) {
    EXPECT_EQ(c.seed, 15u);
    EXPECT_EQ(c.verdict, "equal");
  }
}

TEST(RoutingRedraw, EndsAfterItsDraws) {
  for (const Certificate& c : certificates(choosing_plan(), 1000)) {
    EXPECT_EQ(c.seed, 11u + kRoutingDraws - 1);
  }
}

}  // namespace
}  // namespace kuafu
