// SPDX-License-Identifier: Apache-2.0
//
// The state of every update rule survives every change of plan, to the bit: what one plan saved,
// another loads and saves again.

#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "kuafu/engine/save.h"
#include "tests/engine/resume.h"
#include "tests/support/ranks.h"

namespace kuafu {
namespace {

using test::TemporaryFolder;
using tests::contents_of;
using tests::Family;
using tests::with;
using tests::keys::tensor;

constexpr int64_t kSteps = 2;

/// A model, and the plans that its state moves between.
struct Movable {
  std::string name;
  Overrides model;
  std::vector<Family> plans;
};

Overrides replicated(const char* n, const char* stage) {
  return {{"parallel.data", n}, {"parallel.zero", stage}};
}

/// Fused matrices, widths that no power of two divides, a padded vocabulary; twelve plans.
Movable dense() {
  const Overrides stages = {{"parallel.pipeline", "2"}, {"train.micro_batch", "3"}};
  return {"gpt",
          {{"model.hidden", "36"}, {"model.heads", "6"}, {"model.mlp", "swiglu"}},
          {{"data_3", replicated("3", "0")},
           {"zero_1", replicated("3", "1")},
           {"zero_2", replicated("2", "2")},
           {"zero_3", replicated("3", "3")},
           {"t1d_2", tensor("1d", "2")},
           {"t1d_sp_3", tensor("1d-sp", "3")},
           {"t2d_4", tensor("2d", "4")},
           {"t2p5d_8", tensor("2.5d", "8", "2")},
           {"t3d_8", tensor("3d", "8")},
           {"pipeline_2", stages},
           {"ring_3", tests::keys::sequence("ring", "3")},
           {"mixed", with(with(tensor("1d", "2"), stages), replicated("2", "1"))}}};
}

Movable experts() {
  using tests::keys::experts;
  return {"moe_gpt",
          {{"model.kind", "moe_gpt"}, {"model.experts", "4"}, {"model.heads", "4"}},
          {{"one_rank", {}},
           {"experts_2", with(experts("2"), replicated("2", "0"))},
           {"experts_2_zero_3", with(experts("2"), replicated("4", "3"))},
           {"t1d_2_experts_2", with(with(tensor("1d", "2"), experts("2")), replicated("2", "0"))},
           {"t2d_4", tensor("2d", "4")},
           {"zero_2", replicated("3", "2")}}};
}

Plan plan_of(const Movable& pool, const Family& f, const std::string& rule, const char* dtype) {
  Overrides all = with(
      with(pool.model, f.overrides),
      {{"optimizer.kind", rule}, {"model.dtype", dtype}, {"train.steps", std::to_string(kSteps)}});
  all.emplace_back("train.batch", "12");
  return tests::small_plan(all);
}

/// Loads the newest checkpoint of `from` under a plan and saves it into `folder`, without a step.
void move_state(const Plan& plan, const std::string& from, const std::string& folder) {
  const Registries registries = builtin_registries();
  tests::run_ranks(static_cast<int>(num_ranks(plan)), [&](Communicator& world) {
    const auto data = tests::data_of(plan);
    Engine engine(plan, registries, world, *data, {});
    Saver saver(engine, world, {.folder = folder, .from = from});
    ASSERT_EQ(saver.resume(), kSteps);
    saver.save_now();
  });
}

void expect_same(const tests::Contents& moved, const tests::Contents& saved,
                 const std::string& what) {
  ASSERT_EQ(moved.size(), saved.size()) << what;
  for (const auto& [name, tensor] : saved) {
    ASSERT_TRUE(moved.contains(name)) << what << ": " << name;
    EXPECT_TRUE(at::equal(moved.at(name), tensor)) << what << ": " << name;
  }
}

using Case = std::tuple<Movable, std::string, const char*>;
class MovedState : public testing::TestWithParam<Case> {};

TEST_P(MovedState, IsTheSameToTheBitUnderEveryPairOfPlans) {
  const auto& [pool, rule, dtype] = GetParam();
  for (const Family& first : pool.plans) {
    const TemporaryFolder folder;
    tests::run_saving(plan_of(pool, first, rule, dtype), folder.path());
    const tests::Contents saved = contents_of(folder.path(), kSteps);
    EXPECT_GT(saved.size(), 20U);
    for (const Family& then : pool.plans) {
      const TemporaryFolder moved;
      move_state(plan_of(pool, then, rule, dtype), folder.path(), moved.path());
      expect_same(contents_of(moved.path(), kSteps), saved,
                  text(rule, " ", dtype, ", ", first.name, ", then ", then.name));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, MovedState,
    testing::Combine(testing::Values(dense(), experts()),
                     testing::ValuesIn(builtin_registries().optimizers.names()),
                     testing::Values("f32", "bf16")),
    [](const auto& info) {
      return std::get<0>(info.param).name + "_" + std::get<1>(info.param) + "_" +
             std::get<2>(info.param);
    });

}  // namespace
}  // namespace kuafu
