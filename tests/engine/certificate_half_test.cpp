// SPDX-License-Identifier: Apache-2.0
//
// Runs in half precision that learn, at rates that make attention sure of its keys: equal, or ended
// with the step from which rounding alone is what is left of a gradient.

#include <gtest/gtest.h>

#include "tests/support/plans.h"

namespace kuafu {
namespace {

struct Learner {
  std::string name;
  Overrides overrides;
};
std::ostream& operator<<(std::ostream& out, const Learner& l) { return out << l.name; }

Plan plan_of(const Learner& learner) {
  const Registries registries = builtin_registries();
  const TensorModes modes = registries.tensor_modes();
  const Overrides base = {
      {"data.kind", "synthetic"}, {"model.hidden", "64"}, {"model.vocab", "256"},
      {"model.sequence", "32"},   {"model.layers", "2"},  {"model.heads", "4"},
      {"train.batch", "8"},       {"train.steps", "12"},  {"train.validation_batches", "0"}};
  return resolve(parse_plan("", "half.toml", modes, tests::keys::both(base, learner.overrides),
                            registries.models.names()),
                 1, modes);
}

class HalfPrecision : public testing::TestWithParam<Learner> {};

TEST_P(HalfPrecision, IsEqualOrNamesTheStep) {
  RunOptions certified;
  certified.is_certified = true;
  Certificate c;
  try {
    c = tests::run_plan(plan_of(GetParam()), certified)[0].certificate;
  } catch (const Diverged& e) {  // such rates end so under the roundings of some processors
    EXPECT_NE(std::string(e.what()).find("is nan at step "), std::string::npos) << e.what();
    return;
  }
  const std::string words = text(c.describe(), "; native ", c.native.describe());
  EXPECT_TRUE(c.native.verdict == "equal" || c.native.verdict == "not_run") << words;
  if (c.native.verdict != "not_run") return;
  EXPECT_EQ(c.native.reason.find("step "), 0u) << words;
  EXPECT_NE(c.native.reason.find("diverged or is saturated"), std::string::npos) << words;
}

Learner learner(const char* type, const char* rate, const char* seed, const Overrides& more = {}) {
  return {text(type, "_rate_", std::string(rate).substr(2), "_seed_", seed),
          tests::keys::both({{"model.dtype", type}, {"optimizer.lr", rate}, {"train.seed", seed}},
                            more)};
}

INSTANTIATE_TEST_SUITE_P(
    Learners, HalfPrecision,
    testing::Values(learner("f16", "0.1", "2"), learner("bf16", "0.1", "2"),
                    learner("bf16", "0.3", "3"),
                    learner("bf16", "0.3", "1", {{"train.steps", "6"}}),
                    // One draw of ten takes an input of a ReLU across its kink.
                    learner("bf16", "0.1", "938",
                            {{"model.kind", "bert"},
                             {"model.mlp", "relu"},
                             {"model.norm", "rms"},
                             {"model.kv_heads", "1"},
                             {"model.hidden", "16"},
                             {"model.vocab", "32"},
                             {"model.sequence", "8"},
                             {"optimizer.kind", "sgd"},
                             {"optimizer.clip", "0"},
                             {"train.batch", "12"},
                             {"train.steps", "3"}}),
                    // The reference overflows at a loss scale at which the run does not.
                    learner("f16", "0.4853", "39",
                            {{"model.kind", "vit"},
                             {"model.image", "12"},
                             {"model.sequence", "10"},
                             {"train.steps", "11"}})),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace kuafu
