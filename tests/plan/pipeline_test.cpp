// SPDX-License-Identifier: Apache-2.0
//
// Pipelines that no run could have are refused when the plan is read.

#include <gtest/gtest.h>

#include <fstream>
#include <utility>

#include "kuafu/plan/plan.h"

namespace kuafu {
namespace {

Plan parse(const std::string& toml) {
  return parse_plan(toml, "plan.toml", builtin_tensor_modes(), {}, {"gpt", "bert", "mine"});
}

struct Wrong {
  std::string toml;
  std::vector<std::string> says;
};

template <class ErrorType>
void expect_says(const std::vector<Wrong>& all) {
  for (const Wrong& wrong : all) {
    try {
      parse(wrong.toml);
      ADD_FAILURE() << "accepted: " << wrong.toml;
    } catch (const ErrorType& e) {
      for (const std::string& words : wrong.says) {
        EXPECT_NE(std::string(e.what()).find(words), std::string::npos)
            << e.what() << "\n  lacks: " << words;
      }
    }
  }
}

/// A file that is gone when the test is.
class File {
 public:
  explicit File(const std::string& content)
      : path_(testing::TempDir() + "pipeline_" +
              testing::UnitTest::GetInstance()->current_test_info()->name() + ".csv") {
    std::ofstream(path_) << content;
  }
  ~File() { std::remove(path_.c_str()); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

TEST(PipelinePlan, NumberAloneMeansOneForwardOneBackward) {
  const Plan plan = parse("[parallel]\npipeline = 4\n");
  EXPECT_EQ(plan.parallel.pipeline.size, 4);
  EXPECT_EQ(plan.parallel.pipeline.schedule, "1f1b");
}

TEST(PipelinePlan, UnknownScheduleNamesTheNearest) {
  expect_says<ConfigError>({
      {"[parallel.pipeline]\nsize = 2\nschedule = \"1fb1\"\n",
       {"plan.toml:3: ", "\"1fb1\" is no pipeline schedule", "nearest: \"1f1b\"", "a CSV file"}},
      {"[parallel]\npipeline = { size = 2, schedule = \"interleave\" }\n",
       {"plan.toml:2: ", "nearest: \"interleaved\""}},
      {"[parallel]\npipeline = { size = 2, schedule = \"none/such.csv\" }\n",
       {"plan.toml:2: ", "none/such.csv"}},
  });
}

TEST(PipelinePlan, WrongChunksNameTheRightOnes) {
  expect_says<Refused>({
      {"[parallel]\npipeline = { size = 2, schedule = \"gpipe\", chunks = 2 }\n",
       {"plan.toml:2: ", "chunks = 2", "nearest: chunks = 1"}},
      {"[parallel]\npipeline = { size = 2, schedule = \"zbv\" }\n",
       {"plan.toml:2: ", "nearest: chunks = 2"}},
  });
}

TEST(PipelinePlan, StagesNeedBlocks) {
  expect_says<Refused>({
      {"[model]\nlayers = 2\n[parallel]\npipeline = 8\n",
       {"plan.toml:4: ", "8 stages of 4 blocks", "nearest: size = 4, or layers = 6"}},
      {"[model]\nlayers = 2\n[parallel]\npipeline = { size = 2, blocks = [1, 2, 1] }\n",
       {"plan.toml:4: ", "3 numbers for 2 stages"}},
      {"[model]\nlayers = 2\n[parallel]\npipeline = { size = 2, blocks = [1, 2] }\n",
       {"plan.toml:4: ", "adds up to 3", "4 blocks", "nearest: blocks = [2, 2]"}},
  });
  EXPECT_NO_THROW(parse("[model]\nkind = \"mine\"\nlayers = 2\n[parallel]\npipeline = 8\n"));
}

TEST(PipelinePlan, OneRankHasNone) {
  expect_says<Refused>({
      {"[parallel]\npipeline = { size = 1, schedule = \"gpipe\" }\n",
       {"plan.toml:2: ", "one rank has no pipeline", "nearest: size = 2"}},
      {"[parallel]\npipeline = { size = 1, chunks = 3 }\n", {"chunks = 3", "nearest: size = 3"}},
      {"[parallel]\npipeline = { size = 1, blocks = [4] }\n", {"leave blocks out"}},
  });
}

TEST(PipelinePlan, ScheduleOfAFileIsPlayedBeforeAnythingRuns) {
  const File good("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n");
  const std::string plan = "[train]\nbatch = 4\nmicro_batch = 2\n[parallel]\ndata = 1\n";
  const auto with = [&](const File& file) {
    return plan + "pipeline = { size = 2, schedule = \"" + file.path() + "\" }\n";
  };
  EXPECT_NO_THROW(parse(with(good)));
  const File circle("0F0,0B0,0F1,0B1\n1F1,1B1,1F0,1B0\n");
  expect_says<ConfigError>({
      {with(circle), {"plan.toml:6: ", "deadlocks", ">", "rank 1:"}},
      {"[train]\nbatch = 6\nmicro_batch = 2\n" + with(good).substr(with(good).find("[parallel]")),
       {"plan.toml:6: ", "made for 2 ranks, 1 stage a rank and 2 micro-batches",
        "3 micro-batches"}},
  });
}

TEST(PipelinePlan, RowThatAFileLacksIsNamed) {
  const std::string plan = "[model]\nlayers = 6\n[train]\nbatch = 2\nmicro_batch = 1\n[parallel]\n";
  const auto without = [](int rank) {
    std::string csv = "# by hand\n";
    for (int r = 0; r < 4; ++r) {
      if (r != rank) csv += text(r, "F0,", r, "F1,", r, "B0,", r, "B1\n");
    }
    return csv;
  };
  for (const auto& [rank, place] :
       {std::pair{0, "before line 2"}, {1, "before line 3"}, {3, "behind line 4"}}) {
    const File file(without(rank));
    expect_says<ConfigError>(
        {{text(plan, "data = 1\npipeline = { size = 4, schedule = \"", file.path(), "\" }\n"),
          {"plan.toml:8: ", "it has 3 rows, and each of 4 ranks needs one",
           text("no row has stage ", rank, " (such as ", rank, "F0); it belongs ", place)}}});
  }
}

}  // namespace
}  // namespace kuafu
