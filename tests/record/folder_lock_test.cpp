// SPDX-License-Identifier: Apache-2.0
#include "kuafu/record/folder_lock.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include "kuafu/base/errors.h"
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

}  // namespace
}  // namespace kuafu
