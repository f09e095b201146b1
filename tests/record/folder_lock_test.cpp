// SPDX-License-Identifier: Apache-2.0
#include "kuafu/record/folder_lock.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "kuafu/base/errors.h"
#include "kuafu/record/file_claim.h"
#include "tests/record/support.h"

namespace kuafu {
namespace {

using namespace std::chrono_literals;

TEST(FolderLock, RefusesASecondRunnerAndNamesTheFirst) {
  const test::TemporaryFolder folder;
  const FolderLock first(folder.path());
  EXPECT_EQ(first.note(), "");
  try {
    const FolderLock second(folder.path(), 0ms);
    FAIL() << "two locks on one folder";
  } catch (const ConfigError& error) {
    EXPECT_NE(std::string(error.what()).find(text("process ", ::getpid())), std::string::npos)
        << error.what();
    EXPECT_NE(std::string(error.what()).find("--out"), std::string::npos);
  }
}

TEST(FolderLock, IsFreeAgainWhenItsOwnerEnds) {
  const test::TemporaryFolder folder;
  { const FolderLock first(folder.path()); }
  EXPECT_NO_THROW(FolderLock(folder.path(), 0ms));
}

TEST(FolderLock, LeavesNoFileBehind) {
  const test::TemporaryFolder folder;
  {
    const FolderLock first(folder.path());
    EXPECT_EQ(test::names_in(folder.path()), std::vector<std::string>{"lock"});
    EXPECT_THROW(FolderLock(folder.path(), 0ms), ConfigError);
    EXPECT_EQ(test::names_in(folder.path()), std::vector<std::string>{"lock"});
  }
  EXPECT_TRUE(test::names_in(folder.path()).empty());
}

TEST(FolderLock, IsTakenByOneOfThoseThatWaitedForItsOwner) {
  const test::TemporaryFolder folder;
  auto first = std::make_unique<FolderLock>(folder.path());
  std::atomic<int> holders{0}, most{0}, done{0};
  std::vector<std::thread> waiting;
  for (int i = 0; i < 4; ++i) {
    waiting.emplace_back([&] {
      const FolderLock lock(folder.path(), 10s);
      most = std::max(most.load(), ++holders);
      std::this_thread::sleep_for(1ms);
      --holders;
      ++done;
    });
  }
  first.reset();
  for (std::thread& thread : waiting) thread.join();
  EXPECT_EQ(done, 4);
  EXPECT_EQ(most, 1);
}

TEST(FileClaim, IsOfTheFileHoweverItIsCalled) {
  const test::TemporaryFolder folder;
  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::create_directories(folder / "a");
  std::filesystem::create_directories(folder / "b");
  std::filesystem::current_path(folder / "a");
  const FileClaim mine("--json", "made.json");  // which is not there yet
  for (const std::string& name :
       {std::string("./made.json"), folder / "a/made.json", folder / "b/../a/made.json"}) {
    EXPECT_THROW(FileClaim("--json", name), ConfigError) << name;
  }
  std::filesystem::current_path(folder / "b");
  EXPECT_NO_THROW(FileClaim("--json", "made.json"));
  EXPECT_NO_THROW(FileClaim("--json", "/dev/null"));
  std::filesystem::current_path(before);
}

}  // namespace
}  // namespace kuafu
