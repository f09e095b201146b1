// SPDX-License-Identifier: Apache-2.0
//
// Full disks and killed processes: what stays of a run, and what does not.

#include <gtest/gtest.h>

#include <signal.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "kuafu/base/build_info.h"
#include "tests/app_worker/process.h"

namespace kuafu {
namespace {

using tests::Arguments;
using tests::content_of;
using tests::Ended;

namespace fs = std::filesystem;

constexpr int kOk = 0, kUnwritten = 7;
constexpr const char* kFull = "No space left on device";

int64_t count(const std::string& text, const std::string& part) {
  int64_t n = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
  return n;
}

class Leftovers : public testing::Test {
 protected:
  Arguments command(const Arguments& more) const {
    Arguments words = {tests::built("bin/kuafu"), "run",
                       folder_.write("plan.toml", tests::kSmallPlan)};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  Ended run(const Arguments& more, const std::map<std::string, std::string>& environment = {}) {
    tests::Child child(command(more), environment);
    return child.wait();
  }
  /// A name that ends as the option wants, of a disk that is full.
  std::string full(const std::string& name) const {
    fs::create_symlink("/dev/full", folder_.path(name));
    return folder_.path(name);
  }

  tests::Folder folder_;
};

TEST_F(Leftovers, OfAFullDiskAreTheResultsAndOneMessageThatNamesTheFile) {
  const std::vector<Arguments> options = {{"--json", full("a.json")},
                                          {"--log", full("a.csv")},
                                          {"--trace", full("a.trace.jsonl")},
                                          {"--timeline", full("a.svg")}};
  for (const Arguments& option : options) {
    const Ended ran = run(option);
    EXPECT_EQ(ran.code, kUnwritten) << ran.output;
    EXPECT_NE(ran.output.find("  loss            "), std::string::npos) << ran.output;
    EXPECT_NE(ran.output.find(option[1] + ": " + kFull), std::string::npos) << ran.output;
    EXPECT_EQ(count(ran.output, kFull), 1) << ran.output;
  }
  if (!build_info::kMpi.found) return;
  const Ended ran = run({"--world", "mpi", "--ranks", "2", "--set", "parallel.data=2", "--json",
                         folder_.path("a.json")});  // still the full one
  EXPECT_EQ(ran.code, kUnwritten) << ran.output;
  EXPECT_EQ(count(ran.output, kFull), 1) << ran.output;
}

TEST_F(Leftovers, OfAFullDiskAreWholeRowsAndWholeEvents) {
  // tests/app_worker/cut_disk.c ends the disk below folders of this name.
  const std::string folder = folder_.path("x.partial");
  fs::create_directories(folder);
  const auto cut_off = [](int bytes) {
    return std::map<std::string, std::string>{{"KUAFU_TEST_DISK", "full:" + std::to_string(bytes)},
                                              {"LD_PRELOAD", tests::built("lib/libcut_disk.so")}};
  };
  const Ended logged = run({"--log", folder + "/log.csv", "--steps", "8"}, cut_off(500));
  EXPECT_EQ(logged.code, kUnwritten) << logged.output;
  EXPECT_NE(logged.output.find("--log: cannot write " + folder + "/log.csv: " + kFull),
            std::string::npos)
      << logged.output;
  const std::string rows = content_of(folder + "/log.csv");
  std::istringstream lines(rows);
  std::string head, line;
  std::getline(lines, head);
  int64_t num_rows = 0;
  for (; std::getline(lines, line); ++num_rows)
    EXPECT_EQ(count(line, ","), count(head, ",")) << line;
  EXPECT_GT(num_rows, 0);
  EXPECT_LT(num_rows, 8);
  EXPECT_EQ(rows.back(), '\n');

  const Ended drawn = run({"--tensorboard", folder + "/board", "--steps", "8"}, cut_off(1000));
  EXPECT_EQ(drawn.code, kUnwritten) << drawn.output;
  EXPECT_NE(drawn.output.find("--tensorboard: cannot write " + folder + "/board/events"),
            std::string::npos)
      << drawn.output;
}

TEST_F(Leftovers, OfAFullDiskUnderCheckpointsIsWhatWasMeasured) {
  const std::string json = folder_.path("a.json"), saved = folder_.path("saved");
  const Ended ran =
      run({"--json", json, "--checkpoint", saved, "--every", "2", "--steps", "6"},
          {{"KUAFU_TEST_DISK", "full:300000"}, {"LD_PRELOAD", tests::built("lib/libcut_disk.so")}});
  EXPECT_EQ(ran.code, 1) << ran.output;
  const Json d = Json::parse(content_of(json));
  EXPECT_EQ(d["status"], "failed");
  EXPECT_GE(d["loss"].size(), 1u);  // the first save, or one of those asked for
  const std::string reason = d["reason"];
  EXPECT_NE(reason.find(kFull), std::string::npos) << reason;
  const std::string where = d["loss"].size() > 2
                                ? "; the newest state is " + saved + "/step-0000000"
                                : "; " + saved + " holds no state";
  EXPECT_NE(reason.find(where), std::string::npos) << reason;
}

/// A training whose disk fills before the first row of its log: no file has room any more, each is
/// told of once, and nothing stands for the document that is missing.
void expect_one_account_of_a_disk_that_fills(const tests::Folder& folder, Arguments command) {
  const std::string disk = folder.path("disk"), json = disk + "/a.json", log = disk + "/a.jsonl",
                    saved = disk + "/saved";
  fs::create_directories(disk);
  command.insert(command.end(), {"--json", json, "--log", log, "--checkpoint", saved});
  const std::string state = folder.write("state", std::string(16 + 4096, '\0'));
  tests::Child child(command, {{"KUAFU_TEST_DISK", "from:0"},
                               {"KUAFU_TEST_DISK_FOLDER", disk},
                               {"KUAFU_TEST_DISK_COUNTED", "a.jsonl"},
                               {"KUAFU_TEST_DISK_STATE", state},
                               {"LD_PRELOAD", tests::built("lib/libcut_disk.so")}});
  const Ended ran = child.wait();
  EXPECT_EQ(ran.code, kUnwritten) << ran.output;
  for (const std::string& file : {log, saved, json})
    EXPECT_NE(ran.output.find("cannot write " + file), std::string::npos) << ran.output;
  EXPECT_EQ(count(ran.output, kFull), 3) << ran.output;
  EXPECT_EQ(ran.output.find("exited with code"), std::string::npos) << ran.output;
  EXPECT_FALSE(fs::exists(json)) << content_of(json);
}

TEST_F(Leftovers, OfADiskThatFillsIsOneLineAFile) {
  expect_one_account_of_a_disk_that_fills(folder_, command({}));
}

TEST_F(Leftovers, OfADiskThatFillsUnderMpiIsOneLineAFile) {
  if (!build_info::kMpi.found) GTEST_SKIP() << "this build has no MPI";
  expect_one_account_of_a_disk_that_fills(
      folder_, command({"--world", "mpi", "--ranks", "2", "--set", "parallel.data=2"}));
}

void expect_unwritten(const Ended& ended, const std::string& file, const char* why) {
  EXPECT_EQ(ended.code, kUnwritten) << ended.output;
  EXPECT_NE(ended.output.find("kuafu: cannot write " + file), std::string::npos) << ended.output;
  EXPECT_EQ(count(ended.output, why), 1) << ended.output;
}

TEST_F(Leftovers, OfAFullDiskUnderOtherCommandsIsItsCode) {
  const std::string plan = folder_.write("plan.toml", tests::kSmallPlan), out = folder_.path("out");
  const std::string file = full("a.json");
  fs::create_directories(out);
  const std::string record = full("out/compatibility.json");
  for (const auto& [words, unwritten] : std::vector<std::pair<Arguments, std::string>>{
           {{"explain", plan, "--json", file}, file},
           {{"frontier", plan, "--vary", "train.batch", "--max", "8", "--set",
             "memory.device=1 GiB", "--json", file},
            file},
           {{"conformance", "--schedule", "gpipe", "--sizes", "2", "--json", file}, file},
           {{"matrix", "--filter", "schedule=gpipe", "--filter", "order=fixed", "--share", "0.02",
             "--triples", "0", "--out", out},
            record}}) {
    Arguments command = words;
    command.insert(command.begin(), tests::built("bin/kuafu"));
    expect_unwritten(tests::Child(command).wait(), unwritten + ": ", kFull);
  }
}

/// `kuafu` whose files end at so many KiB; what it prints goes through a pipe, which does not.
Ended cut_at(int kib, const Arguments& command) {
  Arguments words = {
      "bash", "-c",
      "(ulimit -f " + std::to_string(kib) + "; exec \"$@\") 2>&1 | cat; exit ${PIPESTATUS[0]}", "-",
      tests::built("bin/kuafu")};
  words.insert(words.end(), command.begin(), command.end());
  return tests::Child(words).wait();
}

TEST_F(Leftovers, OfALimitOfFilesIsTheCodeAndTheFile) {
  constexpr const char* kLarge = "File too large";
  const std::string saved = folder_.path("saved"), weights = folder_.path("w.safetensors"),
                    out = folder_.path("out");
  ASSERT_EQ(run({"--checkpoint", saved}).code, kOk);
  expect_unwritten(cut_at(8, {"export", saved, "--out", weights}), weights, kLarge);
  ASSERT_EQ(
      tests::Child({tests::built("bin/kuafu"), "export", saved, "--out", weights}).wait().code,
      kOk);
  expect_unwritten(cut_at(8, {"import", weights, "--out", folder_.path("in")}), folder_.path("in"),
                   kLarge);
  EXPECT_FALSE(std::filesystem::exists(folder_.path("in")));  // no half of a checkpoint
  expect_unwritten(cut_at(1, {"matrix", "--filter", "scheme=1d", "--share", "0.2", "--triples", "0",
                              "--out", out}),
                   out + "/.matrix/done.jsonl", kLarge);
}

/// A program under a limit of the shell: "-v 1500000".
Ended limited(const std::string& limits, const Arguments& command) {
  Arguments words = {"bash", "-c", limits + "; exec \"$@\"", "-"};
  words.insert(words.end(), command.begin(), command.end());
  tests::Child child(words);
  return child.wait();
}

TEST_F(Leftovers, OfMemoryThatTheSystemRefusesIsNoBudget) {
  std::vector<Arguments> all = {{"--set", "model.hidden=4096"}};
  if (build_info::kMpi.found) {
    all.push_back({"--set", "model.hidden=4096", "--world", "mpi", "--ranks", "2", "--set",
                   "parallel.data=2"});
  }
  for (Arguments& more : all) {
    const std::string json = folder_.path(std::to_string(more.size()) + ".json");
    more.insert(more.end(), {"--json", json});
    const Ended ran = limited("ulimit -v 1500000", command(more));
    EXPECT_EQ(ran.code, 4) << ran.output;
    EXPECT_EQ(ran.output.find("budget 0"), std::string::npos) << ran.output;
    EXPECT_NE(ran.output.find("the system gave no more; the plan sets no budget"),
              std::string::npos)
        << ran.output;
    EXPECT_TRUE(Json::parse(content_of(json))["out_of_memory"]["budget_bytes"].is_null());
  }
}

// Below 800 MiB a rank fails in its program, in a library of MPI, or not at all: it depends on the machine.
TEST_F(Leftovers, OfMemoryThatIsRefusedUnderMpiNameTheLimit) {
  if (!build_info::kMpi.found) GTEST_SKIP() << "this build has no MPI";
  for (const char* kib : {"700000", "745000"}) {
    const std::string json = folder_.path(std::string(kib) + ".json");
    const Ended ran = limited(
        std::string("ulimit -v ") + kib,
        command({"--world", "mpi", "--ranks", "2", "--set", "parallel.data=2", "--json", json}));
    const Json document = Json::parse(content_of(json));
    EXPECT_EQ(document["status"] == "ok", ran.code == kOk) << ran.output;
    if (ran.code == kOk) continue;
    EXPECT_NE(document["reason"].get<std::string>().find("ulimit -v"), std::string::npos)
        << document["reason"];
  }
}

TEST_F(Leftovers, OfMemoryThatCannotLoadTheWorkerIsOneLine) {
  const std::string plan = folder_.write("plan.toml", tests::kSmallPlan);
  const std::string program = tests::built("bin/kuafu");
  for (const Arguments& words :
       {Arguments{program, "run", plan}, Arguments{program, "explain", plan}}) {
    const Ended ended = limited("ulimit -v 300000", words);
    EXPECT_EQ(ended.code, 4) << ended.output;
    EXPECT_EQ(count(ended.output, "\n"), 1) << ended.output;
    EXPECT_NE(ended.output.find("293 MiB (ulimit -v 300000)"), std::string::npos) << ended.output;
  }
  const std::string json = folder_.write("older.json", "{\"status\": \"ok\"}");
  EXPECT_EQ(limited("ulimit -v 300000", {program, "run", plan, "--json", json}).code, 4);
  EXPECT_EQ(Json::parse(content_of(json))["status"], "out_of_memory");  // nothing of an older run
}

// The machine's doing, not the plan's: a suite runs it again.
TEST_F(Leftovers, OfThreadsThatTheSystemRefusesIsAFailure) {
  const std::string json = folder_.path("a.json");
  const Ended ran = limited("ulimit -s 1000000; ulimit -v 4000000",
                            command({"--ranks", "8", "--set", "parallel.data=8", "--json", json}));
  EXPECT_EQ(ran.code, 1) << ran.output;
  const Json d = Json::parse(content_of(json));
  EXPECT_EQ(d["status"], "failed");
  const std::string reason = d["reason"];
  EXPECT_NE(reason.find("cannot start thread "), std::string::npos) << reason;
  EXPECT_NE(reason.find("Resource temporarily unavailable"), std::string::npos) << reason;
}

/// Of the processes that were started with this mark: those of that name.
std::vector<int> named(const std::string& mark, const std::string& name) {
  std::vector<int> found;
  for (const int pid : tests::processes_with("KUAFU_TEST_MARK", mark)) {
    std::string comm;
    std::ifstream("/proc/" + std::to_string(pid) + "/comm") >> comm;
    if (comm == name) found.push_back(pid);
  }
  return found;
}

TEST_F(Leftovers, OfKilledProcessesGoWithTheNextRun) {
  std::vector<std::pair<std::string, const char*>> targets = {{"threads", "kuafu"},
                                                              {"threads", "kuafu-worker"}};
  if (build_info::kMpi.found) {
    for (const char* name : {"kuafu", "mpirun", "kuafu-worker"}) targets.emplace_back("mpi", name);
  }
  const std::string temporary = folder_.path("t");
  fs::create_directories(temporary);
  for (const auto& [world, name] : targets) {
    const std::string log = folder_.path(world + name + ".csv"), mark = folder_.path(world + name);
    const std::map<std::string, std::string> environment = {{"KUAFU_TEST_MARK", mark},
                                                            {"TMPDIR", temporary}};
    const Arguments ranks = {"--world", world, "--ranks", "2", "--set", "parallel.data=2"};
    Arguments more = {"--steps", "50000000", "--log", log};
    more.insert(more.end(), ranks.begin(), ranks.end());
    tests::Child child(command(more), environment);
    const std::string shared = "/dev/shm/kuafu-run-" + std::to_string(child.pid());
    ASSERT_TRUE(tests::eventually([&] { return count(content_of(log), "\n") > 3; },
                                  std::chrono::seconds(60)))
        << child.output();
    EXPECT_EQ(fs::exists(shared), world == "mpi");
    const std::vector<int> found = named(mark, name);
    ASSERT_FALSE(found.empty()) << name;
    ::kill(found.front(), SIGKILL);
    EXPECT_TRUE(
        tests::eventually([&] { return tests::processes_with("KUAFU_TEST_MARK", mark).empty(); },
                          std::chrono::seconds(30)))
        << world << " " << name;
    const Ended next = run({}, environment);  // of any world
    EXPECT_EQ(next.code, kOk) << next.output;
    EXPECT_FALSE(fs::exists(shared)) << world << " " << name;
    std::string left;
    for (const auto& entry : fs::recursive_directory_iterator(temporary))
      left += entry.path().string() + "\n";
    EXPECT_EQ(left, "") << world << " " << name;
  }
}

}  // namespace
}  // namespace kuafu
