// SPDX-License-Identifier: Apache-2.0
//
// What a run says of its steps while it makes them: the line of a terminal, tables, event files.

#include <gtest/gtest.h>

#include <fcntl.h>
#include <pty.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <sstream>

#include "kuafu/base/build_info.h"
#include "kuafu/record/file_claim.h"
#include "tests/app_worker/process.h"

namespace kuafu {
namespace {

using tests::Arguments;
using tests::content_of;
using tests::Ended;
using tests::lines_of;
using tests::Ran;
using tests::run_front;

constexpr int kOk = 0;

/// Both ends of a terminal of 60 columns.
struct Terminal {
  Terminal() {
    winsize size{};
    size.ws_row = 24;
    size.ws_col = 60;
    EXPECT_EQ(::openpty(&own, &other, nullptr, nullptr, &size), 0);
    ::fcntl(own, F_SETFL, O_NONBLOCK);
  }
  ~Terminal() {
    ::close(own);
    ::close(other);
  }
  std::string name() const {
    return "/proc/" + std::to_string(::getpid()) + "/fd/" + std::to_string(other);
  }
  std::string shown() const {
    std::string all;
    char bytes[512];
    for (ssize_t n = 0; (n = ::read(own, bytes, sizeof bytes)) > 0;) {
      all.append(bytes, static_cast<size_t>(n));
    }
    return all;
  }
  int own = -1, other = -1;
};

TEST(Watched, OnATerminalALineRedrawsAndGoes) {
  const tests::Folder folder;
  const Terminal terminal;
  tests::Child child({"sh", "-c", "exec \"$@\" 2>" + terminal.name(), "-",
                      tests::built("bin/kuafu"), "run",
                      folder.write("plan.toml", tests::kSmallPlan)});
  const Ended ended = child.wait();
  EXPECT_EQ(ended.code, kOk) << ended.output;
  const std::string shown = terminal.shown(), redraw = "\r\033[K";
  EXPECT_EQ(shown.find(redraw + "step 1/3  loss "), 0u) << shown;
  EXPECT_NE(shown.find(redraw + "step 3/3  loss "), std::string::npos) << shown;
  EXPECT_TRUE(shown.ends_with(redraw)) << shown;
  std::istringstream lines(shown);
  for (std::string line; std::getline(lines, line, '\r');) {
    EXPECT_LT(line.size(), 60u + 3) << line;
    // Fields are whole: "step 1/3  loss 5.5 ... 12 tokens/s  1.2 TFLOP/s (34 % of peak)".
    const bool is_whole = line.size() < 5 || line.ends_with("tokens/s") || line.ends_with("left") ||
                          line.ends_with("TFLOP/s") || line.ends_with(" % of peak)");
    EXPECT_TRUE(is_whole) << line;
  }
  EXPECT_EQ(ended.output.find("step 3/3"), std::string::npos) << ended.output;
}

// mpirun's own boxes about a rank that ended would be ten lines more.
TEST(Watched, UnderMpiOneErrorIsTold) {
  if (!build_info::kMpi.found) GTEST_SKIP() << "this build has no MPI";
  const Arguments mpi = {"--world", "mpi", "--ranks", "2"};
  const auto run = [&](const Arguments& more) {
    Arguments all = mpi;
    all.insert(all.end(), more.begin(), more.end());
    return run_front(all);
  };
  const Ran refused = run({"--set", "parallel.tensor.mode=2d", "--set", "parallel.tensor.size=3"});
  EXPECT_EQ(refused.code, 3);
  EXPECT_EQ(refused.output.find("kuafu: refused: "), 0u) << refused.output;
  EXPECT_EQ(std::count(refused.output.begin(), refused.output.end(), '\n'), 1) << refused.output;
  // Where mpirun itself fails, that is told.
  ::setenv("OMPI_MCA_rmaps", "no_such_component", 1);
  const Ran lost = run({"--set", "parallel.data=2"});
  ::unsetenv("OMPI_MCA_rmaps");
  EXPECT_NE(lost.output.find("before a rank began"), std::string::npos) << lost.output;
}

TEST(Watched, TablesHoldTheStepsOfTheDocument) {
  const tests::Folder folder;
  const Ran ran = run_front({"--log", folder.path("a.jsonl"), "--log-every", "2"});
  ASSERT_EQ(ran.code, kOk) << ran.output;
  const auto lines = lines_of(folder.path("a.jsonl"));
  ASSERT_EQ(lines.size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    const Json row = Json::parse(lines[i]);
    EXPECT_EQ(row["step"], i + 1);
    EXPECT_EQ(row["loss"], ran.document["loss"][i]);
    EXPECT_EQ(row["step_time_s"], ran.document["step_time_s"]["samples"][i]);
  }
  EXPECT_NE(ran.output.find("step 2/3  loss "), std::string::npos) << ran.output;
  EXPECT_EQ(ran.output.find("step 3/3  loss "), std::string::npos) << ran.output;
}

TEST(Watched, ATableOfARunThatStartsAnewIsKeptUnderAnotherName) {
  const tests::Folder folder;
  const std::string log = folder.path("a.csv");
  const auto train = [&](const char* saved) {
    return run_front({"--log", log, "--checkpoint", folder.path(saved), "--resume"});
  };
  ASSERT_EQ(train("one").code, kOk);
  const std::string first = content_of(log);
  const Ran other = train("two");  // none of its checkpoints is there
  ASSERT_EQ(other.code, kOk) << other.output;
  EXPECT_EQ(content_of(log + ".before"), first);
  EXPECT_EQ(lines_of(log).size(), 4u);
  EXPECT_NE(other.output.find("had 3 rows"), std::string::npos) << other.output;
  EXPECT_EQ(train("three").code, kOk);
  EXPECT_EQ(content_of(log + ".before"), first);
  EXPECT_TRUE(std::filesystem::exists(log + ".before-2"));
}

TEST(Watched, RowsThatAResumedRunDoesNotMakeAgainAreKept) {
  const tests::Folder folder;
  const std::string log = folder.path("a.csv");
  const auto train = [&](const std::vector<std::string>& more) {
    std::vector<std::string> all = {"--log", log, "--checkpoint", folder.path("saved"), "--resume"};
    all.insert(all.end(), more.begin(), more.end());
    return run_front(all);
  };
  ASSERT_EQ(train({"--every", "1"}).code, kOk);
  const std::string first = content_of(log);
  std::filesystem::remove_all(folder.path("saved/step-00000003"));
  std::filesystem::remove_all(folder.path("saved/step-00000002"));
  const Ran less = train({"--stop-at", "2"});  // from step 1
  EXPECT_NE(less.output.find("had 3 rows, the last of step 3"), std::string::npos) << less.output;
  EXPECT_EQ(content_of(log + ".before"), first);
  EXPECT_EQ(lines_of(log).size(), 3u);
  std::filesystem::remove_all(folder.path("saved/step-00000002"));
  const Ran again = train({});
  EXPECT_NE(again.output.find("its rows of steps 2 to 2 go"), std::string::npos) << again.output;
  EXPECT_EQ(lines_of(log).size(), 4u);
}

// What a killed run leaves is nothing of an earlier one.
TEST(Watched, ADocumentOfAnEarlierRunIsGoneBeforeTheFirstStep) {
  const tests::Folder folder;
  const std::string json = folder.write("a.json", "{\"status\": \"ok\"}");
  tests::Child child({tests::built("bin/kuafu-worker"), "run",
                      folder.write("plan.toml", tests::kSmallPlan), "--steps", "100000", "--json",
                      json});
  EXPECT_TRUE(
      tests::eventually([&] { return !std::filesystem::exists(json); }, std::chrono::seconds(60)));
  ::kill(child.pid(), SIGKILL);
  child.wait();
  EXPECT_FALSE(std::filesystem::exists(json));
}

/// CRC-32C bit by bit, as its polynomial is divided by.
uint32_t check_of(const std::string& bytes) {
  uint32_t c = 0xffffffff;
  for (const char b : bytes) {
    for (int bit = 0; bit < 8; ++bit) {
      const uint32_t differs =
          (c ^ static_cast<uint32_t>(static_cast<unsigned char>(b) >> bit)) & 1;
      c = (c >> 1) ^ (differs != 0 ? 0x82f63b78 : 0);
    }
  }
  c = ~c;
  return ((c >> 15) | (c << 17)) + 0xa282ead8;
}

TEST(Watched, EventFilesAreFramedAndHoldTheLosses) {
  EXPECT_EQ(check_of("123456789"), ((0xe3069283u >> 15) | (0xe3069283u << 17)) + 0xa282ead8);
  const tests::Folder folder;
  const Ran ran = run_front({"--tensorboard", folder.path("board")});
  ASSERT_EQ(ran.code, kOk) << ran.output;
  std::string bytes;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path("board"))) {
    EXPECT_EQ(entry.path().filename().string().rfind("events.out.tfevents.", 0), 0u);
    bytes += content_of(entry.path());
  }
  std::vector<float> losses;
  int num_starts = 0;
  size_t at = 0;
  const auto number = [&](size_t from) {
    uint32_t n = 0;
    std::memcpy(&n, bytes.data() + from, 4);
    return n;
  };
  while (at < bytes.size()) {
    ASSERT_LE(at + 16, bytes.size());
    const size_t length = number(at);
    ASSERT_LE(at + 16 + length, bytes.size());
    EXPECT_EQ(number(at + 8), check_of(bytes.substr(at, 8)));
    const std::string event = bytes.substr(at + 12, length);
    EXPECT_EQ(number(at + 12 + length), check_of(event));
    // A session that starts at step 1: fields 2 and 7.
    num_starts += event.ends_with("\x10\x01\x3a\x02\x08\x01") ? 1 : 0;
    const std::string tag = "\x0a\x0atrain/loss\x15";  // field 1, ten bytes; then field 2, a float
    if (const size_t found = event.find(tag); found != std::string::npos) {
      losses.push_back(std::bit_cast<float>(number(at + 12 + found + tag.size())));
    }
    at += 16 + length;
  }
  EXPECT_EQ(num_starts, 1);
  const Ran again = run_front({"--tensorboard", folder.path("board")});
  EXPECT_EQ(again.code, 2) << again.output;
  EXPECT_NE(again.output.find("a run has written there"), std::string::npos) << again.output;
  ASSERT_EQ(losses.size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(losses[i], static_cast<float>(ran.document["loss"][i].get<double>()));
  }
}

/// The worker of `kuafu run` of kSmallPlan.
Arguments worker(const tests::Folder& folder, const Arguments& more) {
  Arguments words = {tests::built("bin/kuafu-worker"), "run",
                     folder.write("plan.toml", tests::kSmallPlan)};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

/// Whether the worker has something open that is called so: "socket:", a path. A process that is not
/// the worker yet has all that this one has.
bool has_open(int pid, const std::string& name) {
  std::error_code error;
  const std::string process = "/proc/" + std::to_string(pid);
  if (!std::filesystem::read_symlink(process + "/exe", error).string().ends_with("kuafu-worker"))
    return false;
  for (const auto& entry : std::filesystem::directory_iterator(process + "/fd", error)) {
    const std::string target = std::filesystem::read_symlink(entry.path(), error).string();
    if (target.find(name) != std::string::npos) return true;
  }
  return false;
}

TEST(Watching, ALogThatAnotherRunWritesIsRefused) {
  const tests::Folder folder;
  const std::string log = std::filesystem::canonical(folder.path(".")) / "a.csv";
  const FileClaim other("--log", log);
  const Ended refused = tests::Child(worker(folder, {"--log", log})).wait();
  EXPECT_EQ(refused.code, 2) << refused.output;
  EXPECT_NE(refused.output.find("a.csv: another run writes it"), std::string::npos)
      << refused.output;
}

TEST(Watching, ADocumentThatAnotherRunWritesIsRefusedUntouched) {
  const tests::Folder folder;
  const std::string document = folder.write("run.json", "{}");
  FileClaim other("--json", document);
  const Arguments run = {tests::built("bin/kuafu"), "run",
                         folder.write("plan.toml", tests::kSmallPlan), "--json", document};
  const Ended refused = tests::Child(run).wait();
  EXPECT_EQ(refused.code, 2) << refused.output;
  EXPECT_NE(refused.output.find("run.json: another run writes it"), std::string::npos)
      << refused.output;
  EXPECT_EQ(content_of(document), "{}");
  other = FileClaim();
  EXPECT_EQ(tests::Child(run).wait().code, kOk);
}

// Its rows were not there when this run looked first, and are there when that one has ended.
TEST(Watching, ALogThatAnotherRunWroteMeanwhileIsKept) {
  const tests::Folder folder;
  const std::string log = std::filesystem::canonical(folder.path(".")) / "a.csv";
  FileClaim other("--log", log);
  tests::Child child(worker(folder, {"--log", log}));
  ASSERT_TRUE(
      tests::eventually([&] { return has_open(child.pid(), "socket:"); }, std::chrono::seconds(60)))
      << child.output();
  folder.write("a.csv", "step,loss\n1,2\n");
  other = FileClaim();
  const Ended refused = child.wait();
  EXPECT_EQ(refused.code, 2) << refused.output;
  EXPECT_NE(refused.output.find("there is one already"), std::string::npos) << refused.output;
  EXPECT_EQ(content_of(log), "step,loss\n1,2\n");
}

TEST(Watching, ACheckpointThatAnotherRunSavedMeanwhileIsWrongUsage) {
  const tests::Folder folder;
  const std::string saved = folder.path("saved");
  std::filesystem::create_directories(saved);
  File other(::open((saved + "/lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
  ASSERT_EQ(::flock(other.descriptor(), LOCK_EX), 0);
  tests::Child child(worker(folder, {"--checkpoint", saved}));
  ASSERT_TRUE(tests::eventually([&] { return has_open(child.pid(), "saved/lock"); },
                                std::chrono::seconds(60)))
      << child.output();
  std::filesystem::create_directories(saved + "/step-00000003");
  other = File();
  const Ended refused = child.wait();
  EXPECT_EQ(refused.code, 2) << refused.output;
  EXPECT_NE(refused.output.find("holds the checkpoints of another run"), std::string::npos)
      << refused.output;
}

// A file with other bytes behind its end is another build of it.
TEST(Watching, GoingOnWithAnotherBuildOfAPlugInIsTold) {
  const tests::Folder folder;
  const std::string build = content_of(tests::built("plugins/my_optimizer.so"));
  const std::string a = folder.write("a.so", build), renamed = folder.write("b.so", build);
  const auto run = [&](const std::string& plugin, const Arguments& more) {
    Arguments all = {"--checkpoint", folder.path("saved"), "--plugin", plugin};
    all.insert(all.end(), more.begin(), more.end());
    const Ended ended = tests::Child(worker(folder, all)).wait();
    EXPECT_EQ(ended.code, kOk) << ended.output;
    return ended.output;
  };
  const auto expect = [](const std::string& said, const char* told) {
    EXPECT_NE(said.find(told), std::string::npos) << said;
  };
  run(a, {});
  EXPECT_EQ(run(renamed, {"--resume"}).find("was saved with"), std::string::npos);
  folder.write("a.so", build + "1");
  expect(run(a, {"--resume"}), "was saved with another build of a.so: ");
  folder.write("c.so", build + "2");
  expect(run(folder.path("c.so"), {"--resume"}), "was saved without c.so: ");
}

}  // namespace
}  // namespace kuafu
