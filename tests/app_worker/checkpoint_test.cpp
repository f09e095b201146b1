// SPDX-License-Identifier: Apache-2.0
//
// `kuafu run --checkpoint`: runs that are killed, that find the disk full, that go on.

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>

#include "kuafu/base/build_info.h"
#include "kuafu/base/errors.h"
#include "kuafu/checkpoint/checkpoint.h"
#include "kuafu/record/schema.h"
#include "tests/app_worker/process.h"

namespace kuafu {
namespace {

using tests::Arguments;
using tests::kSmallPlan;
using tests::Ran;

/// kSmallPlan on two ranks, `steps` steps, saved into `folder` after each.
Arguments saving(const std::string& folder, int steps, Arguments more = {}) {
  const Arguments all = {"--checkpoint", folder,
                         "--every",      "1",
                         "--set",        "parallel.tensor.mode=1d",
                         "--set",        "parallel.tensor.size=2",
                         "--set",        "train.steps=" + std::to_string(steps)};
  more.insert(more.end(), all.begin(), all.end());
  return more;
}

/// What tests/app_worker/cut_disk.c reads.
constexpr const char* kDisk = "KUAFU_TEST_DISK";

Ran run(const Arguments& more, const Arguments& launcher = {},
        std::map<std::string, std::string> environment = {}) {
  if (!environment.empty()) environment["LD_PRELOAD"] = tests::built("lib/libcut_disk.so");
  const Ran ran = tests::run_program("bin/kuafu", kSmallPlan, more, launcher, environment);
  for (const std::string& problem : document_problems(ran.document)) ADD_FAILURE() << problem;
  for (const std::string& field : unknown_fields(ran.document)) {
    ADD_FAILURE() << "docs/record.md lacks " << field;
  }
  return ran;
}

void expect_says(const Ran& ran, const std::string& part) {
  EXPECT_NE(ran.output.find(part), std::string::npos)
      << "\"" << part << "\" is missing in: " << ran.output;
}

struct World {
  const char* name;
  bool is_mpi;
  Arguments launcher() const { return is_mpi ? tests::mpirun(2) : Arguments{}; }
};
std::ostream& operator<<(std::ostream& out, const World& w) { return out << w.name; }

std::vector<World> worlds() {
  std::vector<World> all = {{"threads", false}};
  if (build_info::kMpi.found) all.push_back({"mpi", true});
  return all;
}

class Checkpoints : public testing::TestWithParam<World> {
 protected:
  static Arguments launcher() { return GetParam().launcher(); }

  tests::Folder folder_;
  std::string path_ = folder_.path("saved");
};

TEST_P(Checkpoints, ResumedRunEndsWithTheSameBits) {
  const Ran whole = run(saving(folder_.path("whole"), 4), launcher());
  ASSERT_EQ(whole.code, 0) << whole.output;
  EXPECT_TRUE(whole.document["resumed_from"].is_null());
  EXPECT_EQ(whole.document["checkpoint"]["saves"], 4);
  const Ran first = run(saving(path_, 2), launcher());
  ASSERT_EQ(first.code, 0) << first.output;
  const Ran then = run(saving(path_, 4, {"--resume"}), launcher());
  ASSERT_EQ(then.code, 0) << then.output;
  EXPECT_EQ(then.document["resumed_from"], 2);
  expect_says(then, "resumed from    step 2");
  const Json losses = whole.document["loss"];
  EXPECT_EQ(then.document["loss"], (Json{losses[2], losses[3]}));
  EXPECT_EQ(then.document["validation_loss"], whole.document["validation_loss"]);
  EXPECT_EQ(then.document["flops_per_step"], whole.document["flops_per_step"]);
}

TEST_P(Checkpoints, AsyncOnesAreAsGood) {
  const Ran whole = run(saving(folder_.path("whole"), 8), launcher());
  const Ran first = run(saving(path_, 5, {"--async"}), launcher());
  ASSERT_EQ(first.code, 0) << first.output;
  EXPECT_EQ(complete_checkpoints(path_).size(), 5u);
  const Ran then = run(saving(path_, 8, {"--resume", "--async"}), launcher());
  ASSERT_EQ(then.code, 0) << then.output;
  EXPECT_EQ(then.document["resumed_from"], 5);
  EXPECT_EQ(then.document["loss"][2], whole.document["loss"][7]);
  const Ran full =
      run(saving(path_, 12, {"--resume", "--async"}), launcher(), {{kDisk, "full:50000"}});
  EXPECT_NE(full.code, 0) << full.output;
  EXPECT_NE(full.document["reason"].get<std::string>().find("No space left on device"),
            std::string::npos)
      << full.output;
}

/// The copy that is written beside the steps is of states on the host, and takes memory there.
TEST_P(Checkpoints, AsyncOnesOfTiersTakeNoneOfTheDevice) {
  for (const char* policy : {"host", "auto"}) {
    SCOPED_TRACE(policy);
    const Arguments tiers = {"--set", std::string("memory.policy=") + policy, "--set",
                             "memory.device=50MB"};
    Arguments beside = tiers;
    beside.emplace_back("--async");
    const Ran whole =
        run(saving(folder_.path(std::string("whole-") + policy), 4, tiers), launcher());
    const Ran ran = run(saving(path_ + policy, 4, beside), launcher());
    ASSERT_EQ(ran.code, 0) << ran.output;
    EXPECT_EQ(ran.document["loss"], whole.document["loss"]);
    EXPECT_EQ(ran.document["memory"]["peak_bytes"], whole.document["memory"]["peak_bytes"]);
  }
}

TEST_P(Checkpoints, ResumeWithoutAnyStartsAnewAndSaysSo) {
  const Ran ran = run(saving(path_, 2, {"--resume", "--keep", "1"}), launcher());
  ASSERT_EQ(ran.code, 0) << ran.output;
  EXPECT_TRUE(ran.document["resumed_from"].is_null());
  expect_says(ran, "holds no checkpoint yet: the run starts anew");
  EXPECT_EQ(complete_checkpoints(path_).size(), 1u);
}

TEST_P(Checkpoints, FullDiskIsOneErrorAndLeavesTheOneBefore) {
  ASSERT_EQ(run(saving(path_, 2), launcher()).code, 0);
  for (const char* end : {"0", "9", "100000"}) {
    const Ran full = run(saving(path_, 4, {"--resume"}), launcher(), {{kDisk, text("full:", end)}});
    EXPECT_NE(full.code, 0) << full.output;
    EXPECT_LT(full.seconds, 20);
    EXPECT_EQ(full.document["status"], "failed");
    const std::string reason = full.document["reason"];
    EXPECT_NE(reason.find(path_ + "/step-00000003.partial/"), std::string::npos) << reason;
    EXPECT_NE(reason.find("No space left on device"), std::string::npos) << reason;
  }
  const Ran after = run(saving(path_, 4, {"--resume"}), launcher());
  EXPECT_EQ(after.code, 0) << after.output;
  EXPECT_EQ(after.document["resumed_from"], 2);
}

/// All numbers of a checkpoint, proof that it is whole.
void expect_whole(const std::string& folder) {
  const Checkpoint saved(folder);
  for (const auto& [name, tensor] : saved.tensors()) {
    int64_t bytes = size_of(tensor.dtype);
    for (const int64_t extent : tensor.global) bytes *= extent;
    std::vector<char> data(static_cast<size_t>(bytes));
    saved.read(name, {Shape(tensor.global.size(), 0), tensor.global}, data.data());
  }
}

TEST_P(Checkpoints, KilledAtAnyByteOfASaveTheRunGoesOn) {
  ASSERT_EQ(run(saving(path_, 1), launcher()).code, 0);
  const std::string count = folder_.path("count"), whole = folder_.path("whole");
  std::filesystem::copy(path_, whole, std::filesystem::copy_options::recursive);
  const Ran expected = run(saving(whole, 2, {"--resume"}), launcher(), {{kDisk, "count:" + count}});
  ASSERT_EQ(expected.code, 0) << expected.output;
  int64_t bytes = 0;
  std::ifstream(count) >> bytes;
  ASSERT_GT(bytes, 100000);
  // The first bytes, the last calls (rename, fsync), and what lies between.
  std::vector<int64_t> moments = {0, 1, 8, bytes - 2, bytes - 1};
  for (int64_t i = 1; i < 8; ++i) moments.push_back(i * bytes / 8 + i);
  for (const int64_t moment : moments) {
    const Ran killed =
        run(saving(path_, 2, {"--resume"}), launcher(), {{kDisk, text("kill:", moment)}});
    EXPECT_NE(killed.code, 0) << killed.output;
    EXPECT_EQ(complete_checkpoints(path_), (std::vector<std::string>{path_ + "/step-00000001"}))
        << moment;
    expect_whole(path_ + "/step-00000001");
  }
  const Ran resumed = run(saving(path_, 2, {"--resume"}), launcher());
  ASSERT_EQ(resumed.code, 0) << resumed.output;
  EXPECT_EQ(resumed.document["resumed_from"], 1);
  EXPECT_EQ(resumed.document["loss"], expected.document["loss"]);
}

INSTANTIATE_TEST_SUITE_P(Worlds, Checkpoints, testing::ValuesIn(worlds()),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(ResumeWithChanges, IsRefusedNamingBothValuesUnlessItIsMeant) {
  const tests::Folder folder;
  const std::string saved = folder.path("saved"),
                    corpus = folder.write("corpus", std::string(999, 'x'));
  const auto resumed = [&](const Arguments& changes, const char* how) {
    Arguments more = {
        how, "--set", "data.kind=text", "--set", "model.vocab=256", "--set", "data.path=" + corpus};
    for (const std::string& change : changes) more.insert(more.end(), {"--set", change});
    return run(saving(saved, 3, more));
  };
  ASSERT_EQ(run(saving(saved, 2,
                       {"--set", "data.kind=text", "--set", "model.vocab=256", "--set",
                        "data.path=" + corpus}))
                .code,
            0);
  for (const auto& [change, said] : std::vector<std::pair<std::string, std::string>>{
           {"optimizer.lr=0.5", "optimizer.lr = 0.001, now 0.5"},
           {"train.seed=9", "train.seed = 1, now 9"}}) {
    const Ran refused = resumed({change}, "--resume");
    EXPECT_EQ(refused.code, 2) << refused.output;
    expect_says(refused, said);
    expect_says(refused, "--resume-with-changes");
  }
  const std::string before = Checkpoint(saved + "/step-00000002").state().at("plan");
  folder.write("corpus", std::string(999, 'y'));
  const Ran other = resumed({}, "--resume");
  EXPECT_EQ(other.code, 2) << other.output;
  const size_t at = before.find("hash = \"") + 8;
  expect_says(other, "data.hash = \"" + before.substr(at, 16) + "\", now \"");
  const Ran meant = resumed({"optimizer.lr=0.5"}, "--resume-with-changes");
  ASSERT_EQ(meant.code, 0) << meant.output;
  EXPECT_EQ(meant.document["resumed_from"], 2);
  const std::string changes = meant.document["resume_changes"];
  EXPECT_NE(changes.find("optimizer.lr = 0.001, now 0.5"), std::string::npos) << changes;
  EXPECT_NE(changes.find("data.hash = "), std::string::npos) << changes;
}

// One rank of two dies in the middle of its file: the other is not left waiting.
TEST(CheckpointsUnderMpi, RankKilledInASaveIsTheReason) {
  if (!build_info::kMpi.found) GTEST_SKIP() << "this build has no MPI";
  const tests::Folder folder;
  const std::string path = folder.path("saved");
  const std::map<std::string, std::string> kill = {{kDisk, "kill:50000"},
                                                   {"KUAFU_TEST_DISK_RANK", "1"}};
  ASSERT_EQ(run(saving(path, 1), tests::mpirun(2)).code, 0);
  const Ran killed = run(saving(path, 3, {"--resume"}), tests::mpirun(2), kill);
  EXPECT_NE(killed.code, 0) << killed.output;
  EXPECT_LT(killed.seconds, 10);
  const std::string reason = killed.document["reason"];
  EXPECT_NE(reason.find("rank 1: its worker was killed by signal 9"), std::string::npos) << reason;
  const Ran resumed = run(saving(path, 3, {"--resume"}), tests::mpirun(2));
  EXPECT_EQ(resumed.code, 0) << resumed.output;
  EXPECT_EQ(resumed.document["resumed_from"], 1);
}

/// A plain file of trained weights, imported; the folder to begin from.
std::string imported_weights(const tests::Folder& folder) {
  const std::string saved = folder.path("saved"), begun = folder.path("begun");
  const std::string file = folder.path("w.safetensors");
  EXPECT_EQ(run(saving(saved, 2)).code, 0);
  for (const Arguments& words :
       {Arguments{"export", saved, "--out", file}, Arguments{"import", file, "--out", begun}}) {
    Arguments command = {tests::built("bin/kuafu")};
    command.insert(command.end(), words.begin(), words.end());
    const tests::Ended ended = tests::Child(command).wait();
    EXPECT_EQ(ended.code, 0) << ended.output;
  }
  return begun;
}

TEST(ImportedWeights, OfAPluginBeginWithIt) {
  const tests::Folder folder;
  const std::string saved = folder.path("saved"), file = folder.path("w.safetensors");
  const std::string plugin = tests::built("plugins/macaron.so");
  const Arguments with = {"--plugin", plugin};
  Arguments train = tests::set({"model.kind=macaron"}, saving(saved, 2));
  train.insert(train.end(), with.begin(), with.end());
  ASSERT_EQ(run(train).code, 0);
  const auto front = [](Arguments words) {
    words.insert(words.begin(), tests::built("bin/kuafu"));
    return tests::Child(words).wait();
  };
  ASSERT_EQ(front({"export", saved, "--out", file}).code, 0);
  const tests::Ended ended =
      front({"import", file, "--out", folder.path("begun"), "--plugin", plugin});
  EXPECT_EQ(ended.code, 0) << ended.output;
  EXPECT_NE(ended.output.find(" --resume --plugin " + plugin + "\n"), std::string::npos)
      << ended.output;
  const tests::Ended other = front({"import", file, "--out", folder.path("other"), "--plugin",
                                    tests::built("plugins/faults.so")});
  EXPECT_EQ(other.code, 2) << other.output;
  EXPECT_NE(other.output.find("faults.so has none of that name"), std::string::npos)
      << other.output;
}

TEST(ImportedWeights, AreCertifiedUnderAnotherPlan) {
  const tests::Folder folder;
  const std::string begun = imported_weights(folder), again = folder.path("again");
  std::filesystem::copy(begun, again, std::filesystem::copy_options::recursive);
  const auto certified = [&](const Arguments& settings, const Arguments& more) {
    return run(tests::set(settings, more));
  };
  const Arguments from = {"--certify", "--checkpoint", begun, "--resume"};
  const Ran ran = certified({"parallel.data=2"}, from);
  ASSERT_EQ(ran.code, 0) << ran.output;
  EXPECT_EQ(ran.document["resumed_from"], 0);
  EXPECT_EQ(ran.document["certificate"]["verdict"], "equal") << ran.output;
  EXPECT_EQ(ran.document["certificate"]["native"]["verdict"], "equal") << ran.output;
  const Ran anew = certified({"parallel.data=2"}, {"--certify"});
  EXPECT_NE(ran.document["loss"][0], anew.document["loss"][0]) << "the seed's weights";
  const Ran wrong = certified({"parallel.tensor.mode=1d-tenth", "parallel.tensor.size=2"},
                              {"--certify", "--checkpoint", again, "--resume", "--plugin",
                               tests::built("plugins/faults.so")});
  EXPECT_EQ(wrong.code, 1) << wrong.output;
  EXPECT_EQ(wrong.document["certificate"]["verdict"], "different") << wrong.output;
}

TEST(CheckpointOptions, WithoutSenseAreRefusedBeforeAnythingRuns) {
  const tests::Folder folder;
  const std::string path = folder.path("saved");
  const std::string file = folder.write("file", "in the way");
  struct Bad {
    Arguments arguments;
    const char* says;
  };
  for (const Bad& bad :
       {Bad{{"--resume"}, "--resume needs the folder of the checkpoints: --checkpoint DIR"},
        Bad{{"--every", "2"}, "--every needs"}, Bad{{"--keep", "2"}, "--keep needs"},
        Bad{{"--checkpoint", path, "--world", "simulated"},
            "the simulated world computes no numbers"}}) {
    const Ran ran = run(bad.arguments);
    EXPECT_EQ(ran.code, 2) << ran.output;
    expect_says(ran, bad.says);
    EXPECT_FALSE(std::filesystem::exists(path));
  }
  const Ran in_the_way = run(saving(file, 2));
  EXPECT_EQ(in_the_way.code, 2) << in_the_way.output;
  expect_says(in_the_way,
              "--checkpoint " + file + ": " + file + " is no folder; allowed: a folder");
  EXPECT_EQ(value_at(in_the_way.document, "loss"), Json()) << "before any training";
  const Ran below = run(saving(file + "/saved", 2));
  EXPECT_EQ(below.code, 2) << below.output;
  expect_says(below, file + "/saved: " + file + " is no folder");
  ASSERT_EQ(run(saving(path, 2)).code, 0);
  const Ran again = run(saving(path, 2));
  EXPECT_EQ(again.code, 2) << again.output;
  expect_says(again, "add --resume to go on from it");
  const Ran other = run(saving(path, 2, {"--resume", "--set", "model.layers=3"}));
  EXPECT_EQ(other.code, 2) << other.output;
  expect_says(other, "model.layers = 2, the plan has model.layers = 3");
}

TEST(CheckpointOptions, DamagedOnesAreNamedAndPassedOver) {
  const tests::Folder folder;
  const std::string path = folder.path("saved");
  ASSERT_EQ(run(saving(path, 3)).code, 0);
  std::filesystem::resize_file(path + "/step-00000003/rank-00001.safetensors", 1000);
  const Ran ran = run(saving(path, 4, {"--resume"}));
  ASSERT_EQ(ran.code, 0) << ran.output;
  EXPECT_EQ(ran.document["resumed_from"], 2);
  expect_says(ran, "step-00000003 is passed over: checkpoint file " + path +
                       "/step-00000003/rank-00001.safetensors is damaged");
}

TEST(CheckpointOptions, AllDamagedAreWrongInputWhateverIsDamaged) {
  const tests::Folder folder;
  for (const char* file : {"rank-00001.safetensors", "index.json"}) {
    const std::string path = folder.path(file);
    ASSERT_EQ(run(saving(path, 2)).code, 0);
    for (const char* step : {"/step-00000001/", "/step-00000002/"}) {
      if (std::filesystem::exists(path + step))
        std::filesystem::resize_file(path + step + file, 1000);
    }
    const Ran ran = run(saving(path, 4, {"--resume"}));
    EXPECT_EQ(ran.code, 2) << ran.output;
    EXPECT_EQ(ran.document["status"], "failed");
    expect_says(ran, "no checkpoint of " + path + " can be used:");
  }
}

}  // namespace
}  // namespace kuafu
