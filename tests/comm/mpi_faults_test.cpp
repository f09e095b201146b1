// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <sys/types.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>

namespace kuafu {
namespace {

struct Outcome {
  int status = 0;
  std::string output;
};

/// True once the process is gone or dead and not yet collected by its new parent; mpirun kills its
/// ranks and does not wait for them, so it may take a moment.
bool ends(pid_t pid) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(2);
  while (std::chrono::steady_clock::now() < deadline) {
    std::ifstream stat("/proc/" + std::to_string(pid) + "/stat");
    std::string line;
    if (!std::getline(stat, line)) return true;
    const size_t name_end = line.rfind(')');
    const char state = name_end + 2 < line.size() ? line[name_end + 2] : 'X';
    if (state == 'Z' || state == 'X') return true;
    std::this_thread::yield();
  }
  return false;
}

/// Runs the program that errs on three ranks, and checks what holds for every fault: the run fails,
/// within 5 s of the fault, and no process is left.
Outcome run(const std::string& how, const std::string& collectives = "own") {
  const std::string command = std::string(std::getenv("KUAFU_SOURCE_DIR")) +
                              "/scripts/mpirun.sh -n 3 " + std::getenv("KUAFU_BINARY_DIR") +
                              "/bin/mpi_fault_program " + how + " " + collectives + " 2>&1";
  Outcome outcome;
  FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) {
    ADD_FAILURE() << "cannot run " << command;
    return outcome;
  }
  char buffer[4096];
  for (size_t n = fread(buffer, 1, sizeof buffer, pipe); n > 0;
       n = fread(buffer, 1, sizeof buffer, pipe)) {
    outcome.output.append(buffer, n);
  }
  outcome.status = pclose(pipe);
  const auto now =
      std::chrono::system_clock::now().time_since_epoch() / std::chrono::milliseconds(1);
  EXPECT_NE(outcome.status, 0) << outcome.output;
  std::istringstream words(outcome.output);
  int num_processes = 0;
  for (std::string word; words >> word;) {
    if (word == "pid") {
      pid_t pid = 0;
      words >> pid;
      ++num_processes;
      EXPECT_TRUE(ends(pid)) << "process " << pid << " is left";
    }
    if (word == "time") {
      int64_t fault = 0;
      words >> fault;
      EXPECT_LT(now - fault, 5000) << outcome.output;
    }
  }
  EXPECT_EQ(num_processes, 3) << outcome.output;
  return outcome;
}

void expect_contains(const Outcome& outcome, std::initializer_list<const char*> parts) {
  for (const char* part : parts) {
    EXPECT_NE(outcome.output.find(part), std::string::npos)
        << "\"" << part << "\" is not in: " << outcome.output;
  }
}

int count(const std::string& text, const std::string& part) {
  int n = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
  return n;
}

TEST(MpiFaults, ThrownErrorNamesItsRankOnce) {
  const Outcome outcome = run("throw");
  EXPECT_EQ(count(outcome.output, "kuafu: rank 1: one is wrong"), 1) << outcome.output;
  EXPECT_EQ(count(outcome.output, "kuafu: rank"), 1) << outcome.output;
}

TEST(MpiFaults, ErrorOfAllRanksIsPrintedOnce) {
  const Outcome outcome = run("throw_everywhere");
  EXPECT_EQ(count(outcome.output, "all are wrong"), 1) << outcome.output;
}

TEST(MpiFaults, ErrorWithWorkUnderWayIsTheOneReported) {
  expect_contains(run("throw_with_work"), {"kuafu: rank 1: one is wrong"});
}

TEST(MpiFaults, ExitAndKillLeaveNoProcess) {
  run("exit");
  run("kill");
}

TEST(MpiFaults, EarlyReturnNamesBothCalls) {
  // Rank 0 or 2, whichever waits first.
  expect_contains(run("return"), {"call 1 of group 'data'", " called all_reduce(f32 x 20, sum)",
                                  "rank 1 has left the group after its call 0"});
}

TEST(MpiFaults, SkippedCollectiveNamesBothCalls) {
  expect_contains(run("skip"),
                  {"call 1 of group 'data'", "barrier()", "all_reduce(f32 x 10, sum)"});
  expect_contains(run("skip", "native"), {"call 1 of group 'data'", "barrier()"});
}

TEST(MpiFaults, SkippedRepetitionIsFound) {
  expect_contains(run("shift"), {"call 1 of group 'data'", "all_reduce(f32 x 20, sum)",
                                 "all_reduce(f32 x 10, sum)"});
}

TEST(MpiFaults, SwappedVerbsNameBothCalls) {
  for (const char* collectives : {"own", "native"}) {
    expect_contains(run("swap", collectives),
                    {"rank 1 called broadcast(f32 x 1, root 0)", "all_reduce(f32 x 20, sum)"});
  }
}

TEST(MpiFaults, DifferentCountsNameBothCalls) {
  expect_contains(run("count"), {"all_reduce(f32 x 11, sum)", "all_reduce(f32 x 10, sum)"});
  expect_contains(run("large_count"),
                  {"all_reduce(f32 x 300000, sum)", "all_reduce(f32 x 200000, sum)"});
}

TEST(MpiFaults, CircularWaitOverTwoGroupsPrintsTheTable) {
  expect_contains(run("two_groups"), {"every rank waits or has returned", "rank 0: waits in",
                                      "group 'data'", "rank 1: waits in", "group 'tensor'"});
}

TEST(MpiFaults, ReceiveWithoutSenderPrintsTheTable) {
  expect_contains(run("receive"), {"rank 1: waits in recv(f32 x 1, from 0, tag 4)"});
}

}  // namespace
}  // namespace kuafu
