// SPDX-License-Identifier: Apache-2.0
//
// `kuafu run` with a rank that goes wrong in the middle of a step, on threads and under mpirun: the
// whole run ends soon, with the first cause, and leaves nobody behind.

#include <gtest/gtest.h>

#include <signal.h>
#include <unistd.h>

#include <cstdlib>

#include "kuafu/base/build_info.h"
#include "kuafu/base/errors.h"
#include "kuafu/record/schema.h"
#include "tests/app_worker/process.h"

namespace kuafu {
namespace {

using tests::Arguments;
using tests::built;
using tests::Ran;

struct World {
  const char* name;
  bool is_mpi;
};
std::ostream& operator<<(std::ostream& out, const World& w) { return out << w.name; }

std::vector<World> worlds() {
  std::vector<World> all = {{"threads", false}};
  if (build_info::kMpi.found) all.push_back({"mpi", true});
  return all;
}

constexpr const char* kMark = "KUAFU_TEST_MARK";

class Fault : public testing::TestWithParam<World> {
 protected:
  /// kSmallPlan on three ranks of a scheme of tests/plugin/faults.cpp, by `kuafu run`; checks what
  /// holds for every fault.
  Ran run(const std::string& mode, const Arguments& options = {},
          const std::string& status = "failed") {
    Arguments more = {"--plugin", tests::built("plugins/faults.so")};
    more.insert(more.end(), options.begin(), options.end());
    for (const char* pair : {"model.hidden=48", "model.heads=6", "parallel.tensor.size=3"}) {
      more.insert(more.end(), {"--set", pair});
    }
    more.insert(more.end(), {"--set", "parallel.tensor.mode=" + mode});
    const Arguments launcher = GetParam().is_mpi ? tests::mpirun(3) : Arguments{};
    const std::string mark = mode + std::to_string(::getpid());
    const Ran ran =
        tests::run_program("bin/kuafu", tests::kSmallPlan, more, launcher, {{kMark, mark}});
    EXPECT_NE(ran.code, 0) << ran.output;
    EXPECT_LT(milliseconds_since(ran.output), 5000) << ran.output;
    EXPECT_TRUE(tests::eventually([&] { return tests::processes_with(kMark, mark).empty(); },
                                  std::chrono::seconds(2)))
        << "a process is left";
    EXPECT_EQ(value_at(ran.document, "status"), status) << ran.output;
    for (const std::string& problem : document_problems(ran.document)) ADD_FAILURE() << problem;
    return ran;
  }

  /// From the moment the rank went wrong, which it printed, to now.
  static int64_t milliseconds_since(const std::string& output) {
    const std::string lines = "\n" + output, mark = "\ntime ";
    const size_t at = lines.find(mark);
    EXPECT_NE(at, std::string::npos) << "the fault never came: " << output;
    if (at == std::string::npos) return 0;
    const auto now = std::chrono::system_clock::now().time_since_epoch();
    return now / std::chrono::milliseconds(1) - std::atoll(lines.c_str() + at + mark.size());
  }

  /// What was made before the second step, in which ranks go wrong.
  static void expect_first_step(const Json& document) {
    EXPECT_EQ(value_at(document, "loss").size(), 1u) << document.dump();
    EXPECT_GT(value_at(document, "loss.first"), 0);
    EXPECT_EQ(value_at(document, "step_time_s.samples").size(), 1u);
    EXPECT_TRUE(unknown_fields(document).empty());
  }

  static void expect_cause(const Ran& ran, const std::string& cause) {
    EXPECT_NE(ran.output.find(cause), std::string::npos) << ran.output;
    const std::string reason = ran.document.value("reason", "");
    EXPECT_NE(reason.find(cause), std::string::npos) << reason;
  }
};

TEST_P(Fault, ExceptionOfARankIsTheReason) {
  const Ran ran = run("1d-throw", {"--set", "train.validate_every=1"});
  expect_cause(ran, "rank 1: parallel.tensor.mode = \"1d-throw\", a plug-in's: block 'blocks.");
  expect_cause(ran, " threw: the scheme gives up");
  expect_first_step(ran.document);
}

// No step ends, so that the run is ended in the middle of one.
TEST_P(Fault, HangOfARankEndsByTheClockWithTheStepsMade) {
  if (GetParam().is_mpi) GTEST_SKIP() << "the same clock";
  const Ran ran = run("1d-hang", {"--timeout", "1.2"}, "timeout");
  expect_cause(ran, "took longer than 1.2 s");
  EXPECT_EQ(ran.code, 5);
  expect_first_step(ran.document);
}

TEST_P(Fault, ExitOfARankIsTheReason) {
  const Ran ran = run("1d-exit");
  expect_cause(ran, "rank 1 called exit(3) in the middle of the run");
  EXPECT_EQ(ran.code, 1) << "the code must not be one with another meaning";
}

TEST_P(Fault, ImmediateExitOfARankIsTheReason) {
  expect_cause(run("1d-exit-at-once"), "rank 1 called _exit(0) in the middle of the run");
  expect_cause(run("1d-exit-in-c"), "rank 1 called _Exit(0) in the middle of the run");
}

TEST_P(Fault, SignalThatEndedARankIsTheReason) {
  const Ran crashed = run("1d-crash");
  expect_cause(crashed, "was killed by signal 6");
  EXPECT_NE(crashed.output.find(text("(SIGABRT, a call of abort()) in the middle of: ",
                                     GetParam().is_mpi ? "rank 1, " : "", "step 2 of 3; plug-ins ",
                                     "given: ", built("plugins/faults.so"), "\n")),
            std::string::npos)
      << crashed.output;
  const Ran killed = run("1d-kill");
  expect_cause(killed, "was killed by signal 9");
  if (GetParam().is_mpi) expect_cause(killed, "rank 1");
}

// The first step was saved; the rank dies in the second.
TEST_P(Fault, KilledInAnyPhaseTheRunGoesOnFromItsCheckpoint) {
  for (const char* phase : {"1d-kill", "1d-kill-backward", "1d-kill-update"}) {
    const tests::Folder folder;
    const Arguments saving = {"--checkpoint", folder.path("saved"), "--every", "1"};
    const Ran killed = run(phase, saving);
    expect_cause(killed, "was killed by signal 9");
    if (GetParam().is_mpi) expect_cause(killed, "rank 1");
    Arguments more = {"--resume",
                      "--set",
                      "parallel.tensor.mode=1d",
                      "--set",
                      "parallel.tensor.size=3",
                      "--set",
                      "model.hidden=48",
                      "--set",
                      "model.heads=6"};
    more.insert(more.end(), saving.begin(), saving.end());
    const Ran resumed = tests::run_program("bin/kuafu", tests::kSmallPlan, more,
                                           GetParam().is_mpi ? tests::mpirun(3) : Arguments{}, {});
    EXPECT_EQ(resumed.code, 0) << resumed.output;
    EXPECT_EQ(resumed.document["resumed_from"], 1) << phase;
  }
}

// The run is done by then: its numbers stand, without a proof.
TEST_P(Fault, WhileCertifyingCostsNoResults) {
  for (const auto& [mode, cause] : std::vector<std::pair<std::string, std::string>>{
           {"1d-throw-certifying", " threw: the scheme gives up"},
           {"1d-exit-certifying", "rank 1 "},
           {"1d-kill-certifying", ""}}) {
    Arguments more = {"--certify", "--plugin", tests::built("plugins/faults.so")};
    for (const std::string& pair :
         {std::string("model.hidden=48"), std::string("model.heads=6"),
          std::string("parallel.tensor.size=3"), "parallel.tensor.mode=" + mode}) {
      more.insert(more.end(), {"--set", pair});
    }
    const Arguments launcher = GetParam().is_mpi ? tests::mpirun(3) : Arguments{};
    const Ran ran = tests::run_program("bin/kuafu", tests::kSmallPlan, more, launcher, {});
    EXPECT_LT(milliseconds_since(ran.output), 5000) << ran.output;
    for (const std::string& problem : document_problems(ran.document)) ADD_FAILURE() << problem;
    EXPECT_EQ(value_at(ran.document, "status"), "ok") << mode << ran.output;
    EXPECT_EQ(ran.document["loss"].size(), 3u) << mode;
    EXPECT_EQ(ran.document["certificate"]["verdict"], "not_run") << mode;
    const std::string reason = ran.document["certificate"].value("reason", "");
    EXPECT_EQ(reason.find(kCutShort), 0u) << mode << reason;
    EXPECT_NE(reason.find(cause), std::string::npos) << mode << reason;
    // A launcher ends with the rank that it lost.
    if (!GetParam().is_mpi) {
      EXPECT_EQ(ran.code, 0) << mode << ran.output;
      EXPECT_NE(ran.output.find("\n  loss  "), std::string::npos) << mode << ran.output;
    }
  }
}

// What is found different before its twin ends the process stays so.
TEST_P(Fault, OfARefutedRunTakesNothingBack) {
  for (const std::string mode : {"1d-throw-twin", "1d-exit-at-once-twin", "1d-kill-twin"}) {
    Arguments more = {"--certify", "--plugin", tests::built("plugins/faults.so")};
    for (const std::string& pair :
         {std::string("model.hidden=24"), std::string("model.heads=3"),
          std::string("model.layers=1"), std::string("train.steps=1"),
          std::string("parallel.tensor.size=3"), "parallel.tensor.mode=" + mode}) {
      more.insert(more.end(), {"--set", pair});
    }
    const Arguments launcher = GetParam().is_mpi ? tests::mpirun(3) : Arguments{};
    const Ran ran = tests::run_program("bin/kuafu", tests::kSmallPlan, more, launcher, {});
    for (const std::string& problem : document_problems(ran.document)) ADD_FAILURE() << problem;
    EXPECT_EQ(value_at(ran.document, "status"), "ok") << mode << ran.output;
    EXPECT_EQ(ran.document["certificate"]["verdict"], "different") << mode << ran.output;
    EXPECT_EQ(ran.document["certificate"]["native"]["verdict"], "different") << mode;
    EXPECT_NE(ran.output.find("kuafu: different: "), std::string::npos) << mode << ran.output;
    EXPECT_NE(ran.code, 0) << mode << ran.output;  // a launcher ends as the rank that it lost
    EXPECT_TRUE(GetParam().is_mpi || ran.code == 1) << ran.code << mode << ran.output;
  }
}

TEST_P(Fault, ASignalWhileCertifyingCostsNoResults) {
  const tests::Folder folder;
  const std::string json = folder.path("a.json");
  for (const Arguments& output : {Arguments{}, Arguments{"--json", json}}) {
    Arguments words = {tests::built("bin/kuafu"),
                       "run",
                       folder.write("plan.toml", tests::kSmallPlan),
                       "--world",
                       GetParam().name,
                       "--ranks",
                       "3",
                       "--certify",
                       "--plugin",
                       tests::built("plugins/faults.so")};
    words.insert(words.end(), output.begin(), output.end());
    words = tests::set({"model.hidden=48", "model.heads=6", "parallel.tensor.size=3",
                        "parallel.tensor.mode=1d-hang-certifying"},
                       words);
    tests::Child child(words);
    const auto is_hanging = [&] { return child.output().find("time ") != std::string::npos; };
    ASSERT_TRUE(tests::eventually(is_hanging, std::chrono::seconds(60))) << child.output();
    ::kill(child.pid(), SIGTERM);
    const tests::Ended ended = child.wait(std::chrono::seconds(20));
    EXPECT_EQ(ended.code, 0) << ended.output;
    EXPECT_NE(ended.output.find("\n  loss  "), std::string::npos) << ended.output;
    EXPECT_NE(ended.output.find(kCutShort), std::string::npos) << ended.output;
  }
  const Json d = Json::parse(tests::content_of(json));
  EXPECT_EQ(d["status"], "ok");
  EXPECT_EQ(d["loss"].size(), 3u);
  const std::string reason = d["certificate"].value("reason", "");
  EXPECT_EQ(reason.find(kCutShort), 0u) << reason;
  EXPECT_NE(reason.find("signal 15 (Terminated)"), std::string::npos) << reason;
}

// Where the machine is too slow to be done with the steps in that time, it gets more.
TEST_P(Fault, StopAfterEndsACertificateThatHangs) {
  const tests::Folder folder;
  const std::string json = folder.path("a.json");
  tests::Ended ended;
  std::string after;
  for (const char* given : {"2s", "8s", "32s"}) {
    after = given;
    const Arguments words = {tests::built("bin/kuafu"),
                             "run",
                             folder.write("plan.toml", tests::kSmallPlan),
                             "--world",
                             GetParam().name,
                             "--ranks",
                             "3",
                             "--certify",
                             "--stop-after",
                             after,
                             "--json",
                             json,
                             "--plugin",
                             tests::built("plugins/faults.so")};
    tests::Child child(tests::set({"model.hidden=48", "model.heads=6", "parallel.tensor.size=3",
                                   "parallel.tensor.mode=1d-hang-certifying"},
                                  words));
    ended = child.wait(std::chrono::seconds(90));
    if (ended.code == 0) break;
  }
  EXPECT_EQ(ended.code, 0) << ended.output;
  const size_t summary = ended.output.find("\n  loss  ");
  EXPECT_NE(summary, std::string::npos) << ended.output;
  EXPECT_EQ(ended.output.find("\n  loss  ", summary + 1), std::string::npos) << ended.output;
  const Json d = Json::parse(tests::content_of(json));
  EXPECT_EQ(d["status"], "ok");
  EXPECT_EQ(d["loss"].size(), 3u);
  EXPECT_EQ(d["certificate"]["verdict"], "not_run");
  after.insert(after.size() - 1, " ");
  EXPECT_EQ(d["certificate"]["reason"], std::string(kCutShort) + ": --stop-after " + after);
}

TEST_P(Fault, SkippedCollectiveNamesBothCalls) {
  const Ran ran = run("1d-skip");
  expect_cause(ran, "of group 'tensor'");
  expect_cause(ran, "rank 1 called ");
  expect_cause(ran, "called all_reduce(");
}

INSTANTIATE_TEST_SUITE_P(Worlds, Fault, testing::ValuesIn(worlds()),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace kuafu
