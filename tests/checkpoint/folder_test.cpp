// SPDX-License-Identifier: Apache-2.0
#include "kuafu/checkpoint/folder.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "kuafu/base/errors.h"
#include "kuafu/checkpoint/index.h"
#include "tests/record/support.h"

namespace kuafu {
namespace {

namespace fs = std::filesystem;

class CheckpointFolder : public testing::Test {
 protected:
  /// What looks complete from outside.
  void save(int64_t step) const {
    fs::create_directories(folder(step));
    std::ofstream(folder(step) + "/" + kIndexFile) << "{}";
  }
  std::string folder(int64_t step) const { return root_ / step_folder(step); }
  std::vector<int64_t> steps() const {
    std::vector<int64_t> steps;
    for (const std::string& folder : complete_checkpoints(root_.path()))
      steps.push_back(*step_of_folder(folder));
    return steps;
  }

  test::TemporaryFolder root_;
};

using Steps = std::vector<int64_t>;

TEST_F(CheckpointFolder, KeepsTheNewestTheBestAndTheNewestThatIsSound) {
  for (const int64_t step : {1, 2, 3, 4, 5, 6}) save(step);
  name_best(root_.path(), 2);
  remove_checkpoints(root_.path(), {.keep = 1, .sound = 4});
  EXPECT_EQ(steps(), (Steps{6, 4, 2}));
  remove_checkpoints(root_.path(), {.keep = 1, .sound = 6});
  EXPECT_EQ(steps(), (Steps{6, 2}));
  save(7);
  name_best(root_.path(), 7);
  remove_checkpoints(root_.path(), {.keep = 1});
  EXPECT_EQ(steps(), (Steps{7}));
}

TEST_F(CheckpointFolder, BestLeadsToWholeCheckpointsOfTheFolderAlone) {
  EXPECT_FALSE(best_checkpoint(root_.path()).has_value());
  save(3);
  name_best(root_.path(), 3);
  EXPECT_EQ(best_checkpoint(root_.path()), folder(3));
  EXPECT_EQ(steps(), (Steps{3})) << "the link is no checkpoint of its own";
  name_best(root_.path(), 4);  // which is not there
  EXPECT_FALSE(best_checkpoint(root_.path()).has_value());
  const test::TemporaryFolder other;
  fs::create_directories(other / step_folder(3));
  std::ofstream(other / step_folder(3) + "/" + kIndexFile) << "{}";
  fs::remove(root_ / kBestLink);
  fs::create_symlink(other / step_folder(3), root_ / kBestLink);
  EXPECT_FALSE(best_checkpoint(root_.path()).has_value());
}

TEST_F(CheckpointFolder, WhatIsSetAsideIsNoCheckpoint) {
  save(3);
  save(4);
  EXPECT_EQ(set_aside(root_.path(), 4), folder(4) + ".diverged");
  EXPECT_EQ(steps(), (Steps{3}));
  save(4);
  EXPECT_EQ(set_aside(root_.path(), 4), folder(4) + ".diverged");  // the one before makes room
  EXPECT_EQ(set_aside(root_.path(), 9), "");
}

TEST_F(CheckpointFolder, IsNamedByItsStepByBestOrByItself) {
  save(3);
  save(4);
  name_best(root_.path(), 3);
  EXPECT_EQ(named_checkpoint(root_.path()), folder(4));
  EXPECT_EQ(named_checkpoint(root_.path() + "/"), folder(4));
  EXPECT_EQ(named_checkpoint(root_ / kBestLink), folder(3));
  EXPECT_EQ(named_checkpoint(folder(3) + "/"), folder(3));
}

TEST_F(CheckpointFolder, AWrongNameIsToldWithWhatIsThere) {
  const auto message = [](const std::string& given) -> std::string {
    try {
      return named_checkpoint(given);
    } catch (const ConfigError& e) {
      return e.what();
    }
  };
  const auto expect = [&](const std::string& given, const char* part) {
    EXPECT_NE(message(given).find(part), std::string::npos) << message(given);
  };
  expect(root_ / "nothing", "is no folder");
  expect(root_.path(), "holds no complete checkpoint: it has no folder such as step-00000100");
  expect(root_ / kBestLink, "a run makes it with --checkpoint and train.validate_every");
  save(3);
  fs::create_symlink("/etc", root_ / kBestLink);
  expect(root_ / kBestLink, "leads to /etc, which is no complete checkpoint beside it");
}

}  // namespace
}  // namespace kuafu
