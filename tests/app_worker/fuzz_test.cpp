// SPDX-License-Identifier: Apache-2.0
//
// kuafu fuzz: a seeded sample finds nothing, a wrong scheme is found and minimised, a campaign goes
// on where it ended and is the same for any number of jobs, MPI ranks that die or hang are found.

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "kuafu/base/build_info.h"
#include "kuafu/base/errors.h"
#include "kuafu/record/json.h"
#include "tests/app_worker/process.h"

namespace kuafu {
namespace {

using tests::Arguments;
using tests::Ended;

Ended fuzz(const Arguments& more, const std::map<std::string, std::string>& environment = {}) {
  Arguments words = {tests::built("bin/kuafu"), "fuzz"};
  words.insert(words.end(), more.begin(), more.end());
  return tests::Child(words, environment).wait(std::chrono::seconds(400));
}

Json result_in(const std::string& folder) {
  std::ifstream in(folder + "/result.json");
  Json result = Json::parse(in);
  for (Json& block : result["blocks"]) {
    for (const char* field : {"time", "command"}) block["provenance"].erase(field);
  }
  return result;
}

TEST(Fuzz, FindsNothingInASample) {
  const Ended ran =
      fuzz({"--seconds", "20", "--plans", "100", "--seed", "14", "--world", "threads"});
  EXPECT_EQ(ran.code, 0) << ran.output;
  const size_t end = ran.output.rfind(" equal"), begin = ran.output.rfind(' ', end - 1);
  ASSERT_NE(end, std::string::npos) << ran.output;
  EXPECT_GE(std::stoi(ran.output.substr(begin, end - begin)), 10) << ran.output;
}

TEST(Fuzz, LetsOneCallIntoAFolder) {
  const tests::Folder folder;
  const std::string out = folder.path("plans");
  tests::Child first(
      {tests::built("bin/kuafu"), "fuzz", "--seconds", "60", "--world", "threads", "--out", out});
  ASSERT_TRUE(tests::eventually([&] { return std::filesystem::exists(out + "/lock"); },
                                std::chrono::seconds(60)))
      << first.output();
  const Ended second = fuzz({"--seconds", "60", "--world", "threads", "--out", out});
  EXPECT_EQ(second.code, 2) << second.output;
  EXPECT_NE(second.output.find("another runner"), std::string::npos) << second.output;
}

// A scheme that is wrong whenever it is drawn, as it is in some of a hundred plans.
TEST(Fuzz, FindsAWrongSchemeAndPrintsTheLeastPlan) {
  const tests::Folder folder;
  const std::string out = folder.path("plans");
  const Ended ran = fuzz({"--seconds", "60", "--plans", "400", "--seed", "1", "--world", "threads",
                          "--out", out, "--plugin", tests::built("plugins/broken_1d.so")});
  EXPECT_EQ(ran.code, 1) << ran.output;
  EXPECT_NE(ran.output.find("kuafu run /dev/null --certify"), std::string::npos) << ran.output;
  const Json findings = result_in(out)["findings"];
  EXPECT_GT(findings.size(), 0u) << ran.output;
  for (const Json& one : findings) {
    EXPECT_EQ(one["ending"], "different") << one;
    EXPECT_NE(one["command"].get<std::string>().find("broken"), std::string::npos) << one;
  }
}

TEST(Fuzz, GoesOnBehindWhatTheFolderHoldsWithAnyNumberOfJobs) {
  const tests::Folder folder;
  const std::string out = folder.path("plans"), whole = folder.path("whole");
  const auto run = [](const std::string& plans, const std::string& jobs, const std::string& to) {
    return fuzz({"--seconds", "60", "--plans", plans, "--seed", "3", "--world", "threads", "--jobs",
                 jobs, "--out", to})
        .code;
  };
  ASSERT_EQ(run("4", "1", out), 0);
  ASSERT_EQ(run("9", "3", out), 0);
  ASSERT_EQ(run("9", "1", whole), 0);
  EXPECT_EQ(result_in(out), result_in(whole));
  EXPECT_EQ(result_in(out)["plan_endings"].get<std::string>().size(), 9u);
  // What contradicts itself is no record.
  const std::string sound = tests::content_of(out + "/result.json");
  for (const char* key : {"plan_worlds", "plan_endings", "plans"}) {
    Json damaged = Json::parse(sound);
    damaged[key] =
        damaged[key].is_string() ? Json(damaged[key].get<std::string>().substr(0, 5)) : Json(8);
    std::ofstream(out + "/result.json") << damaged.dump();
    EXPECT_EQ(run("9", "1", out), 2) << key;
  }
  std::ofstream(out + "/result.json") << sound;
  // The page tells the call that goes on there, and how often each ending was met: 9 in all.
  const std::string page = tests::content_of(out + "/README.md");
  EXPECT_NE(page.find("--plans 9 --seconds 7200 --seed 3 --ranks 8 --jobs 2 --world threads"),
            std::string::npos)
      << page;
  int64_t met = 0;
  std::istringstream lines(page);
  for (std::string line; std::getline(lines, line);) {
    if (line.rfind("| ", 0) != 0 || line.rfind("| ending", 0) == 0) continue;
    met += std::stoll(line.substr(line.rfind('|', line.size() - 2) + 1));
  }
  EXPECT_EQ(met, 9) << page;
  const Ended other = fuzz({"--seconds", "5", "--seed", "4", "--world", "threads", "--out", out});
  EXPECT_EQ(other.code, 2) << other.output;
  EXPECT_NE(other.output.find("holds plans of seed 3"), std::string::npos) << other.output;
}

TEST(Fuzz, SaysWhichProgramRanWhichPlans) {
  const tests::Folder folder;
  const std::string out = folder.path("plans");
  const auto run = [&](const std::string& plans) {
    return fuzz({"--seconds", "60", "--plans", plans, "--seed", "3", "--world", "threads", "--out",
                 out})
        .code;
  };
  ASSERT_EQ(run("2"), 0);
  Json result = result_in(out);
  result["blocks"][0]["provenance"]["git_commit"] = "0123456789abcdef";  // of an older program
  std::ofstream(out + "/result.json") << result;
  ASSERT_EQ(run("3"), 0);
  const Json blocks = result_in(out)["blocks"];
  ASSERT_EQ(blocks.size(), 2u) << blocks;
  EXPECT_EQ(blocks[0]["first"], 0);
  EXPECT_EQ(blocks[0]["provenance"]["git_commit"], "0123456789abcdef");
  EXPECT_EQ(blocks[1]["first"], 2);
  EXPECT_NE(blocks[1]["provenance"]["git_commit"], "0123456789abcdef");
}

TEST(Fuzz, RunsTheOnePlanOfItsSettings) {
  const Ended ran = fuzz({"--world", "threads", "--set", "data.kind=synthetic", "--set",
                          "model.hidden=8", "--set", "parallel.data=2"});
  EXPECT_EQ(ran.code, 0) << ran.output;
  EXPECT_EQ(ran.output, "threads: equal\n");
}

/// How `kuafu fuzz` ends with one plan of two ranks of that scheme and budget.
Ended fuzz_budget(const std::string& scheme, int64_t budget) {
  return fuzz({"--world", "threads", "--plugin", tests::built("plugins/faults.so"), "--set",
               "data.kind=synthetic", "--set", "model.hidden=8", "--set", "train.steps=2", "--set",
               "parallel.tensor.mode=" + scheme, "--set", "parallel.tensor.size=2", "--set",
               text("memory.device=", budget)});
}

// A plan that is over its budget is simulated too, and must be over it there: to the byte.
TEST(Fuzz, PlansOverTheirBudgetAreOverItSimulated) {
  const tests::Ran whole =
      tests::run_worker("", tests::set({"data.kind=synthetic", "model.hidden=8", "train.steps=2",
                                        "parallel.tensor.mode=1d", "parallel.tensor.size=2"}));
  ASSERT_EQ(whole.code, 0) << whole.output;
  const std::vector<int64_t> peaks = whole.document["memory"]["peak_bytes"];
  const int64_t peak = *std::max_element(peaks.begin(), peaks.end());
  const Ended enough = fuzz_budget("1d", peak), less = fuzz_budget("1d", peak - 1);
  EXPECT_EQ(enough.output, "threads: equal\n");
  EXPECT_EQ(less.code, 0);
  EXPECT_TRUE(less.output.starts_with("threads: out of memory, ")) << less.output;
  const Ended hoarding = fuzz_budget("1d-hoard", peak);
  EXPECT_EQ(hoarding.code, 1);
  EXPECT_TRUE(
      hoarding.output.starts_with("threads: metered, simulated, the plan keeps to its "
                                  "budget, and not on its ranks: "))
      << hoarding.output;
}

class FuzzMpi : public testing::Test {
 protected:
  void SetUp() override {
    if (!build_info::kMpi.found) GTEST_SKIP() << "this build has no MPI";
  }

  /// One plan of a scheme of tests/plugin/faults.cpp; none of its processes may be left.
  static Ended run_fault(const std::string& scheme, const std::string& timeout) {
    const std::string mark = "fuzz-" + scheme;
    Ended ran = fuzz({"--world", "mpi", "--ranks", "3", "--timeout", timeout, "--plugin",
                      tests::built("plugins/faults.so"), "--set", "data.kind=synthetic", "--set",
                      "model.hidden=8", "--set", "train.steps=3", "--set",
                      "parallel.tensor.mode=" + scheme, "--set", "parallel.tensor.size=2"},
                     {{"KUAFU_TEST_MARK", mark}});
    EXPECT_TRUE(
        tests::eventually([&] { return tests::processes_with("KUAFU_TEST_MARK", mark).empty(); },
                          std::chrono::seconds(5)));
    return ran;
  }
};

TEST_F(FuzzMpi, FindsNothingInASample) {
  const Ended ran = fuzz({"--seconds", "8", "--plans", "40", "--seed", "14", "--world", "mpi",
                          "--world", "mpi-native", "--ranks", "4"});
  EXPECT_EQ(ran.code, 0) << ran.output;
  EXPECT_NE(ran.output.find(" equal"), std::string::npos) << ran.output;
}

TEST_F(FuzzMpi, FindsARankThatIsKilledAndLeavesNobody) {
  const Ended ran = run_fault("1d-kill", "60");
  EXPECT_EQ(ran.code, 1) << ran.output;
  EXPECT_NE(ran.output.find("mpi: crash, the process of rank 1 ended"), std::string::npos)
      << ran.output;
}

TEST_F(FuzzMpi, FindsAHangAndLeavesNobody) {
  const Ended ran = run_fault("1d-hang", "8");
  EXPECT_EQ(ran.code, 1) << ran.output;
  EXPECT_NE(ran.output.find("mpi: hang, no end in 8 s"), std::string::npos) << ran.output;
}

}  // namespace
}  // namespace kuafu
