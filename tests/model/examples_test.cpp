// SPDX-License-Identifier: Apache-2.0
//
// The plans of examples/, on synthetic data: they train, and equal one rank.

#include <gtest/gtest.h>

#include "kuafu/base/build_folders.h"
#include "tests/support/plans.h"

namespace kuafu {
namespace {

class Examples : public testing::TestWithParam<const char*> {};

TEST_P(Examples, TrainOnTwoRanksAsOnOne) {
  const Registries registries = builtin_registries();
  const TensorModes modes = registries.tensor_modes();
  const std::string path = text(build_info::kSourceDir, "/examples/", GetParam(), ".toml");
  const Overrides overrides = {{"data.kind", "synthetic"},
                               {"parallel.tensor.mode", "1d"},
                               {"parallel.tensor.size", "2"},
                               {"train.validation_batches", "0"}};
  const Plan plan = resolve(load_plan(path, modes, overrides, registries.models.names()), 2, modes);
  RunOptions options;
  options.is_certified = true;
  const RankResult result = tests::run_plan(plan, options)[0];
  EXPECT_EQ(result.certificate.verdict, "equal") << result.certificate.describe();
  EXPECT_EQ(result.certificate.level, "full");
  const std::vector<double>& losses = result.losses;
  ASSERT_GE(losses.size(), 20u);
  EXPECT_LT(losses.back(), losses.front() - 0.5) << losses.front() << " -> " << losses.back();
}

INSTANTIATE_TEST_SUITE_P(All, Examples,
                         testing::Values("gpt", "llama", "palm", "opt", "bert", "vit", "tiers"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace kuafu
