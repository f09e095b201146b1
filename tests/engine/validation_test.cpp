// SPDX-License-Identifier: Apache-2.0
//
// Validation on the way: it changes nothing of the training, and the best state is kept.

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include <ATen/ATen.h>

#include "kuafu/checkpoint/checkpoint.h"
#include "tests/engine/resume.h"

namespace kuafu {
namespace {

using test::TemporaryFolder;
using tests::Family;
using tests::family;
using tests::run_plan;
using tests::run_plan_of;
using tests::with;

/// Everything there is to disturb: models, placements, orders of communication, memory.
std::vector<Family> disturbed() {
  std::vector<Family> all = tests::families();
  const Overrides bert = {{"model.kind", "bert"}, {"model.vocab", "64"}};
  const Overrides vit = {{"model.kind", "vit"},    {"model.image", "12"},  {"model.patch", "4"},
                         {"model.sequence", "10"}, {"model.vocab", "256"}, {"model.classes", "5"}};
  const auto add = [&](const char* name, const Overrides& a, const Overrides& b = {}) {
    all.push_back({name, with(a, b)});
  };
  const Overrides moe = {{"model.balance_loss", "0.1"}, {"model.z_loss", "0.01"}};
  add("bert_data_2", bert, {{"parallel.data", "2"}});
  add("vit_t1d_2", vit, tests::keys::tensor("1d", "2"));
  add("moe_2", with(tests::keys::experts("2"), moe), {{"parallel.data", "2"}});
  add("pipeline_2", {{"parallel.pipeline", "2"}, {"train.micro_batch", "6"}});
  add("zbv_2", {{"parallel.pipeline.size", "2"},
                {"parallel.pipeline.schedule", "zbv"},
                {"parallel.pipeline.chunks", "2"},
                {"train.micro_batch", "6"}});
  for (const char* stage : {"1", "2", "3"}) {
    all.push_back({std::string("zero_") + stage,
                   {{"parallel.data", "2"}, {"parallel.zero", stage}, {"train.micro_batch", "6"}}});
  }
  add("moe_pipeline_zero_3", with(tests::keys::experts("1"), moe),
      {{"parallel.data", "2"}, {"parallel.pipeline", "2"}, {"parallel.zero", "3"}});
  add("recompute", {{"memory.recompute", "full"}}, family("data_2_t1d_2").overrides);
  add("servers", {{"parallel.data", "2"}, {"parallel.data.mode", "parameter_server"}});
  return all;
}

class Validation : public testing::TestWithParam<Family> {};

TEST_P(Validation, OnTheWayLeavesTheBitsAndMetersOfTraining) {
  const Overrides common = {{"model.dtype", "f32"}, {"model.dropout", "0.1"}};
  const Overrides mine = with(GetParam().overrides, common);
  const auto without = run_plan(run_plan_of(mine));
  const auto validated = run_plan(run_plan_of(with(mine, {{"train.validate_every", "2"}})));
  ASSERT_EQ(without.size(), validated.size());
  for (size_t r = 0; r < without.size(); ++r) {
    const RankResult &a = without[r], &b = validated[r];
    EXPECT_EQ(a.losses, b.losses);
    EXPECT_EQ(a.validation_loss, b.validation_loss);
    EXPECT_EQ(b.validation.steps, (std::vector<int64_t>{2, 4, 6}));
    EXPECT_EQ(b.validation.losses.back(), b.validation_loss);
    EXPECT_EQ(b.validation, validated[0].validation);
    EXPECT_NE(b.validation.losses[0], b.validation.losses[1]);
    EXPECT_EQ(a.flops, b.flops);
    EXPECT_EQ(a.peak_bytes, b.peak_bytes);
    EXPECT_EQ(a.peak_by_category, b.peak_by_category);
    EXPECT_EQ(a.traffic, b.traffic);
    EXPECT_EQ(a.experts, b.experts);
    EXPECT_TRUE(a.validation.steps.empty());
  }
}

TEST_P(Validation, GoesOnAsOneSeriesBehindACheckpoint) {
  const Plan plan = run_plan_of(
      with(GetParam().overrides, {{"model.dtype", "f32"}, {"train.validate_every", "2"}}));
  const TemporaryFolder folder;
  const RankResult whole = tests::run_saving(plan, folder.path());
  tests::forget_after(folder.path(), tests::kSavedStep);
  const RankResult resumed = tests::run_resumed(plan, folder.path());
  EXPECT_EQ(resumed.resumed_from, tests::kSavedStep);
  EXPECT_EQ(resumed.validation, whole.validation);
}

INSTANTIATE_TEST_SUITE_P(All, Validation, testing::ValuesIn(disturbed()),
                         [](const auto& info) { return info.param.name; });

/// Learning rates that rise until the loss does.
Plan rising(const Overrides& more = {}) {
  return run_plan_of(with({{"model.dtype", "f32"},
                           {"train.validate_every", "1"},
                           {"optimizer.lr", "0.5"},
                           {"optimizer.warmup", "12"},
                           {"optimizer.clip", "0"},
                           {"train.steps", "12"}},
                          more));
}

TEST(BestCheckpoint, IsThatOfTheLowestValidationLossAndSurvivesRotation) {
  for (const bool is_async : {false, true}) {
    const TemporaryFolder folder;
    RunOptions options;
    options.checkpoint = {.folder = folder.path(), .every = 4, .keep = 1, .is_async = is_async};
    const RankResult r = run_plan(rising({{"parallel.data", "2"}}), options)[0];
    ASSERT_TRUE(r.validation.best().has_value());
    const int64_t best = r.validation.steps[*r.validation.best()];
    ASSERT_LT(best, 12) << "the plan was meant to end worse than it was";
    EXPECT_EQ(best_checkpoint(folder.path()), tests::step_folder(folder.path(), best));
    EXPECT_EQ(complete_checkpoints(folder.path()),
              (std::vector<std::string>{tests::step_folder(folder.path(), 12),
                                        tests::step_folder(folder.path(), best)}));
  }
}

TEST(BestCheckpoint, BeginsAnotherRun) {
  const TemporaryFolder folder, other;
  RunOptions options;
  options.checkpoint = {.folder = folder.path(), .keep = 1};
  const RankResult whole = run_plan(rising(), options)[0];
  const int64_t best = whole.validation.steps[*whole.validation.best()];
  options.checkpoint = {.folder = other.path(), .from = folder / "best"};
  const RankResult tuned = run_plan(rising(), options)[0];
  EXPECT_EQ(tuned.resumed_from, best);
  EXPECT_EQ(tuned.losses, (std::vector<double>{whole.losses.begin() + best, whole.losses.end()}));
  EXPECT_EQ(tuned.validation.steps.front(), best + 1);
  // From there on the folder has checkpoints of its own.
  options.checkpoint.resumes = true;
  EXPECT_EQ(run_plan(rising(), options)[0].resumed_from, 12);
}

TEST(BestCheckpoint, LinkThatAKillLeftBehindIsMended) {
  const TemporaryFolder folder;
  const RankResult whole = tests::run_saving(rising(), folder.path());
  const int64_t best = whole.validation.steps[*whole.validation.best()];
  std::filesystem::remove(folder / "best");
  const Plan longer = rising({{"train.steps", "13"}});
  tests::run_resumed(longer, folder.path());
  EXPECT_EQ(best_checkpoint(folder.path()), tests::step_folder(folder.path(), best));
}

/// A run that ends with a loss that is no number, and asks between steps as the program does.
RankResult diverging(const SaveOptions& saving, const Overrides& more) {
  const Requests requests;
  RunOptions options;
  options.requests = &requests;
  options.checkpoint = saving;
  return run_plan(run_plan_of(with({{"model.dtype", "f32"},
                                    {"optimizer.kind", "sgd"},
                                    {"optimizer.lr", "100"},
                                    {"optimizer.clip", "0"},
                                    {"optimizer.warmup", "40"},
                                    {"train.validation_batches", "0"},
                                    {"train.steps", "20"}},
                                   more)),
                  options)[0];
}

TEST(Divergence, LeavesTheNewestStateWhoseOwnLossIsANumber) {
  for (const char* ranks : {"1", "2"}) {
    const TemporaryFolder folder;
    const RankResult r =
        diverging({.folder = folder.path(), .every = 1, .keep = 1}, {{"parallel.data", ranks}});
    ASSERT_FALSE(r.diverged.empty());
    const auto steps = static_cast<int64_t>(r.losses.size());
    ASSERT_GT(steps, 1);
    // Every step was saved: the state after the last one has no loss, the one before has.
    EXPECT_EQ(r.last_good, tests::step_folder(folder.path(), steps - 1));
    EXPECT_EQ(complete_checkpoints(folder.path()), std::vector<std::string>{r.last_good});
    EXPECT_TRUE(std::filesystem::exists(tests::step_folder(folder.path(), steps) + ".diverged"));
  }
}

TEST(Divergence, LeavesAStateWhereNoneWasAskedForYet) {
  for (const auto& [ranks, every] : {std::pair("1", 0), {"2", 0}, {"2", 1000}}) {
    const TemporaryFolder folder;
    const RankResult r =
        diverging({.folder = folder.path(), .every = every}, {{"parallel.data", ranks}});
    ASSERT_FALSE(r.diverged.empty());
    const auto steps = static_cast<int64_t>(r.losses.size());
    ASSERT_GT(steps, 2);
    EXPECT_EQ(r.last_good, tests::step_folder(folder.path(), 1));
    EXPECT_EQ(complete_checkpoints(folder.path()), std::vector<std::string>{r.last_good});

    for (const bool is_async : {false, true}) {
      const TemporaryFolder often;
      const RankResult s = diverging(
          {.folder = often.path(), .rolling = {.least_s = 0, .share = 1e9}, .is_async = is_async},
          {{"parallel.data", ranks}});
      EXPECT_EQ(s.losses, r.losses);
      ASSERT_FALSE(s.last_good.empty());
      const int64_t good = *step_of_folder(s.last_good);
      EXPECT_GE(good, is_async ? 1 : steps - 1);
      EXPECT_LT(good, steps);
      if (!is_async) {
        EXPECT_EQ(complete_checkpoints(often.path()), std::vector<std::string>{s.last_good});
      }
      EXPECT_LE(complete_checkpoints(often.path()).size(), 2u);
    }
  }
}

TEST(RollingSaves, LeaveWhatAWholeRunLeft) {
  const TemporaryFolder folder;
  const Requests requests;
  RunOptions options;
  options.requests = &requests;
  options.checkpoint = {.folder = folder.path(), .rolling = {.least_s = 0, .share = 1e9}};
  const RankResult r = run_plan(run_plan_of({{"parallel.data", "2"}}), options)[0];
  EXPECT_EQ(r.saves, static_cast<int64_t>(r.losses.size()));
  EXPECT_EQ(complete_checkpoints(folder.path()),
            (std::vector<std::string>{
                tests::step_folder(folder.path(), static_cast<int64_t>(r.losses.size()))}));
}

TEST(ValidationSeries, TravelsAsTextAndRefusesWhatIsNone) {
  ValidationSeries series;
  series.add(2, 0.1 + 0.2);
  series.add(4, std::nan(""));
  series.add(6, 0.25);
  EXPECT_EQ(series.best(), 2u);
  EXPECT_TRUE(series.is_best(6));
  const ValidationSeries back = validation_from(to_text(series), 6, "here");
  EXPECT_EQ(back.steps, series.steps);
  EXPECT_EQ(back.losses[0], series.losses[0]);
  EXPECT_TRUE(std::isnan(back.losses[1]));
  EXPECT_THROW(validation_from(to_text(series), 5, "here"), ConfigError)
      << "one after its last step";
  for (const char* wrong : {"", "{", "[]", R"({"steps":[1]})", R"({"steps":[1],"losses":[]})",
                            R"({"steps":[2,1],"losses":[1,1]})", R"({"steps":[0],"losses":[1]})",
                            R"({"steps":[1],"losses":["x"]})"}) {
    EXPECT_THROW(validation_from(wrong, 9, "here"), ConfigError) << wrong;
  }
}

}  // namespace
}  // namespace kuafu
