// SPDX-License-Identifier: Apache-2.0
//
// Plans of mixtures of experts: what is refused, and where experts stand on the mesh.

#include <gtest/gtest.h>

#include "kuafu/plan/plan.h"
#include "tests/base/messages.h"

namespace kuafu {
namespace {

Plan parse(const std::string& toml) {
  return parse_plan(toml, "plan.toml", builtin_tensor_modes(), {}, {"gpt", "moe_gpt"});
}

template <class E>
void expect_refused(const std::string& toml, const std::vector<std::string>& parts) {
  SCOPED_TRACE(toml);
  expect_says(message_of<E>([&] { parse(toml); }), parts);
}

const std::string kMoe = "[model]\nkind = \"moe_gpt\"\n";

TEST(ExpertPlan, RefusesMoreChoicesThanExperts) {
  expect_refused<Refused>(kMoe + "router = \"topk\"\ntop_k = 9\n",
                          {"plan.toml:4: ", "choose 9", "experts = 8", "nearest: top_k = 8"});
  expect_refused<Refused>(kMoe + "experts = 1\n", {"plan.toml:3: ", "nearest: router = \"top1\""});
  EXPECT_EQ(parse(kMoe + "experts = 1\nrouter = \"top1\"\n").model.experts, 1);
}

TEST(ExpertPlan, RefusesACapacityOfNothing) {
  expect_refused<ConfigError>(kMoe + "capacity_factor = 0\n",
                              {"plan.toml:3: ", "model.capacity_factor = 0", "nearest: "});
  expect_refused<ConfigError>(kMoe + "capacity_factor = -1.5\n",
                              {"plan.toml:3: ", "model.capacity_factor = -1.5", "nearest: "});
}

TEST(ExpertPlan, RefusesRanksThatCannotShareTheExperts) {
  expect_refused<Refused>(kMoe + "[parallel]\ndata = 3\nexpert = 3\n",
                          {"plan.toml:5: ", "expert.size = 3 does not divide model.experts = 8",
                           "nearest: expert.size = 1"});
  expect_refused<Refused>(kMoe + "[parallel]\ndata = 4\nexpert = 8\n",
                          {"plan.toml:5: ", "expert.size = 8 does not divide parallel.data = 4",
                           "expert.size = 4 or 2", "data = 8"});
}

TEST(ExpertPlan, RefusesExpertRanksWhereDataIsLeftOpen) {
  const Plan plan = parse(kMoe + "[parallel]\nexpert = 4\n[train]\nbatch = 12\n");
  const std::string message =
      message_of<Refused>([&] { resolve(plan, 6, builtin_tensor_modes()); });
  expect_says(message, {"expert.size = 4 does not divide parallel.data = 6"});
  EXPECT_EQ(resolve(plan, 4, builtin_tensor_modes()).parallel.data.size, 4);
}

TEST(ExpertPlan, RefusesAModelWithoutAMixture) {
  expect_refused<Refused>(
      kMoe + "layers = 2\nmoe_every = 3\n",
      {"plan.toml:4: ", "moe_every = 3", "layers = 2", "nearest: moe_every = 2"});
}

TEST(ExpertPlan, RefusesExpertOptionsOfOtherModels) {
  expect_refused<ConfigError>("[parallel]\ndata = 2\nexpert = { size = 2 }\n",
                              {"plan.toml:3: ", "expert.size = 2", "no effect", "\"moe_gpt\""});
  expect_refused<ConfigError>("[model]\nrandom_second = true\n",
                              {"plan.toml:2: ", "random_second", "no effect", "\"moe_gpt\""});
  expect_refused<ConfigError>("[model]\nexperts = 4\n", {"plan.toml:2: ", "no effect"});
}

TEST(ExpertPlan, PutsExpertsInsideData) {
  const TensorModes modes = builtin_tensor_modes();
  const Plan plan = resolve(parse(kMoe + "[parallel]\ndata = 8\nexpert = 4\n"), 0, modes);
  const auto axes = mesh_axes(plan, modes);
  ASSERT_GE(axes.size(), 3u);
  EXPECT_EQ(axes[1], (Axis{"replica", 2}));
  EXPECT_EQ(axes[2], (Axis{"expert", 4}));
  EXPECT_EQ(num_ranks(plan), 8);
}

}  // namespace
}  // namespace kuafu
