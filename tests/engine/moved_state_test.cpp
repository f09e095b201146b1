// SPDX-License-Identifier: Apache-2.0
//
// The state of every update rule survives every change of plan, to the bit: what one plan saved,
// another loads and saves again.

#include <gtest/gtest.h>

#include <functional>
#include <utility>

#include <ATen/ATen.h>

#include "kuafu/engine/saving/save.h"
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

/// Fused matrices, widths that no power of two divides, a padded vocabulary; thirteen plans.
Movable dense() {
  std::vector<Family> plans =
      tests::shardings({"data_3", "zero_1", "zero_2", "zero_3", "t1d_2", "t2d_4", "t2p5d_8",
                        "t3d_8", "pipeline_2", "ring_3", "mixed"});
  plans.push_back({"t1d_sp_3", tensor("1d-sp", "3")});
  plans.push_back(
      {"on_disk_zero_3", with(tests::keys::replicas("2", "3"), {{"memory.policy", "host"},
                                                                {"memory.disk_path", "/var/tmp"},
                                                                {"memory.chunk_size", "700"}})});
  return {"gpt",
          {{"model.hidden", "36"}, {"model.heads", "6"}, {"model.mlp", "swiglu"}},
          std::move(plans)};
}

Movable experts() {
  using tests::keys::replicas;
  std::vector<Family> plans =
      tests::shardings({"one_rank", "experts_2", "experts_2_zero_3", "t2d_4"});
  plans.push_back({"t1d_2_experts_2",
                   with(with(tensor("1d", "2"), tests::keys::experts("2")), replicas("2", "0"))});
  plans.push_back({"zero_2_of_3", replicas("3", "2")});
  return {"moe_gpt",
          {{"model.kind", "moe_gpt"}, {"model.experts", "4"}, {"model.heads", "4"}},
          std::move(plans)};
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

// In f32 every pair; in half precision each plan is followed by itself and by two others, which rules
// draw anew.
TEST_P(MovedState, IsTheSameToTheBitUnderPairsOfPlans) {
  const auto& [pool, rule, dtype] = GetParam();
  const size_t count = pool.plans.size(), shift = 1 + std::hash<std::string>()(rule) % (count - 1);
  const auto follows = [&, type = dtype](size_t then, size_t first) {
    const size_t far = (then + count - first) % count;
    return type == std::string("f32") || far == 0 || far == shift || far == count - shift;
  };
  for (size_t f = 0; f < count; ++f) {
    const Family& first = pool.plans[f];
    const TemporaryFolder folder;
    tests::run_saving(plan_of(pool, first, rule, dtype), folder.path());
    const tests::Contents saved = contents_of(folder.path(), kSteps);
    EXPECT_GT(saved.size(), 20U);
    for (size_t t = 0; t < count; ++t) {
      if (!follows(t, f)) continue;
      const Family& then = pool.plans[t];
      const TemporaryFolder moved;
      move_state(plan_of(pool, then, rule, dtype), folder.path(), moved.path());
      expect_same(contents_of(moved.path(), kSteps), saved,
                  text(rule, " ", dtype, ", ", first.name, ", then ", then.name));
    }
  }
}

std::string name_of(const testing::TestParamInfo<Case>& info) {
  return std::get<0>(info.param).name + "_" + std::get<1>(info.param) + "_" +
         std::get<2>(info.param);
}

INSTANTIATE_TEST_SUITE_P(
    All, MovedState,
    testing::Combine(testing::Values(dense(), experts()),
                     testing::ValuesIn(builtin_registries().optimizers.names()),
                     testing::Values("f32", "bf16")),
    name_of);
// With a loss scale.
INSTANTIATE_TEST_SUITE_P(All_f16, MovedState,
                         testing::Combine(testing::Values(dense()),
                                          testing::Values("adamw", "lamb"), testing::Values("f16")),
                         name_of);

}  // namespace
}  // namespace kuafu
