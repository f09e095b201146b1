// SPDX-License-Identifier: Apache-2.0
//
// The choice `resumed` of the matrix: saved under a plan that learns the same, and any value that is
// not that of the run without a stop is told.

#include "app/worker/matrix_resume.h"

#include <gtest/gtest.h>

#include "app/worker/matrix.h"
#include "kuafu/engine/placing/placement.h"
#include "kuafu/plan/resume.h"
#include "tests/record/support.h"

namespace kuafu {
namespace {

using matrix::ResumedRun;
using test::TemporaryFolder;

/// Which values of a run that goes on are wrong.
struct Fault {
  double loss = 0, weight = 0, slot = 0;  ///< added
  int64_t more_steps = 0;
  bool lacks_slot = false;
  double loaded = 0;  ///< added to the slot where nothing but loading and saving is done
};

/// A run of one weight and its slot, both closed forms of the step; the one that goes on has `fault`.
matrix::RunPlan run_with(const Fault& fault) {
  return [fault](const Plan& plan, const TrialOptions& options) {
    const SaveOptions& save = options.checkpoint;
    const bool is_loaded_alone = !save.from.empty();
    Fault f = save.resumes ? fault : Fault{};
    if (is_loaded_alone) f = {.slot = fault.loaded};
    RankResult result;
    int64_t begin = 0;
    if (is_loaded_alone) {
      begin = plan.train.steps - 1;  // whose state is made again, and saved
    } else if (save.resumes) {
      begin = Checkpoint(*newest_checkpoint(save.folder)).step() - f.more_steps;
    }
    for (int64_t step = begin + 1; step <= plan.train.steps; ++step) {
      result.losses.push_back(1 / static_cast<double>(step) + f.loss);
      if (step != plan.train.steps && step % save.every != 0) continue;
      const double weight[2] = {1 + f.weight, 0.1 * static_cast<double>(step)};
      const double slot[2] = {1e-3 * static_cast<double>(step) + f.slot, 0};
      std::vector<TensorPiece> pieces = {{"w", DType::kF64, {2}, {{0}, {2}}, weight}};
      if (!f.lacks_slot) pieces.push_back({"adamw.m.w", DType::kF64, {2}, {{0}, {2}}, slot});
      const CheckpointWriter writer(save.folder, step);
      writer.prepare();
      writer.write(0, pieces);
      writer.commit(1, {{"optimizer_steps", std::to_string(step)}});
    }
    result.certificate.verdict = options.is_certified ? "equal" : "not_run";
    return std::vector<RankResult>{result};
  };
}

ResumedRun resumed(const Fault& fault, bool is_other) {
  const TemporaryFolder folder;
  Plan plan;
  plan.model.dtype = DType::kF64;
  plan.train.steps = 5;
  Plan saver = plan;
  if (is_other) saver.parallel.data.size = 2;
  return matrix::run_resumed(saver, plan, folder / "resumed", run_with(fault));
}

TEST(Resumption, ThatIsTheRunWithoutAStopIsCertified) {
  for (const bool is_other : {false, true}) {
    const ResumedRun r = resumed({}, is_other);
    EXPECT_EQ(r.difference, "");
    EXPECT_EQ(r.certificate.verdict, "equal");
  }
}

TEST(Resumption, OfTheSamePlanIsHeldToTheBit) {
  for (const auto& [fault, told] : std::vector<std::pair<Fault, std::string>>{
           {{.loss = 1e-15}, "loss "},
           {{.weight = 1e-15}, "w is "},
           {{.slot = 1e-18}, "adamw.m.w is "},
           {{.lacks_slot = true}, "adamw.m.w is not in"},
           {{.more_steps = 1}, "went on with 4 steps, not 3"}}) {
    const ResumedRun r = resumed(fault, false);
    EXPECT_EQ(r.difference.rfind(told, 0), 0u) << told << ": " << r.difference;
  }
}

// A slot is small beside the weights: its own kind is the measure.
TEST(Resumption, OfAnotherPlanIsHeldToItsTolerance) {
  Plan plan;
  plan.train.steps = 5;
  const double tolerance = matrix::state_tolerance(plan);
  EXPECT_LT(tolerance, 1e-4);
  EXPECT_EQ(resumed({.weight = tolerance / 2}, true).difference, "");
  EXPECT_EQ(resumed({.slot = tolerance * 5e-3 / 2}, true).difference, "");
  EXPECT_NE(resumed({.weight = tolerance * 2}, true).difference, "");
  EXPECT_NE(resumed({.slot = tolerance * 5e-3 * 2}, true).difference, "");
  EXPECT_NE(resumed({.loss = tolerance * 2}, true).difference, "");
  const std::string loaded = resumed({.loaded = 1e-18}, true).difference;
  EXPECT_EQ(loaded.rfind("loaded under this plan and saved at once: adamw.m.w is ", 0), 0u)
      << loaded;
  EXPECT_EQ(resumed({.loaded = 1e-18}, false).difference, "") << "the same plan is compared whole";
}

// No plan of the matrix is saved by one that learns otherwise, or by itself.
TEST(Resumption, IsFromAnotherPlacementOfTheSameTraining) {
  const Registries registries = builtin_registries();
  const TensorModes modes = registries.tensor_modes();
  const auto dims = matrix::dimensions(registries);
  const auto plan_of = [&](const Overrides& settings) {
    Plan plan =
        resolve(parse_plan("", "plan", modes, settings, registries.models.names()), 0, modes);
    check_placement(plan, registries);
    return plan;
  };
  int64_t num_met = 0;
  for (const auto& one : matrix::combinations(dims, 0, 1)) {
    if (matrix::circumstances_of(dims, one).resumed != matrix::kResumedByOther) continue;
    const Overrides settings = matrix::settings_of(dims, one);
    Plan plan;
    try {
      plan = plan_of(settings);
    } catch (const ConfigError&) {
      continue;  // the matrix shows why
    }
    const Plan saver = plan_of(matrix::other_placement(settings, num_ranks(plan)));
    std::vector<std::string> changes;  // servers that nobody waits for learn otherwise
    if (plan.parallel.data.is_stale()) changes = {"parallel.data.staleness = 0, now 1"};
    EXPECT_EQ(resume_changes(saver, plan), changes) << matrix::name_of(dims, one);
    EXPECT_NE(num_ranks(saver), num_ranks(plan)) << matrix::name_of(dims, one);
    ++num_met;
  }
  EXPECT_GT(num_met, 70);
}

}  // namespace
}  // namespace kuafu
