// SPDX-License-Identifier: Apache-2.0
#include "kuafu/record/launch_folders.h"

#include <gtest/gtest.h>

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include "kuafu/base/errors.h"
#include "tests/record/support.h"

namespace kuafu {
namespace {

TEST(OwnedFolder, GoesWithItsObject) {
  const test::TemporaryFolder base;
  {
    const OwnedFolder folder(base.path());
    EXPECT_EQ(folder.path(), base / text("kuafu-run-", ::getpid()));
    std::ofstream(folder.path() + "/segment") << "bytes";
  }
  EXPECT_TRUE(test::names_in(base.path()).empty());
}

/// A process that owns a folder until it is killed.
pid_t start_owner(const std::string& base) {
  int ends[2];
  EXPECT_EQ(::pipe(ends), 0);
  const pid_t owner = ::fork();
  if (owner == 0) {
    const OwnedFolder folder(base);
    std::ofstream(folder.path() + "/segment") << "bytes";
    EXPECT_EQ(::write(ends[1], "x", 1), 1);
    while (true) ::pause();
  }
  char ready = 0;
  EXPECT_EQ(::read(ends[0], &ready, 1), 1);
  ::close(ends[0]);
  ::close(ends[1]);
  return owner;
}

TEST(OwnedFolder, OfAKilledProcessGoesWhenTheNextIsMadeAndOthersStay) {
  const test::TemporaryFolder base;
  std::filesystem::create_directories(base / "kuafu-run-of-another-kind");
  const pid_t killed = start_owner(base.path()), alive = start_owner(base.path());
  ::kill(killed, SIGKILL);
  ::waitpid(killed, nullptr, 0);
  EXPECT_TRUE(std::filesystem::exists(base / text("kuafu-run-", killed, "/segment")));
  { const OwnedFolder next(base.path()); }
  EXPECT_EQ(test::names_in(base.path()),
            (std::vector<std::string>{text("kuafu-run-", alive), text("kuafu-run-", alive, ".lock"),
                                      "kuafu-run-of-another-kind"}));
  ::kill(alive, SIGKILL);
  ::waitpid(alive, nullptr, 0);
}

// A launcher that was killed late: what it still writes keeps a folder from being removed.
TEST(OwnedFolder, GoesWhileSomebodyStillWritesIntoIt) {
  const test::TemporaryFolder base;
  std::thread writer;
  {
    const OwnedFolder folder(base.path());
    std::atomic<bool> is_there = false;
    writer = std::thread([path = folder.path(), &is_there] {
      auto end = std::chrono::steady_clock::now();
      for (int i = 0; i <= 1000 || std::chrono::steady_clock::now() < end; ++i) {
        std::ofstream(text(path, "/", i % 1000)) << "bytes";
        if (i != 1000) continue;
        end = std::chrono::steady_clock::now() + std::chrono::milliseconds(150);
        is_there = true;
      }
    });
    while (!is_there) std::this_thread::yield();
  }
  writer.join();
  EXPECT_TRUE(test::names_in(base.path()).empty());
}

TEST(OwnedFolder, WithoutALockGoesWhenTheNextIsMade) {
  const test::TemporaryFolder base;
  std::filesystem::create_directories(base / "kuafu-run-999999999");
  { const OwnedFolder next(base.path()); }
  EXPECT_TRUE(test::names_in(base.path()).empty());
}

TEST(LaunchFolders, TellOpenMpiUnlessSomebodyHas) {
  const char* variable = "OMPI_MCA_orte_tmpdir_base";
  ::unsetenv(variable);
  {
    const LaunchFolders folders;
    ASSERT_NE(std::getenv(variable), nullptr);
    EXPECT_TRUE(std::filesystem::is_directory(std::getenv(variable)));
  }
  EXPECT_EQ(std::getenv(variable), nullptr);
  ::setenv(variable, "/elsewhere", 1);
  { const LaunchFolders folders; }
  EXPECT_STREQ(std::getenv(variable), "/elsewhere");
  ::unsetenv(variable);
  ::setenv("SLURM_JOB_ID", "7", 1);
  {
    const LaunchFolders folders;
    EXPECT_EQ(std::getenv(variable), nullptr);
  }
  ::unsetenv("SLURM_JOB_ID");
}

}  // namespace
}  // namespace kuafu
