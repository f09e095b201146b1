// SPDX-License-Identifier: Apache-2.0
#include "kuafu/experiment/baselines.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <set>

#include "kuafu/base/build_folders.h"
#include "kuafu/base/errors.h"

namespace kuafu {
namespace {

namespace fs = std::filesystem;

const std::string kBaselineHead = "[suite]\nname = \"s\"\nquestion = \"q\"\n";
const std::string kBaselineSweep = R"([base.model]
layers = 4
[base.parallel]
sequence = { mode = "ring", size = 1 }
[[strategy]]
name = "replicas"
ranks = [1, 2, 4]
parallel.data = "$ranks"
[[strategy]]
name = "1D"
ranks = 4
parallel.tensor = { mode = "1d", size = 4 }
[grid]
train.batch = [8, 16]
)";

/// A folder of baselines of its own, and suites that compare with them.
class Baselines : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("kuafu_baselines_" + std::to_string(::getpid()));
    write("split/half.toml",
          "[parallel]\ndata = \"auto\"\ntensor = { mode = \"1d-sp\", size = 2 }\n"
          "[train]\nmicro_batch = 2\n");
    write("shard/all.toml", "[parallel]\nzero = 3\n");
    write("shard/state.toml", "[parallel]\nzero = 1\n");
    fs::create_directories(folder_ / "peers");  // no plan: no baseline
  }
  void TearDown() override { fs::remove_all(folder_); }

  void write(const std::string& path, const std::string& toml) const {
    fs::create_directories((folder_ / path).parent_path());
    std::ofstream(folder_ / path) << toml;
  }

  Suite suite(const std::string& toml) const {
    SuiteOptions options;
    options.baselines = folder_.string();
    return parse_suite(kBaselineHead + toml, "s.toml", options);
  }

  /// Cases that are comparison rows.
  std::vector<Case> rows(const std::string& toml) const {
    std::vector<Case> out;
    for (const Case& c : suite(toml).cases) {
      if (find_setting(c.settings, "baseline") != nullptr) out.push_back(c);
    }
    return out;
  }

  std::vector<std::string> names(const std::string& toml) const {
    std::vector<std::string> out;
    for (const Case& c : rows(toml)) out.push_back(c.name);
    return out;
  }

  void expect_error(const std::string& toml, const std::vector<std::string>& words) const {
    try {
      suite(toml);
      ADD_FAILURE() << "no error";
    } catch (const ConfigError& error) {
      for (const auto& word : words) {
        EXPECT_NE(std::string(error.what()).find(word), std::string::npos)
            << "no \"" << word << "\" in: " << error.what();
      }
    }
  }

  fs::path folder_;
};

using Names = std::vector<std::string>;

TEST_F(Baselines, StandBesideEveryKindOfWorkOnce) {
  EXPECT_EQ(names(kBaselineSweep + "[[compare]]\nbaseline = \"split\"\n"),
            (Names{"split half, 2 ranks, batch 8", "split half, 2 ranks, batch 16",
                   "split half, 4 ranks, batch 8", "split half, 4 ranks, batch 16"}));
}

TEST_F(Baselines, TakeTheSuitesWorkAndTheirOwnPlacement) {
  const auto cases = rows(kBaselineSweep + "[[compare]]\nbaseline = \"split\"\n");
  const Case& c = cases.at(3);
  EXPECT_EQ(c.ranks, 4);
  EXPECT_EQ(case_value(c, "model.layers"), "4");
  EXPECT_EQ(case_value(c, "train.batch"), "16");
  EXPECT_EQ(case_value(c, "parallel.tensor.mode"), "1d-sp");
  EXPECT_EQ(case_value(c, "parallel.data.size"), "2");
  EXPECT_EQ(case_value(c, "parallel.sequence.mode"), "none") << "the base's own placement stayed";
  EXPECT_EQ(case_value(c, "train.micro_batch"), "2");
  EXPECT_EQ(case_value(c, "strategy"), "split half");
  EXPECT_EQ(case_value(c, "baseline"), "split");
  EXPECT_EQ(case_value(c, "world"), "threads");
}

TEST_F(Baselines, LeaveTheMicroBatchToASuiteThatSaysIt) {
  const std::string compare = "[[compare]]\nbaseline = \"split\"\n";
  for (const auto& c : rows(kBaselineSweep + "train.micro_batch = [1, 4]\n" + compare)) {
    EXPECT_NE(case_value(c, "train.micro_batch"), "2") << c.name;
  }
  const auto cases = rows("[base.train]\nmicro_batch = 1\n[grid]\nranks = [2]\n" + compare);
  EXPECT_EQ(case_value(cases.at(0), "train.micro_batch"), "1");
}

TEST_F(Baselines, WithSeveralPlansGiveARowEach) {
  const std::string grid = "[grid]\nranks = [2]\n";
  EXPECT_EQ(names(grid + "[[compare]]\nbaseline = \"shard\"\n"),
            (Names{"shard all, 2 ranks", "shard state, 2 ranks"}));
  EXPECT_EQ(names(grid + "[[compare]]\nbaseline = \"shard\"\nplan = \"state\"\nname = \"mine\"\n"),
            (Names{"mine, 2 ranks"}));
}

TEST_F(Baselines, AreComparedWhereTheRowSays) {
  const std::string compare = "[[compare]]\nbaseline = \"split\"\n";
  EXPECT_EQ(names("[grid]\nranks = [1, 2, 4]\n" + compare + "ranks = 4\n"),
            (Names{"split half, 4 ranks"}));
  expect_error("[grid]\nranks = [1, 2]\n" + compare + "ranks = [3]\n",
               {"s.toml:6", "split", "no case to compare with"});
  expect_error("[grid]\nranks = [1]\n" + compare, {"s.toml:6", "two ranks or more"});
}

TEST_F(Baselines, TakeKeysOfTheRow) {
  const auto cases = rows(
      "[grid]\nranks = [4]\n[[compare]]\nbaseline = \"split\"\n"
      "set = { parallel.tensor.size = \"$ranks\", parallel.data = 1, train.micro_batch = 4 }\n");
  EXPECT_EQ(case_value(cases.at(0), "parallel.tensor.size"), "4");
  EXPECT_EQ(case_value(cases.at(0), "train.micro_batch"), "4");
  EXPECT_EQ(case_value(cases.at(0), "parallel.data.size"), "1");
}

TEST_F(Baselines, ThatCannotBePlacedStayToBeRefused) {
  const auto cases = rows("[grid]\nranks = [3]\n[[compare]]\nbaseline = \"split\"\n");
  ASSERT_EQ(cases.size(), 1U);
  EXPECT_EQ(cases[0].ranks, 3);
  EXPECT_NE(cases[0].plan_toml.find("parallel.tensor.size = 2"), std::string::npos)
      << cases[0].plan_toml;
}

TEST_F(Baselines, LeaveExtraCasesAndSkippedPointsAlone) {
  EXPECT_EQ(names("[grid]\nranks = [2, 4]\n[[skip]]\nranks = 4\n"
                  "[[case]]\nname = \"extra\"\nranks = 8\n[[compare]]\nbaseline = \"split\"\n"),
            (Names{"split half, 2 ranks"}));
}

TEST_F(Baselines, KeepWhatARowOfTheSuiteSaysAboutTheWork) {
  EXPECT_EQ(names("[[strategy]]\nname = \"a\"\nranks = 2\ntrain.batch = 4\nparallel.data = 2\n"
                  "[[strategy]]\nname = \"b\"\nranks = 2\ntrain.batch = 8\nparallel.data = 2\n"
                  "[[compare]]\nbaseline = \"split\"\n"),
            (Names{"split half, 2 ranks, batch 4", "split half, 2 ranks, batch 8"}));
}

TEST_F(Baselines, UnknownNamesAreErrorsWithLineAndNearest) {
  const std::string grid = "[grid]\nranks = [2]\n";
  expect_error(grid + "[[compare]]\nbaseline = \"splitt\"\n",
               {"s.toml:6", "\"splitt\"", "did you mean \"split\"", "\"shard\""});
  expect_error(grid + "[[compare]]\nbaseline = \"peers\"\n", {"no baseline", "\"peers\""});
  expect_error(grid + "[[compare]]\nbaseline = \"shard\"\nplan = \"stat\"\n",
               {"s.toml:6", "\"stat\"", "\"state\""});
  expect_error(grid + "[[compare]]\nbaselin = \"shard\"\n", {"s.toml:7", "\"baseline\""});
  expect_error(grid + "[[compare]]\nplan = \"x\"\n", {"s.toml:6", "baseline is missing"});
}

TEST_F(Baselines, MayNotChangeTheWork) {
  const std::string grid = "[grid]\nranks = [2]\n";
  expect_error(grid + "[[compare]]\nbaseline = \"split\"\nset = { model.layers = 2 }\n",
               {"s.toml:6", "model.layers", "parallel.*"});
  write("bad/a.toml", "[parallel]\nzero = 1\n[model]\nlayers = 9\n");
  expect_error(grid + "[[compare]]\nbaseline = \"bad\"\n", {"a.toml:4", "model.layers"});
  write("bad/a.toml", "[parallel]\nzeroo = 1\n");
  expect_error(grid + "[[compare]]\nbaseline = \"bad\"\n", {"a.toml:2", "zeroo", "zero"});
}

TEST_F(Baselines, ChangeTheIdentityOfTheSuite) {
  const std::string grid = "[grid]\nranks = [2]\n";
  EXPECT_NE(suite(grid).hash, suite(grid + "[[compare]]\nbaseline = \"split\"\n").hash);
  EXPECT_EQ(suite(grid).cases[0].id,
            suite(grid + "[[compare]]\nbaseline = \"split\"\n").cases[0].id);
}

TEST(TheBaselines, OfTheProjectAreRead) {
  const std::string folder = std::string(build_info::kSourceDir) + "/baselines";
  EXPECT_EQ(baseline_names(folder), (Names{"deepspeed_style", "megatron_style"}));
  Names plans;
  for (const auto& plan : load_baseline(folder, "deepspeed_style").plans)
    plans.push_back(plan.name);
  EXPECT_EQ(plans, (Names{"3d", "zero1", "zero2", "zero3"}));
  const auto keys = load_baseline(folder, "megatron_style").plans.at(0).keys;
  EXPECT_EQ(*find_setting(keys, "parallel.tensor.mode"), "1d-sp");
  EXPECT_EQ(*find_setting(keys, "parallel.pipeline.schedule"), "interleaved");
  EXPECT_EQ(*find_setting(keys, "parallel.zero"), 1);
}

}  // namespace
}  // namespace kuafu
