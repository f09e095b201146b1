// SPDX-License-Identifier: Apache-2.0
#include "kuafu/record/load.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <thread>
#include <vector>

namespace kuafu {
namespace {

using std::chrono::steady_clock;

/// A window of 2 s of a process on cores 0 and 1, which were busy for so long.
CpuWindow window_of(int64_t process, double own_s, double busy_0, double busy_1) {
  return {"host", process, 2.0, own_s, {0, 1}, {{0, busy_0}, {1, busy_1}, {2, 2.0}}};
}

TEST(Load, ReadsTheTimesOfEveryCore) {
  const auto times = core_times(
      "cpu  1 2 3 4 5 6 7 8 0 0\n"
      "cpu0 100 0 50 700 30 10 10 100 40 0\n"
      "cpu13 1 0 0 9\n"
      "intr 5\n");
  ASSERT_EQ(times.size(), 2U);
  EXPECT_DOUBLE_EQ(times.at(0).idle, 7.3);  // waiting for a disk is idle, stolen time is not
  EXPECT_DOUBLE_EQ(times.at(0).all, 10.0);  // guests are in user already
  EXPECT_DOUBLE_EQ(times.at(13).idle, 0.09);
  EXPECT_TRUE(core_times("").empty());
  EXPECT_TRUE(core_times("cpu  1 2 3 4\ncpux 1 2\n").empty());
}

TEST(Load, IsWhatTheCoresDidAndTheRunDidNot) {
  EXPECT_NEAR(*foreign_share({window_of(7, 3.0, 2.0, 1.8)}), (3.78 - 3.0) / 4, 1e-12);
  EXPECT_EQ(*foreign_share({window_of(7, 3.79, 2.0, 1.8)}), 0);  // within a tick a core
  EXPECT_EQ(*foreign_share({window_of(7, 4.0, 2.0, 1.8)}), 0);
}

TEST(Load, CountsAProcessOnceAndThoseOfOtherMachinesNotAtAll) {
  const CpuWindow mine = window_of(7, 1.0, 2.0, 2.0);
  EXPECT_EQ(foreign_share({mine, mine, mine}), foreign_share({mine}));  // ranks that are threads
  CpuWindow process = window_of(8, 1.0, 0, 0);
  EXPECT_NEAR(*foreign_share({mine, process}), (3.98 - 2.0) / 4, 1e-12);
  process.host = "another";
  EXPECT_EQ(foreign_share({mine, process}), foreign_share({mine}));
}

TEST(Load, IsOfAllCoresThatRanksAreBoundTo) {
  CpuWindow a = window_of(7, 1.0, 2.0, 1.0), b = window_of(8, 1.0, 0, 0);
  a.cores = {0};
  b.cores = {1};
  EXPECT_NEAR(*foreign_share({a, b}), (2.98 - 2.0) / 4, 1e-12);
  Json load = load_before(2, 1);
  add_windows(load, {a, b});
  EXPECT_EQ(load["cores"], 2);
  EXPECT_EQ(load["threads"], 2);
  EXPECT_EQ(load["oversubscription"], 1);
  EXPECT_EQ(load["window_s"], 2.0);
}

TEST(Load, IsNotKnownWhereTheSystemDoesNotTell) {
  CpuWindow silent = window_of(7, 1.0, 0, 0);
  silent.busy.clear();
  EXPECT_FALSE(foreign_share({silent}));
  EXPECT_FALSE(foreign_share({}));
  Json load = load_before(8, 2);
  EXPECT_TRUE(load["foreign_share"].is_null());
  add_windows(load, {silent});
  EXPECT_TRUE(load["foreign_share"].is_null());
  Json none = nullptr;  // of the simulated world
  add_windows(none, {silent});
  EXPECT_TRUE(none.is_null());
}

TEST(Load, TravelsAsJson) {
  const CpuWindow w = window_of(7, 1.0, 2.0, 1.0);
  const CpuWindow back = cpu_window_from(Json::parse(to_json(w).dump()));
  EXPECT_EQ(to_json(back), to_json(w));
  EXPECT_EQ(foreign_share({back}), foreign_share({w}));
}

TEST(Oversubscription, IsBusyThreadsACore) {
  EXPECT_EQ(oversubscription(4, 2), 2);
  EXPECT_EQ(oversubscription(1, 2), 0.5);
  EXPECT_EQ(first_oversubscribed(2), 3);
  EXPECT_EQ(first_oversubscribed(1), 2);
}

void burn(std::chrono::milliseconds time) {
  const auto end = steady_clock::now() + time;
  while (steady_clock::now() < end) {
  }
}

TEST(LoadMeter, TellsOthersFromThisProcess) {
  using std::chrono::milliseconds;
  const LoadMeter own;
  burn(milliseconds(200));
  const CpuWindow mine = own.window();
  EXPECT_GT(mine.seconds, 0.199);
  EXPECT_GT(mine.own_s, 0.02);  // others may want the core
  if (mine.busy.empty()) GTEST_SKIP() << "no /proc/stat here";

  const LoadMeter meter;
  std::vector<pid_t> others;
  for (size_t i = 0; i < mine.cores.size(); ++i) {
    const pid_t other = ::fork();
    if (other == 0) {
      burn(milliseconds(5000));
      ::_exit(0);
    }
    others.push_back(other);
  }
  std::this_thread::sleep_for(milliseconds(400));
  const CpuWindow theirs = meter.window();
  for (const pid_t other : others) {
    ::kill(other, SIGKILL);
    ::waitpid(other, nullptr, 0);
  }
  EXPECT_LT(theirs.own_s, 0.1);
  EXPECT_GT(foreign_share({theirs}), 0.5);
}

}  // namespace
}  // namespace kuafu
