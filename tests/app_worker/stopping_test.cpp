// SPDX-License-Identifier: Apache-2.0
//
// Training that is watched and stopped: whatever ends it, what it measured is written, its state is
// saved, and it goes on to the same bits.

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <signal.h>

#include <filesystem>
#include <thread>

#include "kuafu/base/build_info.h"
#include "kuafu/record/schema.h"
#include "tests/app_worker/process.h"

namespace kuafu {
namespace {

using tests::Arguments;
using tests::content_of;
using tests::Ended;
using tests::lines_of;
using tests::Ran;
using tests::run_front;

constexpr int kOk = 0, kFailed = 1, kUsage = 2, kTimeout = 5, kDiverged = 6, kUnwritten = 7,
              kInterrupted = 130;
/// More steps than any test waits for.
constexpr const char* kMany = "50000000";

Json document_in(const std::string& file) {
  const Json d = Json::parse(content_of(file), nullptr, false);
  EXPECT_FALSE(d.is_discarded()) << file;
  for (const std::string& problem : document_problems(d)) ADD_FAILURE() << problem;
  for (const std::string& field : unknown_fields(d))
    ADD_FAILURE() << "docs/record.md lacks " << field;
  return d;
}

class Stopping : public testing::TestWithParam<const char*> {
 protected:
  /// kSmallPlan on two replicas in the test's world.
  Arguments command(const std::string& steps, Arguments more) const {
    Arguments words = {tests::built("bin/kuafu"),
                       "run",
                       folder_.write("plan.toml", tests::kSmallPlan),
                       "--world",
                       GetParam(),
                       "--ranks",
                       "2",
                       "--steps",
                       steps,
                       "--set",
                       "parallel.data=2",
                       "--set",
                       "optimizer.schedule=cosine",
                       "--set",
                       std::string("optimizer.schedule_steps=") + kMany};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  Json document(const std::string& name) const { return document_in(folder_.path(name)); }
  std::string saved() const { return folder_.path("saved"); }
  /// SIGUSR1, once it has made some steps.
  bool saves_when_asked(const tests::Child& child) const {
    if (!tests::eventually([&] { return has_logged(); }, std::chrono::seconds(60))) return false;
    ::kill(child.pid(), SIGUSR1);
    const auto has_told = [&] {
      return child.output().find(", as a signal asked") != std::string::npos;
    };
    return tests::eventually(has_told, std::chrono::seconds(20));
  }
  bool has_logged() const { return lines_of(folder_.path("log.csv")).size() > 5; }
  int64_t num_saved() const {
    int64_t count = 0;
    if (!std::filesystem::exists(saved())) return 0;
    for (const auto& entry : std::filesystem::directory_iterator(saved())) {
      if (std::filesystem::exists(entry.path() / "index.json")) ++count;
    }
    return count;
  }

  tests::Folder folder_;
};

TEST_P(Stopping, BySignalSavesAndGoesOnToTheSameBits) {
  tests::Child child(command(kMany, {"--checkpoint", saved(), "--json", folder_.path("a.json"),
                                     "--log", folder_.path("log.csv")}));
  ASSERT_TRUE(saves_when_asked(child)) << child.output();
  EXPECT_GE(num_saved(), 1);
  ::kill(child.pid(), SIGTERM);
  const Ended ended = child.wait();
  EXPECT_EQ(ended.code, kInterrupted) << ended.output;
  const Json a = document("a.json");
  EXPECT_EQ(a["status"], "interrupted");
  const auto done = static_cast<int64_t>(a["loss"].size());
  EXPECT_EQ(a["reason"].get<std::string>().find("signal 15 (Terminated): ended after step "), 0u)
      << a["reason"];
  EXPECT_NE(a["reason"].get<std::string>().find("after step " + std::to_string(done) + " of"),
            std::string::npos)
      << a["reason"];
  EXPECT_GE(num_saved(), 2);
  EXPECT_EQ(lines_of(folder_.path("log.csv")).size(), static_cast<size_t>(done) + 1);

  const std::string end = std::to_string(done + 4);
  tests::Child more(command(end, {"--checkpoint", saved(), "--resume", "--json",
                                  folder_.path("b.json"), "--log", folder_.path("log.csv")}));
  const Ended went_on = more.wait();
  ASSERT_EQ(went_on.code, kOk) << went_on.output;
  tests::Child at_once(command(end, {"--json", folder_.path("c.json")}));
  const Ended whole = at_once.wait();
  ASSERT_EQ(whole.code, kOk) << whole.output;
  Json losses = a["loss"];
  const Json b = document("b.json");
  for (const Json& loss : b["loss"]) losses.push_back(loss);
  EXPECT_EQ(losses, document("c.json")["loss"]);
  EXPECT_EQ(lines_of(folder_.path("log.csv")).size(), static_cast<size_t>(done) + 5);
}

// A terminal and `timeout` tell the front and its worker, and the front tells the worker again.
TEST_P(Stopping, BySignalToItsGroupSaves) {
  tests::Child child(command(kMany, {"--checkpoint", saved(), "--json", folder_.path("a.json"),
                                     "--log", folder_.path("log.csv")}));
  ASSERT_TRUE(tests::eventually([&] { return has_logged(); }, std::chrono::seconds(60)))
      << child.output();
  ::kill(child.pid(), SIGTERM);
  ::kill(-child.pid(), SIGTERM);
  const Ended ended = child.wait();
  EXPECT_EQ(ended.code, kInterrupted) << ended.output;
  EXPECT_EQ(document("a.json")["status"], "interrupted");
  EXPECT_EQ(num_saved(), 2);  // after the first step too
}

// Its reader is gone before the certificate is printed (`| head`): the record has it all the same.
TEST_P(Stopping, ByNobodyWhereItsReaderIsGone) {
  const std::string json = folder_.path("a.json"), err = folder_.path("err");
  std::string line = "exec 2>" + err + "; ";
  for (const std::string& word : command("3", {"--certify", "--json", json})) {
    line += "'" + word + "' ";
  }
  const Ended ended = tests::Child({"bash", "-c", line + "| true; exit ${PIPESTATUS[0]}"}).wait();
  EXPECT_EQ(ended.code, kUnwritten) << content_of(err);
  EXPECT_EQ(document_in(json)["certificate"]["verdict"], "equal");
}

// Without a document nothing but the worker's own words tells the front that it has told.
TEST_P(Stopping, IsToldOnce) {
  tests::Child child(command(kMany, {"--log", folder_.path("log.csv")}));
  ASSERT_TRUE(tests::eventually([&] { return has_logged(); }, std::chrono::seconds(60)))
      << child.output();
  ::kill(child.pid(), SIGINT);
  const Ended ended = child.wait();
  EXPECT_EQ(ended.code, kInterrupted) << ended.output;
  const size_t first =
      ended.output.find("kuafu: interrupted: signal 2 (Interrupt): ended after step ");
  ASSERT_NE(first, std::string::npos) << ended.output;
  EXPECT_EQ(ended.output.find("kuafu: interrupted", first + 1), std::string::npos) << ended.output;
}

TEST_P(Stopping, WhileItValidatesIsWrittenAndSaved) {
  tests::Child child(command("3", {"--checkpoint", saved(), "--json", folder_.path("a.json"),
                                   "--set", "train.validation_batches=1000000"}));
  ASSERT_TRUE(tests::eventually([&] { return num_saved() == 2; }, std::chrono::seconds(60)))
      << child.output();
  ::kill(child.pid(), SIGTERM);
  const Ended ended = child.wait(std::chrono::seconds(20));
  EXPECT_EQ(ended.code, kInterrupted) << ended.output;
  const Json d = document("a.json");
  EXPECT_EQ(d["status"], "interrupted");
  EXPECT_EQ(d["loss"].size(), 3u);
  EXPECT_TRUE(d["validation_loss"].is_null());
  EXPECT_NE(d["reason"].get<std::string>().find("after step 3 of 3; saved in"), std::string::npos)
      << d["reason"];
}

// Before the first step there is nothing to save, and nothing to die of.
TEST_P(Stopping, AskedToSaveBeforeItListensItGoesOn) {
  const std::string mark = folder_.path("mark");
  tests::Child child(
      command("3", {"--json", folder_.path("a.json"), "--log", folder_.path("log.csv")}),
      {{"KUAFU_TEST_MARK", mark}});
  const auto asked = [&] {
    if (tests::processes_with("KUAFU_TEST_MARK", mark).size() > 1) ::kill(child.pid(), SIGUSR1);
    return std::filesystem::exists(folder_.path("a.json"));
  };
  EXPECT_TRUE(tests::eventually(asked, std::chrono::seconds(60)));
  const Ended ended = child.wait();
  EXPECT_EQ(ended.code, kOk) << ended.output;
  EXPECT_EQ(document("a.json")["status"], "ok");
}

TEST_P(Stopping, ByTimeIsWrittenAndSaved) {
  tests::Child child(command(
      kMany, {"--checkpoint", saved(), "--json", folder_.path("a.json"), "--timeout", "2"}));
  const Ended ended = child.wait();
  EXPECT_EQ(ended.code, kTimeout) << ended.output;
  const Json d = document("a.json");
  EXPECT_EQ(d["status"], "timeout");
  EXPECT_GT(d["loss"].size(), 0u);
  EXPECT_EQ(num_saved(), 2);  // after the first step too
}

std::vector<const char*> worlds() {
  if (build_info::kMpi.found) return {"threads", "mpi"};
  return {"threads"};
}

// Its workers are in different steps: they meet to be saved, and to be ended.
TEST_P(Stopping, OfAStaleRunSavesWhatGoesOn) {
  const Arguments stale = {"--set",        "parallel.data.mode=parameter_server",
                           "--set",        "parallel.data.staleness=1",
                           "--set",        "optimizer.clip=0",
                           "--checkpoint", saved()};
  const auto with = [&](Arguments more) {
    more.insert(more.begin(), stale.begin(), stale.end());
    return command(kMany, more);
  };
  tests::Child child(with({"--json", folder_.path("a.json"), "--log", folder_.path("log.csv")}));
  ASSERT_TRUE(saves_when_asked(child)) << child.output();
  ::kill(child.pid(), SIGTERM);
  const Ended ended = child.wait(std::chrono::seconds(20));
  EXPECT_EQ(ended.code, kInterrupted) << ended.output;
  const Json a = document("a.json");
  EXPECT_EQ(a["status"], "interrupted");
  const int64_t made = std::ssize(a["loss"]);
  EXPECT_GT(made, 5);
  EXPECT_EQ(a["step_time_s"]["samples"].size(), a["loss"].size());
  EXPECT_EQ(a["settled_after"].back(), made);
  EXPECT_EQ(a["settled_after"][0], 1) << "a last good state from the first step on";
  EXPECT_GE(std::ssize(a["settled_after"]), 3) << a["settled_after"];
  const Ended resumed =
      tests::Child(with({"--resume", "--certify", "--json", folder_.path("b.json"), "--stop-at",
                         std::to_string(made + 7)}))
          .wait(std::chrono::seconds(60));
  EXPECT_EQ(resumed.code, kOk) << resumed.output;
  const Json b = document("b.json");
  EXPECT_EQ(b["resumed_from"], made);
  EXPECT_EQ(b["loss"].size(), 7u);
  EXPECT_EQ(b["pushes"]["0"]["version"][0], 2 * made);
  EXPECT_EQ(b["certificate"]["verdict"], "equal") << resumed.output;
}

INSTANTIATE_TEST_SUITE_P(Worlds, Stopping, testing::ValuesIn(worlds()),
                         [](const auto& info) { return std::string(info.param); });

TEST(Watching, StopAfterIsInterrupted) {
  const Ran ran =
      run_front({"--steps", kMany, "--stop-after", "1s", "--set", "train.validate_every=1"});
  EXPECT_EQ(ran.code, kInterrupted) << ran.output;
  EXPECT_EQ(ran.document["status"], "interrupted");
  EXPECT_NE(ran.output.find("--stop-after 1 s: after step"), std::string::npos) << ran.output;
  EXPECT_TRUE(ran.document["validation_loss"].is_null());
  EXPECT_NE(ran.output.find("\n  validation      "), std::string::npos) << ran.output;
  EXPECT_NE(ran.output.find(" after step " + ran.document["validation"]["steps"].back().dump()),
            std::string::npos)
      << ran.output;
}

// mpirun ends with the code of its ranks, which is that of a signal too.
TEST(Watching, StopAfterUnderMpiIsNoFailure) {
  if (!build_info::kMpi.found) GTEST_SKIP() << "built without MPI";
  const tests::Folder folder;
  tests::Child child({tests::built("bin/kuafu"), "run",
                      folder.write("plan.toml", tests::kSmallPlan), "--world", "mpi", "--ranks",
                      "2", "--set", "parallel.data=2", "--set", "data.kind=synthetic", "--steps",
                      kMany, "--stop-after", "0.5s"});
  const Ended ended = child.wait(std::chrono::seconds(60));
  EXPECT_EQ(ended.code, kInterrupted) << ended.output;
  EXPECT_EQ(ended.output.find("failed"), std::string::npos) << ended.output;
}

TEST(Watching, ALogThatLacksStepsIsTold) {
  const tests::Folder folder;
  const auto run = [&](Arguments more) {
    more.insert(more.end(), {"--steps", "6", "--checkpoint", folder.path("saved"), "--resume"});
    return run_front(more);
  };
  const std::string log = folder.path("log.csv");
  run({"--stop-at", "1", "--log", log});
  run({"--stop-at", "4"});
  const Ran last = run({"--log", log});
  EXPECT_EQ(last.code, 0) << last.output;
  EXPECT_NE(last.output.find(" has no rows of steps 2 to 4: they were made without it\n"),
            std::string::npos)
      << last.output;
}

TEST(Watching, ValidationOnTheWayIsEndedToo) {
  const tests::Folder folder;
  const std::string log = folder.path("log.jsonl");
  const Ran ran = run_front({"--steps", kMany, "--timeout", "2", "--checkpoint",
                             folder.path("saved"), "--log", log, "--set", "train.validate_every=1",
                             "--set", "train.validation_batches=1000000"});
  EXPECT_EQ(ran.code, kTimeout) << ran.output;
  ASSERT_EQ(lines_of(log).size(), 1u);
  Json open = Json::parse(lines_of(log)[0]);
  EXPECT_TRUE(open["validation_loss"].is_null()) << open;
  EXPECT_EQ(ran.document["loss"].size(), 1u);
  EXPECT_EQ(ran.document["checkpoint"]["saves"], 1);
  EXPECT_GT(ran.document["checkpoint"]["samples"][0].get<double>(), 1e-5);

  // What goes on has the entry that was left open, and so have its tables.
  const auto go_on = [&](Arguments more) {
    more.insert(more.end(),
                {"--checkpoint", folder.path("saved"), "--resume", "--set",
                 "train.validate_every=1", "--log", log, "--tensorboard", folder.path("board")});
    return run_front(more);
  };
  const Ran again =
      go_on({"--steps", kMany, "--timeout", "2", "--set", "train.validation_batches=1000000"});
  EXPECT_EQ(again.code, kTimeout) << again.output;
  EXPECT_EQ(again.document["loss"].size(), 0u);
  const Ran rest = go_on({"--steps", "3"});
  EXPECT_EQ(rest.code, kOk) << rest.output;
  EXPECT_EQ(rest.document["validation"]["steps"], (Json{1, 2, 3}));
  Json logged = Json::array(), first = Json::parse(lines_of(log)[0]);
  for (const std::string& line : lines_of(log))
    logged.push_back(Json::parse(line)["validation_loss"]);
  EXPECT_EQ(logged, rest.document["validation"]["losses"]);
  first.erase("validation_loss");
  open.erase("validation_loss");
  EXPECT_EQ(first, open);
  size_t drawn = 0;  // in the event files
  for (const auto& entry : std::filesystem::directory_iterator(folder.path("board"))) {
    const std::string bytes = content_of(entry.path()), tag = "validation/loss";
    for (size_t at = bytes.find(tag); at != std::string::npos; at = bytes.find(tag, at + 1))
      ++drawn;
  }
  EXPECT_EQ(drawn, 3u);
}

TEST(Watching, ATableOfItsOwnBeginsWithTheValidationThatWasLeftOpen) {
  const tests::Folder folder;
  const std::string log = folder.path("log.csv");
  const Arguments every = {"--checkpoint", folder.path("saved"), "--set", "train.validate_every=1"};
  Arguments ends = {"--steps", kMany,   "--timeout",
                    "0.6",     "--set", "train.validation_batches=1000000"};
  ends.insert(ends.end(), every.begin(), every.end());
  ASSERT_EQ(run_front(ends).code, kTimeout);
  Arguments goes_on = {"--steps", "2", "--resume", "--log", log};
  goes_on.insert(goes_on.end(), every.begin(), every.end());
  const Ran rest = run_front(goes_on);
  ASSERT_EQ(rest.code, kOk) << rest.output;
  const auto lines = lines_of(log);
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_EQ(lines[1], "1,,,,,,,,,," + rest.document["validation"]["losses"][0].dump());
  EXPECT_TRUE(lines[2].ends_with("," + rest.document["validation"]["losses"][1].dump()))
      << lines[2];
}

/// Its steps have many micro-batches: 12288 samples take a second and more.
struct LongRun {
  explicit LongRun(const Arguments& more, const Arguments& launcher = {})
      : child(words(launcher, more)) {
    is_logged =
        tests::eventually([&] { return lines_of(log).size() > 1; }, std::chrono::seconds(60));
  }
  Arguments words(const Arguments& launcher, const Arguments& more) const {
    Arguments all = launcher;
    for (const std::string& word : {tests::built("bin/kuafu"), std::string("run"),
                                    folder.write("plan.toml", tests::kSmallPlan),
                                    std::string("--log"), log, std::string("--json"), json}) {
      all.push_back(word);
    }
    for (const char* key : {"train.micro_batch=8", "data.kind=synthetic"}) {
      all.insert(all.end(), {"--set", key});
    }
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  tests::Folder folder;
  std::string log = folder.path("log.csv"), json = folder.path("a.json");
  tests::Child child;
  bool is_logged = false;
};

/// Its second step never ends: nothing that waits for the end of a step ends the run.
const Arguments kHanging = {"--plugin", tests::built("plugins/faults.so"),
                            "--set",    "parallel.tensor.mode=1d-hang",
                            "--set",    "parallel.tensor.size=2"};

TEST(Watching, ALaterSecondSignalEndsItAtOnce) {
  LongRun run(kHanging);
  ASSERT_TRUE(run.is_logged) << run.child.output();
  ::kill(run.child.pid(), SIGTERM);
  // What comes within 500 ms is the same one; beside heavy neighbours the first is passed on late.
  std::this_thread::sleep_for(std::chrono::milliseconds(1500));
  ::kill(run.child.pid(), SIGTERM);
  const Ended ended = run.child.wait(std::chrono::seconds(20));
  EXPECT_EQ(ended.code, kInterrupted) << ended.output;
  const Json d = document_in(run.json);
  EXPECT_EQ(d["status"], "interrupted");
  EXPECT_EQ(d["reason"].get<std::string>().find("signal 15 (Terminated) ended the run at once"), 0u)
      << d["reason"];
}

// mpirun itself would kill the ranks a second after the signal, in the middle of their step.
TEST(Watching, CtrlCToTheLauncherScriptEndsAfterTheStep) {
  if (!build_info::kMpi.found) GTEST_SKIP() << "built without MPI";
  const tests::Folder folder;
  const std::string saved = folder.path("saved");
  LongRun run({"--steps", kMany, "--set", "train.batch=6144", "--set", "parallel.data=2",
               "--checkpoint", saved},
              tests::mpirun(2));
  ASSERT_TRUE(run.is_logged) << run.child.output();
  ::kill(-run.child.pid(), SIGINT);
  const Ended ended = run.child.wait(std::chrono::seconds(60));
  EXPECT_EQ(ended.code, kInterrupted) << ended.output;
  const Json d = document_in(run.json);
  EXPECT_EQ(d["status"], "interrupted");
  EXPECT_EQ(d["reason"].get<std::string>().find("signal 2 (Interrupt): "), 0u) << d["reason"];
  EXPECT_TRUE(std::filesystem::exists(saved + "/step-0000000" + std::to_string(d["loss"].size()) +
                                      "/index.json"));
}

TEST(Watching, ALaterSecondSignalEndsTheLauncherScriptAtOnce) {
  if (!build_info::kMpi.found) GTEST_SKIP() << "built without MPI";
  LongRun run(kHanging, tests::mpirun(2));
  ASSERT_TRUE(run.is_logged) << run.child.output();
  ::kill(run.child.pid(), SIGTERM);
  // The script counts from when it wakes, late beside heavy neighbours.
  std::this_thread::sleep_for(std::chrono::milliseconds(1500));
  ::kill(run.child.pid(), SIGTERM);
  const Ended ended = run.child.wait(std::chrono::seconds(90));
  EXPECT_EQ(ended.code, 128 + SIGTERM) << ended.output;
  if (!std::filesystem::exists(run.json))
    return;  // rank 0 may have been killed before it could tell
  EXPECT_EQ(document_in(run.json)["status"], "interrupted");
}

// mpirun may lose one that comes before its ranks listen.
TEST(Watching, ASignalThatTheLauncherNotedEndsARunThatBegins) {
  const tests::Folder folder;
  const std::string json = folder.path("a.json");
  tests::Child child(
      {tests::built("bin/kuafu"), "run", folder.write("plan.toml", tests::kSmallPlan), "--steps",
       kMany, "--json", json},
      {{"KUAFU_RANKS_LISTEN", folder.write("marks", "0015")}});
  const Ended ended = child.wait(std::chrono::seconds(60));
  EXPECT_EQ(ended.code, kInterrupted) << ended.output;
  EXPECT_EQ(document_in(json)["reason"].get<std::string>().find("signal 15 (Terminated): "), 0u);
}

// It comes when no step is left, and nobody will ask for it.
TEST(Watching, ASignalOfTheLastValidationCutsTheCertificateShort) {
  LongRun run({"--steps", "1", "--set", "train.batch=4096", "--certify"});
  ASSERT_TRUE(run.is_logged) << run.child.output();
  ::kill(run.child.pid(), SIGTERM);
  const Ended ended = run.child.wait(std::chrono::seconds(20));
  EXPECT_EQ(ended.code, kOk) << ended.output;
  const Json d = document_in(run.json);
  EXPECT_EQ(d["status"], "ok");
  EXPECT_EQ(d["certificate"]["verdict"], "not_run");
  EXPECT_NE(ended.output.find("certifying was cut short"), std::string::npos) << ended.output;
}

TEST(Watching, TheTimeCountsFromTheStart) {
  const Ran ran = run_front({"--timeout", "0.1", "--set", "model.layers=65536", "--set",
                             "model.hidden=1", "--set", "model.heads=1"});
  EXPECT_EQ(ran.code, kTimeout) << ran.output;
  EXPECT_EQ(ran.document["status"], "timeout");
  EXPECT_EQ(document_problems(ran.document), std::vector<std::string>{});
}

TEST(Watching, ALimitOfYearsIsNone) {
  for (const char* option : {"--timeout", "--stop-after"}) {
    const Ran ran = run_front({option, "1e12"});
    EXPECT_EQ(ran.code, kOk) << ran.output;
  }
}

TEST(Watching, StopAtKeepsTheScheduleOfTheWhole) {
  const tests::Folder folder;
  const Arguments schedule = {
      "--steps", "12", "--set", "optimizer.schedule=cosine", "--set", "train.validate_every=3"};
  const auto with = [&](Arguments more) {
    more.insert(more.end(), schedule.begin(), schedule.end());
    return run_front(more);
  };
  const Ran whole = with({});
  const Ran first = with({"--stop-at", "5", "--checkpoint", folder.path("saved")});
  const Ran second = with({"--checkpoint", folder.path("saved"), "--resume"});
  ASSERT_EQ(first.code + second.code + whole.code, kOk) << first.output << second.output;
  EXPECT_NE(first.output.find("after step 5 of 12, by --stop-at; saved in"), std::string::npos)
      << first.output;
  EXPECT_EQ(second.output.find("--stop-at"), std::string::npos) << second.output;
  Json losses = first.document["loss"];
  EXPECT_EQ(losses.size(), 5u);
  for (const Json& loss : second.document["loss"]) losses.push_back(loss);
  EXPECT_EQ(losses, whole.document["loss"]);
  EXPECT_EQ(first.document["plan"], whole.document["plan"]);
  EXPECT_EQ(first.document["plan_hash"], whole.document["plan_hash"]);
  EXPECT_EQ(second.document["plan_hash"], whole.document["plan_hash"]);
  EXPECT_EQ(first.document["validation"]["steps"], Json{3});
  EXPECT_TRUE(first.document["validation_loss"].is_number());
  EXPECT_EQ(second.document["validation"], whole.document["validation"]);

  const Ran third = with({"--checkpoint", folder.path("saved"), "--resume"});
  EXPECT_EQ(third.code, kOk) << third.output;
  EXPECT_NE(third.output.find("  nothing left: step 12 of 12\n"), std::string::npos)
      << third.output;
  EXPECT_EQ(third.output.find("step time"), std::string::npos) << third.output;
}

TEST(Watching, GoingOnWithOtherKernelsIsTold) {
  const tests::Folder folder;
  const auto words = [&](const char* steps, Arguments more) {
    Arguments all = {tests::built("bin/kuafu"),
                     "run",
                     folder.write("plan.toml", tests::kSmallPlan),
                     "--steps",
                     steps,
                     "--checkpoint",
                     folder.path("saved")};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  };
  tests::Child first(words("2", {}), {{"KUAFU_KERNELS", "aten"}});
  ASSERT_EQ(first.wait().code, kOk);
  tests::Child second(words("3", {"--resume"}), {{"KUAFU_KERNELS", "own"}});
  const Ended other = second.wait();
  EXPECT_EQ(other.code, kOk) << other.output;
  EXPECT_NE(other.output.find("was saved by kernels \"aten\", and this run has \"own\""),
            std::string::npos)
      << other.output;
  tests::Child third(words("4", {"--resume"}), {{"KUAFU_KERNELS", "own"}});
  const Ended same = third.wait();
  EXPECT_EQ(same.code, kOk) << same.output;
  EXPECT_EQ(same.output.find("kernels"), std::string::npos) << same.output;
}

// It stops nothing: the schedule alone goes further.
TEST(Watching, StopAtTheLastStepOfThePlanChangesNothing) {
  const Arguments plan = {"--steps", "5",
                          "--set",   "optimizer.schedule=cosine",
                          "--set",   "optimizer.schedule_steps=12",
                          "--set",   "train.validate_every=3"};
  Arguments stopped = plan;
  stopped.insert(stopped.end(), {"--stop-at", "5"});
  const Ran whole = run_front(plan), same = run_front(stopped);
  ASSERT_EQ(whole.code + same.code, kOk) << whole.output << same.output;
  EXPECT_EQ(whole.document["validation"]["steps"], (Json{3, 5}));
  EXPECT_EQ(same.document["validation"], whole.document["validation"]);
  EXPECT_EQ(same.document["loss"], whole.document["loss"]);
}

TEST(Watching, WhatCannotBePrintedIsTold) {
  const tests::Folder folder;
  const std::string plan = folder.write("plan.toml", tests::kSmallPlan);
  for (const char* command : {"run", "explain"}) {
    tests::Child child(
        {"/bin/sh", "-c", tests::built("bin/kuafu") + " " + command + " " + plan + " >/dev/full"});
    const Ended ended = child.wait();
    EXPECT_EQ(ended.code, kUnwritten) << ended.output;
    EXPECT_NE(ended.output.find("cannot write all of the standard output"), std::string::npos)
        << ended.output;
  }
}

TEST(Watching, DivergenceKeepsWhatWasMeasured) {
  const Ran ran = run_front({"--steps", "200", "--set", "optimizer.lr=100000"});
  EXPECT_EQ(ran.code, kDiverged) << ran.output;
  EXPECT_EQ(ran.document["status"], "diverged");
  EXPECT_GT(ran.document["loss"].size(), 0u);
  EXPECT_EQ(document_problems(ran.document), std::vector<std::string>{});
  // The step that diverged is none of them.
  const Ran whole = run_front({"--steps", std::to_string(ran.document["loss"].size())});
  ASSERT_EQ(whole.code, kOk) << whole.output;
  for (const char* counted : {"flops_per_step", "flops_optimizer", "ledger"}) {
    EXPECT_EQ(ran.document[counted], whole.document[counted]) << counted;
  }
}

TEST(Watching, ARunThatUpdatesNothingHasFailed) {
  const Ran ran = run_front({"--set", "model.dtype=f16", "--set", "train.loss_scale=16777216"});
  EXPECT_EQ(ran.code, kFailed) << ran.output;
  EXPECT_NE(ran.output.find("all 3 steps overflowed in f16 and updated nothing"), std::string::npos)
      << ran.output;
  EXPECT_EQ(ran.document["loss_scale"]["skipped"].size(), 3u);
  EXPECT_NE(ran.output.find("  loss scale      16777216, 3 of 3 steps skipped"), std::string::npos)
      << ran.output;
}

TEST(Watching, ALogOfAnotherRunIsNotReplaced) {
  const tests::Folder folder;
  const std::string log = folder.write("log.csv", "step,loss\n1,5.0\n"), saved = folder.path("s");
  const Ran refused = run_front({"--log", log});
  EXPECT_EQ(refused.code, kUsage) << refused.output;
  EXPECT_NE(refused.output.find(log + ": there is one already"), std::string::npos)
      << refused.output;
  EXPECT_EQ(lines_of(log).size(), 2u);
  const std::string notes = folder.write("notes.csv", "my own notes\n");
  const Ran foreign = run_front({"--log", notes, "--checkpoint", saved, "--resume"});
  EXPECT_EQ(foreign.code, kUsage) << foreign.output;
  EXPECT_NE(foreign.output.find("is there and is no log"), std::string::npos) << foreign.output;
  EXPECT_EQ(lines_of(notes), std::vector<std::string>{"my own notes"});
  const std::string pipe = folder.path("pipe.csv");
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  const Ran blocked = run_front({"--log", pipe});
  EXPECT_EQ(blocked.code, kUsage) << blocked.output;
  const Ran resumed = run_front({"--log", log, "--checkpoint", saved, "--resume"});
  EXPECT_EQ(resumed.code, kOk) << resumed.output;
  const Ran fresh = run_front({"--log", folder.write("empty.csv", "")});
  EXPECT_EQ(fresh.code, kOk) << fresh.output;
}

TEST(Watching, WrongUseIsToldBeforeTheRun) {
  const std::vector<std::pair<Arguments, std::string>> wrong = {
      {{"--stop-at", "4"}, "--stop-at 4: the plan ends after step 3"},
      {{"--stop-after", "3x"}, "\"3x\" is no time"},
      {{"--stop-after", "-1"}, "is no time"},
      {{"--checkpoint", "saved", "--async", "--set", "parallel.data=2", "--set",
        "parallel.data.mode=parameter_server", "--set", "parallel.data.staleness=1", "--set",
        "optimizer.clip=0"},
       "--async with parallel.data.staleness = 1: workers wait for each other at saves alone"},
      {{"--log", "metrics.txt"},
       "--log metrics.txt: the ending says how it is written: .jsonl or .csv"},
      {{"--log", "/nowhere/a.csv"}, "--log: cannot write /nowhere/a.csv"},
      {{"--log-every", "0"}, "--log-every"},
      {{"--tensorboard", "/proc/here"},
       "--tensorboard /proc/here: not a folder that can be written"},
      {{"--world", "simulated", "--stop-after", "1h"},
       "--stop-after: the simulated world makes no steps"},
      {{"--set", "parallel.pipeline.size=2", "--set", "parallel.pipeline.schedule=/dev/zero"},
       "the schedule \"/dev/zero\" is no regular file but a pipe or a device"},
      {{"--world", "simulated", "--log", "a.csv"}, "--log: the simulated world makes no steps"},
  };
  for (const auto& [more, says] : wrong) {
    const Ran ran = run_front(more);
    EXPECT_EQ(ran.code, kUsage) << ran.output;
    EXPECT_NE(ran.output.find(says), std::string::npos) << says << "\n" << ran.output;
  }
}

}  // namespace
}  // namespace kuafu
