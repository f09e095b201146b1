// SPDX-License-Identifier: Apache-2.0
//
// Runs that stop and go on: under the same plan to the bit, under any other on the same curve.

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include <ATen/ATen.h>

#include "kuafu/checkpoint/checkpoint.h"
#include "kuafu/engine/saving/save.h"
#include "tests/engine/resume.h"

namespace kuafu {
namespace {

using test::TemporaryFolder;
using tests::contents_of;
using tests::distance;
using tests::Family;
using tests::forget_after;
using tests::kCurveTolerance;
using tests::kRunSteps;
using tests::kSavedStep;
using tests::run_plan_of;
using tests::run_resumed;
using tests::run_saving;
using tests::step_folder;
using tests::with;

std::vector<double> second_half(const std::vector<double>& losses) {
  return {losses.begin() + kSavedStep, losses.end()};
}

class Resume : public testing::TestWithParam<Family> {};

TEST_P(Resume, OfTheSamePlanIsBitIdentical) {
  for (const Overrides& more :
       {Overrides{
            {"model.dtype", "f32"}, {"model.dropout", "0.1"}, {"optimizer.schedule", "cosine"}},
        Overrides{{"model.dtype", "bf16"}, {"optimizer.kind", "sgd"}}}) {
    const TemporaryFolder folder;
    const Plan plan = run_plan_of(with(GetParam().overrides, more));
    const RankResult whole = run_saving(plan, folder.path());
    EXPECT_FALSE(whole.resumed_from.has_value());
    EXPECT_EQ(whole.saves, 2);
    const tests::Contents expected = contents_of(folder.path(), kRunSteps);
    forget_after(folder.path(), kSavedStep);
    const RankResult resumed = run_resumed(plan, folder.path());
    EXPECT_EQ(resumed.resumed_from, kSavedStep);
    EXPECT_EQ(resumed.losses, second_half(whole.losses));
    EXPECT_EQ(resumed.validation_loss, whole.validation_loss);
    EXPECT_EQ(distance(contents_of(folder.path(), kRunSteps), expected), 0);
  }
}

INSTANTIATE_TEST_SUITE_P(All, Resume, testing::ValuesIn(tests::families()),
                         [](const auto& info) { return info.param.name; });

// The timed steps of the part that went on, made again from the checkpoint's state, and no others.
TEST(Resume, IsCertifiedFromWhereItWentOn) {
  for (const Overrides& kind :
       {tests::family("data_2_t1d_2").overrides,
        Overrides{{"parallel.data", "2"}, {"parallel.zero", "2"}, {"train.micro_batch", "4"}}}) {
    const TemporaryFolder folder;
    const Plan plan = run_plan_of(with(kind, {{"model.dtype", "f32"}, {"train.steps", "12"}}));
    run_saving(plan, folder.path());
    forget_after(folder.path(), kSavedStep);
    RunOptions options;
    options.is_certified = true;
    options.checkpoint = {.folder = folder.path(), .resumes = true};
    const RankResult r = tests::run_plan(plan, options)[0];
    EXPECT_EQ(r.resumed_from, kSavedStep);
    const Certificate& c = r.certificate;
    EXPECT_EQ(c.verdict, "equal") << c.describe() << "; native " << c.native.describe();
    EXPECT_EQ(c.native.verdict, "equal");
    ASSERT_EQ(c.native.steps.size(), 5u);
    EXPECT_EQ(c.native.steps[0], kSavedStep);
    EXPECT_EQ(c.native.steps[2], kSavedStep + 2);
    EXPECT_GT(c.native.steps[3], kSavedStep + 2);
    EXPECT_LT(c.native.steps[3], 11);
    EXPECT_EQ(c.native.steps[4], 11);
    EXPECT_EQ(c.steps, (std::vector<int64_t>{0, 1, 2}));  // the twin's are its own
  }
}

// A run that grows and shrinks on its way, data order included.
TEST(Resume, GoesOnOnAnyNumberOfRanks) {
  const TemporaryFolder alone, folder;
  const Overrides steps = {{"train.steps", "12"}};
  const RankResult one = tests::run_saving(run_plan_of(steps), alone.path());
  std::vector<double> curve;
  for (const char* name : {"data_3", "t3d_8", "one_rank", "data_2"}) {
    const int64_t stop = static_cast<int64_t>(curve.size()) + kSavedStep;
    const Plan plan =
        run_plan_of(with(tests::family(name).overrides, {{"train.steps", std::to_string(stop)}}));
    const RankResult part = run_resumed(plan, folder.path());
    EXPECT_EQ(part.resumed_from.has_value(), !curve.empty());
    curve.insert(curve.end(), part.losses.begin(), part.losses.end());
  }
  ASSERT_EQ(curve.size(), 2u * kRunSteps);
  for (size_t t = 0; t < curve.size(); ++t) {
    EXPECT_NEAR(curve[t] / one.losses[t], 1, 2 * kCurveTolerance) << t;
  }
}

// Servers count pushes of workers, not steps: what they saved has more updates than steps, and a run in
// step saves them on with its own.
TEST(Resume, GoesOnInStepFromServersAndOnceMore) {
  const TemporaryFolder folder;
  const Overrides servers = {{"parallel.data", "2"},
                             {"parallel.data.mode", "parameter_server"},
                             {"parallel.data.staleness", "2"}};
  int64_t steps = 0;
  for (const Overrides& kind :
       {servers, Overrides{{"parallel.data", "2"}}, Overrides{}, servers, Overrides{}}) {
    const int64_t before = steps;
    steps += kSavedStep;
    RunOptions options;
    std::vector<std::string> notices;
    options.checkpoint = {.folder = folder.path(), .every = kSavedStep, .resumes = before > 0};
    options.checkpoint.changes = ResumeChanges::kMeant;  // of staleness
    options.checkpoint.on_notice = [&](const std::string& notice) { notices.push_back(notice); };
    options.is_certified = true;
    const Plan plan =
        run_plan_of(with(kind, {{"train.steps", std::to_string(steps)}, {"optimizer.clip", "0"}}));
    const RankResult part = tests::run_plan(plan, options)[0];
    const Certificate& c = part.certificate;
    EXPECT_EQ(c.verdict, "equal") << c.describe() << "; native " << c.native.describe();
    EXPECT_EQ(part.resumed_from.value_or(0), before);
    EXPECT_EQ(part.losses.size(), static_cast<size_t>(kSavedStep));
    EXPECT_TRUE(notices.empty()) << notices[0];
  }
}

TEST(Resume, ConvertsElementTypes) {
  const TemporaryFolder folder;
  const auto plan_of = [](const char* name, const char* dtype) {
    return run_plan_of(with(tests::family(name).overrides, {{"model.dtype", dtype}}));
  };
  const RankResult whole = run_saving(plan_of("t1d_2", "f64"), folder.path());
  for (const char* dtype : {"f32", "bf16", "f64"}) {
    forget_after(folder.path(), kSavedStep);
    const RankResult resumed = run_resumed(plan_of("data_2", dtype), folder.path());
    // One rounding of weights and activations, a few more on the way.
    const double tolerance = dtype == std::string("f64")   ? kCurveTolerance
                             : dtype == std::string("f32") ? 64 * 0x1.0p-23
                                                           : 8 * 0x1.0p-8;
    for (size_t t = 0; t < resumed.losses.size(); ++t) {
      EXPECT_NEAR(resumed.losses[t] / whole.losses[kSavedStep + t], 1, tolerance) << dtype;
    }
  }
}

TEST(Resume, KeepsTheMasterCopiesOfHalfPrecision) {
  const TemporaryFolder folder;
  const Plan plan = run_plan_of({{"model.dtype", "bf16"}, {"parallel.data", "2"}});
  run_saving(plan, folder.path());
  const Checkpoint saved(step_folder(folder.path(), kSavedStep));
  for (const auto& [name, tensor] : saved.tensors()) EXPECT_EQ(tensor.dtype, DType::kF32) << name;
}

TEST(Save, WritesEveryElementOnceAndSharesTheWork) {
  const TemporaryFolder folder;
  RunOptions options;
  options.checkpoint = {.folder = folder.path()};
  const auto ranks = tests::run_plan(run_plan_of({{"parallel.data", "4"}}), options);
  int64_t written = 0, elements = 0, most = 0;
  for (const RankResult& r : ranks) {
    EXPECT_EQ(r.saves, 1);
    written += r.saved_bytes;
    most = std::max(most, r.saved_bytes);
  }
  const Checkpoint saved(step_folder(folder.path(), kRunSteps));
  for (const auto& [name, tensor] : saved.tensors()) {
    int64_t n = 1;
    for (const int64_t extent : tensor.global) n *= extent;
    elements += n;
  }
  EXPECT_EQ(written, 8 * elements);
  EXPECT_LE(most, written / 4 + written / 20);
}

TEST(Save, KeepsTheNewest) {
  const TemporaryFolder folder;
  RunOptions options;
  options.checkpoint = {.folder = folder.path(), .every = 1, .keep = 2};
  tests::run_plan(run_plan_of({}), options);
  EXPECT_EQ(
      complete_checkpoints(folder.path()),
      (std::vector<std::string>{step_folder(folder.path(), 6), step_folder(folder.path(), 5)}));
}

TEST(Save, AsyncHoldsTheSameBytesAndBooksItsCopy) {
  for (const char* name : {"one_rank", "data_2_t1d_2"}) {
    const TemporaryFolder here, there;
    const Plan plan = run_plan_of(tests::family(name).overrides);
    RunOptions options;
    options.checkpoint = {.folder = here.path(), .every = 2};
    const auto still = tests::run_plan(plan, options);
    options.checkpoint = {.folder = there.path(), .every = 2, .is_async = true};
    const auto going = tests::run_plan(plan, options);
    for (size_t r = 0; r < still.size(); ++r) {
      EXPECT_EQ(going[r].losses, still[r].losses);
      EXPECT_EQ(going[r].saves, 3);
      EXPECT_EQ(going[r].saved_bytes, still[r].saved_bytes);
      const auto temporary = static_cast<size_t>(Category::kTemporary);
      EXPECT_GE(going[r].peak_by_category[temporary], going[r].saved_bytes / 3);
    }
    for (const int64_t step : {2, 4, 6}) {
      EXPECT_EQ(distance(contents_of(there.path(), step), contents_of(here.path(), step)), 0)
          << name << ", step " << step;
    }
  }
}

/// Changes one byte in the middle of every file of a checkpoint, or of its index alone.
void damage(const std::string& folder, bool only_index) {
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (only_index != (entry.path().filename() == "index.json")) continue;
    std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
    const auto middle = static_cast<std::streamoff>(std::filesystem::file_size(entry.path()) / 2);
    file.seekg(middle);
    const char byte = static_cast<char>(file.get() ^ 1);
    file.seekp(middle);
    file.put(byte);
  }
}

TEST(Resume, PassesOverADamagedCheckpointAndNamesIt) {
  for (const bool is_index : {true, false}) {
    const TemporaryFolder folder;
    const Plan plan = run_plan_of({{"parallel.tensor.mode", "1d"}, {"parallel.tensor.size", "2"}});
    const RankResult whole = run_saving(plan, folder.path());
    damage(step_folder(folder.path(), kRunSteps), is_index);
    RunOptions options;
    std::vector<std::string> notices;
    options.checkpoint = {.folder = folder.path(), .resumes = true};
    options.checkpoint.on_notice = [&](const std::string& notice) { notices.push_back(notice); };
    const RankResult resumed = tests::run_plan(plan, options)[0];
    EXPECT_EQ(resumed.resumed_from, kSavedStep);
    EXPECT_EQ(resumed.losses, second_half(whole.losses));
    ASSERT_EQ(notices.size(), 1u);
    EXPECT_NE(notices[0].find("step-00000006"), std::string::npos) << notices[0];
    EXPECT_NE(notices[0].find("damaged"), std::string::npos) << notices[0];
  }
}

/// What the state of an index says instead, under a checksum that fits.
struct Untrue {
  const char *key, *value;
  const char* words;  ///< of the notice
};
std::ostream& operator<<(std::ostream& out, const Untrue& u) { return out << u.key << u.value; }

class UntrueState : public testing::TestWithParam<Untrue> {};

TEST_P(UntrueState, IsPassedOverByName) {
  const TemporaryFolder folder;
  const Plan plan = run_plan_of({{"model.dtype", "f16"}});
  run_saving(plan, folder.path());
  const std::string path = step_folder(folder.path(), kRunSteps) + "/index.json";
  CheckpointIndex index = parse_index(test::read_text(path), path);
  std::string& state = index.state[GetParam().key];
  state = GetParam().key == std::string("plan")
              ? to_toml(run_plan_of({{"model.dtype", "f16"}, {"train.steps", GetParam().value}}))
              : GetParam().value;
  test::write_text(path, to_text(index));
  RunOptions options;
  std::vector<std::string> notices;
  options.checkpoint = {.folder = folder.path(), .resumes = true};
  options.checkpoint.on_notice = [&](const std::string& notice) { notices.push_back(notice); };
  options.checkpoint.changes = ResumeChanges::kMeant;
  EXPECT_EQ(tests::run_plan(plan, options)[0].resumed_from, kSavedStep);
  ASSERT_EQ(notices.size(), 1u);
  EXPECT_NE(notices[0].find("step-00000006 is passed over"), std::string::npos) << notices[0];
  EXPECT_NE(notices[0].find(GetParam().words), std::string::npos) << notices[0];
}

INSTANTIATE_TEST_SUITE_P(
    All, UntrueState,
    testing::Values(
        Untrue{"skipped_steps", "99", "99 steps were skipped of 6"},
        Untrue{"optimizer_steps", "7", "7 updates after 6 steps, 0 of them skipped; use"},
        Untrue{"optimizer_steps", "5", "5 updates after 6 steps, 0 of them skipped; use"},
        Untrue{"optimizer_steps", "9223372036854775807", "9223372036854775807 updates after 6"},
        Untrue{"optimizer_steps", "06", "expected a whole number from 0, found \"06\""},
        Untrue{"updates_beyond_steps", "2", "0 of them skipped, and 2 by further pushes"},
        Untrue{"loss_scale", "1e300", "state.loss_scale: 1e+300 is beyond the range of f32"},
        Untrue{"loss_scale_good_steps", "7", "7 good steps after each other, of 6"},
        Untrue{"plan", "4", "step is 6, and the plan that saved it ends after step 4"},
        Untrue{"weights_only", "yes", "nothing but weights is here"},
        Untrue{"program", "{", "state.program: expected a JSON object, found \"{\""},
        Untrue{"plugins", "[]", "state.plugins: expected a JSON object, found \"[]\""}));

std::string message_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const ConfigError& e) {
    return e.what();
  }
  return "nothing was wrong";
}

TEST(Resume, StopsWhereEveryCheckpointIsDamaged) {
  const TemporaryFolder folder;
  const Plan plan = run_plan_of({{"parallel.data", "2"}});
  run_saving(plan, folder.path());
  for (const int64_t step : {kSavedStep, kRunSteps}) {
    damage(step_folder(folder.path(), step), false);
  }
  const std::string message = message_of([&] { run_resumed(plan, folder.path()); });
  for (const char* part : {"no checkpoint of ", "step-00000003", "step-00000006"}) {
    EXPECT_NE(message.find(part), std::string::npos) << message;
  }
}

// Of one parameter, and of all: neither goes on with zeros.
TEST(Resume, RefusesACheckpointThatLacksSlots) {
  for (const std::string prefix : {"adamw.m.blocks.1.mlp.up.bias", "adamw.v."}) {
    const TemporaryFolder folder;
    const Plan plan = run_plan_of({});
    run_saving(plan, folder.path());
    forget_after(folder.path(), kSavedStep);
    const std::string path = step_folder(folder.path(), kSavedStep) + "/index.json";
    CheckpointIndex index = parse_index(test::read_text(path), path);
    const size_t before = index.tensors.size();
    std::erase_if(index.tensors, [&](const auto& t) { return t.first.starts_with(prefix); });
    ASSERT_LT(index.tensors.size(), before);
    test::write_text(path, to_text(index));
    const std::string message = message_of([&] { run_resumed(plan, folder.path()); });
    EXPECT_NE(message.find("the checkpoint has no tensor " + prefix), std::string::npos) << message;
  }
}

TEST(Resume, NamesTheKeyThatDiffersAndBothValues) {
  const TemporaryFolder folder;
  run_saving(run_plan_of({}), folder.path());
  struct Case {
    const char *key, *value, *says;
  };
  for (const Case& c :
       {Case{"model.hidden", "64", "model.hidden = 32, the plan has model.hidden = 64"},
        Case{"model.vocab", "38", "model.vocab = 37, the plan has model.vocab = 38"},
        Case{"optimizer.kind", "sgd", "optimizer.kind = \"adamw\""},
        Case{"train.batch", "12", "train.batch = 24, now 12"},
        Case{"train.seed", "2", "train.seed = 1, now 2"},
        Case{"optimizer.lr", "0.5", "optimizer.lr = 0.01, now 0.5"},
        Case{"train.steps", "5", "is 6 steps far, and this run ends after step 5"}}) {
    Overrides o = {{"train.steps", "6"}, {"train.batch", "24"}};
    o.emplace_back(c.key, c.value);
    if (std::string(c.value) != "sgd") o.emplace_back("optimizer.epsilon", "0.01");
    const std::string message =
        message_of([&] { run_resumed(tests::small_plan(o), folder.path()); });
    EXPECT_NE(message.find(c.says), std::string::npos) << message;
  }
}

// Half of a cosine, then the other half: the rates are those of one run only under its horizon.
TEST(Resume, KeepsTheHorizonOfItsSchedule) {
  const Overrides cosine = {{"optimizer.schedule", "cosine"},
                            {"optimizer.schedule_steps", std::to_string(kRunSteps)}};
  const TemporaryFolder whole_folder, folder;
  const RankResult whole = run_saving(run_plan_of(cosine), whole_folder.path());
  const Overrides half = with(cosine, {{"train.steps", std::to_string(kSavedStep)}});
  run_saving(run_plan_of(half), folder.path());
  EXPECT_EQ(run_resumed(run_plan_of(cosine), folder.path()).losses, second_half(whole.losses));
}

TEST(Save, RefusesTheFolderOfAnotherRun) {
  const TemporaryFolder folder;
  run_saving(run_plan_of({}), folder.path());
  const std::string message = message_of([&] { run_saving(run_plan_of({}), folder.path()); });
  EXPECT_NE(message.find("--resume"), std::string::npos) << message;
}

TEST(Resume, OfAFinishedRunTrainsNothing) {
  const TemporaryFolder folder;
  const RankResult whole = run_saving(run_plan_of({}), folder.path());
  const RankResult again = run_resumed(run_plan_of({}), folder.path());
  EXPECT_EQ(again.resumed_from, kRunSteps);
  EXPECT_TRUE(again.losses.empty());
  EXPECT_EQ(again.validation_loss, whole.validation_loss);
}

}  // namespace
}  // namespace kuafu
