// SPDX-License-Identifier: Apache-2.0
//
// Launchers that do not get their ranks to begin, or to meet: stand-ins for an mpirun whose folders
// have no room.

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "tests/app_worker/process.h"

namespace kuafu {
namespace {

using tests::Arguments;
using tests::Ran;

/// `kuafu run --world mpi` with this in mpirun's place.
Ran launched_by(const std::string& script, const Arguments& more = {}) {
  const tests::Folder folder;
  const std::string mpirun = folder.write("mpirun", "#!/bin/sh\n" + script + "\n");
  std::filesystem::permissions(mpirun, std::filesystem::perms::owner_all);
  Arguments words = {"--world", "mpi", "--ranks", "2", "--set", "parallel.data=2"};
  words.insert(words.end(), more.begin(), more.end());
  return tests::run_program("bin/kuafu", tests::kSmallPlan, words, {},
                            {{"PATH", folder.path(".") + ":" + std::getenv("PATH")}});
}

void expect_reason(const Ran& ran, const std::string& part) {
  const std::string reason = ran.document["reason"];
  EXPECT_NE(reason.find(part), std::string::npos) << reason;
  EXPECT_NE(ran.output.find(reason), std::string::npos) << ran.output;
}

// As many as the plan has, where nobody says how many; not hundreds unasked.
TEST(Launch, StartsTheRanksOfThePlan) {
  const auto asked = [](const std::string& ranks) {
    const tests::Folder folder;
    const std::string told = folder.path("told");
    const std::string mpirun =
        folder.write("mpirun", "#!/bin/sh\necho \"$@\" > " + told + "\nexit 1\n");
    std::filesystem::permissions(mpirun, std::filesystem::perms::owner_all);
    const Ran ran = tests::run_program(
        "bin/kuafu", tests::kSmallPlan,
        {"--world", "mpi", "--set", "parallel.data=" + ranks, "--set", "train.batch=128"}, {},
        {{"PATH", folder.path(".") + ":" + std::getenv("PATH")}});
    if (!std::filesystem::exists(told)) return ran.output;
    std::ifstream words(told);
    return std::string(std::istreambuf_iterator<char>(words), {});
  };
  EXPECT_NE(asked("2").find("-n 2 "), std::string::npos) << asked("2");
  EXPECT_NE(asked("128").find("say how many with --ranks N"), std::string::npos) << asked("128");
}

TEST(Launch, ThatBeginsNoRankEndsWithTheTimeOut) {
  const Ran ran = launched_by("exec sleep 1000", {"--timeout", "0.3"});
  EXPECT_EQ(ran.code, 5) << ran.output;
  EXPECT_EQ(ran.document["status"], "timeout");
  expect_reason(ran, "before a rank began; /dev/shm has ");
  EXPECT_LT(ran.seconds, 20);
}

TEST(Launch, WhoseRanksDoNotMeetSaysHowMuchRoomThereIs) {
  const Ran ran = launched_by("printf 01 1<>\"$KUAFU_RANKS_LISTEN\"; exit 1");
  EXPECT_EQ(ran.code, 1) << ran.output;
  EXPECT_EQ(ran.document["status"], "failed");
  expect_reason(ran, "mpirun ended with code 1 before its ranks met");
  expect_reason(ran, "; /dev/shm has ");
}

// The launcher does not end by SIGTERM either.
TEST(Launch, WhoseRanksNeverMeetEndsBehindTheTimeOut) {
  const Ran ran =
      launched_by("trap '' TERM; printf 01 1<>\"$KUAFU_RANKS_LISTEN\"; while :; do sleep 0.1; done",
                  {"--timeout", "0.1"});
  EXPECT_EQ(ran.code, 5) << ran.output;
  expect_reason(ran, "before its ranks met; /dev/shm has ");
  EXPECT_LT(ran.seconds, 30);
}

}  // namespace
}  // namespace kuafu
