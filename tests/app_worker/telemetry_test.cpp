// SPDX-License-Identifier: Apache-2.0
//
// `train.telemetry` as a user meets it: series in the document, in tables and event files, over a resume.

#include <gtest/gtest.h>

#include <filesystem>
#include <sstream>

#include "kuafu/record/schema.h"
#include "tests/app_worker/process.h"

namespace kuafu {
namespace {

using tests::Arguments;
using tests::content_of;
using tests::Ran;

constexpr int kOk = 0;
constexpr const char* kWatched = "train.telemetry=true";
constexpr const char* kWeight = "telemetry/weight_norm/blocks.1.mlp.up.weight";

Ran run(const Arguments& settings, const Arguments& more, const Arguments& launcher = {}) {
  const Ran ran =
      tests::run_program("bin/kuafu", tests::kSmallPlan, tests::set(settings, more), launcher, {});
  EXPECT_EQ(ran.code, kOk) << ran.output;
  for (const std::string& problem : document_problems(ran.document)) ADD_FAILURE() << problem;
  return ran;
}

using Cells = std::vector<std::vector<std::string>>;

/// Rows of a table without its times, the first of them names.
Cells table_of(const std::string& file) {
  std::istringstream in(content_of(file));
  Cells rows;
  std::vector<bool> is_kept;
  for (std::string line; std::getline(in, line);) {
    std::istringstream words(line + ",");
    std::vector<std::string> cells;
    size_t at = 0;
    for (std::string cell; std::getline(words, cell, ','); ++at) {
      if (rows.empty()) is_kept.push_back(cell == "step" || cell.starts_with("telemetry/"));
      if (is_kept.at(at)) cells.push_back(cell);
    }
    EXPECT_EQ(at, is_kept.size()) << line;
    rows.push_back(cells);
  }
  return rows;
}

TEST(Telemetry, GoesOnOverAResumeInDocumentAndTableToTheBit) {
  const tests::Folder folder;
  const std::string whole = folder.path("whole.csv"), parts = folder.path("parts.csv");
  const Arguments settings = {kWatched, "parallel.data=2", "optimizer.kind=lamb"};
  const Ran unbroken = run(settings, {"--steps", "5", "--log", whole});
  const Arguments saving = {"--steps", "5", "--checkpoint", folder.path("saved"), "--log", parts};
  Arguments first = saving, second = saving;
  first.insert(first.end(), {"--stop-at", "2"});
  second.insert(second.end(), {"--resume"});
  run(settings, first);
  EXPECT_EQ(table_of(parts).size(), 3u);
  const Ran resumed = run(settings, second);
  const Json& series = unbroken.document["telemetry"];
  ASSERT_EQ(series["steps"], Json({0, 1, 2, 3, 4}));
  EXPECT_EQ(resumed.document["telemetry"].dump(), series.dump());
  const Cells cells = table_of(whole);
  EXPECT_EQ(table_of(parts), cells);
  ASSERT_EQ(cells.size(), 6u);
  EXPECT_EQ(cells[0].size(), 1 + 6 * series["layers"].size() + 1);
  EXPECT_EQ(cells[0].back(), "telemetry/noise_scale");
  for (size_t i = 0; i < series["layers"].size(); ++i) {
    EXPECT_EQ(cells[0][1 + i], "telemetry/gradient_norm/" + series["layers"][i].get<std::string>());
    EXPECT_EQ(std::stod(cells[4][1 + i]), series["gradient_norm"][3][i].get<double>());
  }
}

TEST(Telemetry, GoesOnOverARunThatRecordedNone) {
  const tests::Folder folder;
  const auto until = [&](const char* step, const Arguments& settings) {
    return run(settings, {"--steps", "6", "--checkpoint", folder.path("saved"), "--resume",
                          "--stop-at", step});
  };
  until("2", {kWatched});
  EXPECT_TRUE(until("4", {}).document["telemetry"].is_null());
  EXPECT_EQ(until("6", {kWatched}).document["telemetry"]["steps"], Json({0, 1, 4, 5}));
}

TEST(Telemetry, IsTheSameUnderMpiAndOfARuleOutOfTree) {
  const Arguments settings = {kWatched, "parallel.data=2", "parallel.zero=1",
                              "optimizer.kind=my_optimizer"};
  const Arguments plugin = {"--plugin", tests::built("plugins/my_optimizer.so")};
  const Json threads = run(settings, plugin).document["telemetry"];
  Arguments more = plugin;
  more.insert(more.end(), {"--world", "mpi"});
  EXPECT_EQ(run(settings, more, tests::mpirun(2)).document["telemetry"].dump(), threads.dump());
  const size_t layers = threads["layers"].size();
  for (size_t step = 0; step < 3; ++step) {
    for (size_t i = 0; i < layers; ++i) {
      EXPECT_GT(threads["weight_norm"][step][i].get<double>(), step == 0 ? -1 : 0);
      EXPECT_TRUE(threads["gradient_variance"][step][i].is_number());
    }
  }
  EXPECT_TRUE(threads["trust_ratio"].is_null());  // the rule has none
}

TEST(Telemetry, OfSkippedStepsHasNoNumberInDocumentAndTable) {
  const tests::Folder folder;
  const Ran ran = run({kWatched, "parallel.data=2", "model.dtype=f16", "train.loss_scale=dynamic",
                       "train.loss_scale_start=1e12"},
                      {"--steps", "30", "--log", folder.path("log.csv")});
  const Json &t = ran.document["telemetry"], &skipped = ran.document["loss_scale"]["skipped"];
  const size_t count = skipped.size();
  ASSERT_GT(count, 0u);
  ASSERT_LT(count, 30u);
  const Cells cells = table_of(folder.path("log.csv"));
  for (size_t step = 0; step < 30; ++step) {
    const bool is_skipped = std::find(skipped.begin(), skipped.end(), step) != skipped.end();
    EXPECT_EQ(t["weight_norm"][step][0].is_null(), is_skipped) << step;
    EXPECT_EQ(t["gradient_variance"][step][0].is_null(), is_skipped) << step;
    EXPECT_TRUE(!is_skipped || t["noise_scale"][step].is_null()) << step;
    EXPECT_EQ(cells[step + 1][1].empty(), is_skipped) << step;
  }
}

TEST(Telemetry, ThatThereIsNoneOfIsToldWithTheReason) {
  const Ran simulated = run({kWatched, "parallel.data=2"}, {"--world", "simulated"});
  EXPECT_TRUE(simulated.document["telemetry"].is_null());
  EXPECT_NE(simulated.output.find("telemetry       none: this world computes no numbers"),
            std::string::npos)
      << simulated.output;
  const Ran alone = run({kWatched}, {"--steps", "1"});
  EXPECT_TRUE(alone.document["telemetry"]["noise_scale"].is_null());
  EXPECT_NE(alone.output.find("36 layers in 1 step; no noise scale: it needs gradients of two"),
            std::string::npos)
      << alone.output;
}

TEST(Telemetry, ThatBeginsLaterLeavesCellsOfEarlierRowsEmpty) {
  const tests::Folder folder;
  const std::string log = folder.path("log.csv");
  const Arguments saving = {"--steps", "3", "--checkpoint", folder.path("saved"), "--log", log};
  Arguments first = saving, second = saving;
  first.insert(first.end(), {"--stop-at", "1"});
  second.insert(second.end(), {"--resume"});
  run({}, first);
  run({kWatched}, second);
  const Cells cells = table_of(log);
  ASSERT_EQ(cells.size(), 4u);
  const auto at =
      static_cast<size_t>(std::find(cells[0].begin(), cells[0].end(), kWeight) - cells[0].begin());
  ASSERT_LT(at, cells[0].size());
  EXPECT_EQ(cells[1][0], "1");
  EXPECT_EQ(cells[1][at], "");
  EXPECT_GT(std::stod(cells[2][at]), 0);
}

TEST(Telemetry, IsInRowsOfJsonAndInEventFiles) {
  const tests::Folder folder;
  const Ran ran =
      run({kWatched}, {"--log", folder.path("log.jsonl"), "--tensorboard", folder.path("board")});
  const Json& series = ran.document["telemetry"];
  const auto last =
      std::find(series["layers"].begin(), series["layers"].end(), "blocks.1.mlp.up.weight") -
      series["layers"].begin();
  std::istringstream in(content_of(folder.path("log.jsonl")));
  for (size_t step = 0; step < 3; ++step) {
    std::string line;
    ASSERT_TRUE(std::getline(in, line));
    EXPECT_EQ(Json::parse(line)[kWeight], series["weight_norm"][step][static_cast<size_t>(last)]);
  }
  std::string events;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path("board"))) {
    events += content_of(entry.path());
  }
  size_t found = 0;
  for (size_t at = events.find(kWeight); at != std::string::npos; at = events.find(kWeight, at + 1))
    ++found;
  EXPECT_EQ(found, 3u);
}

}  // namespace
}  // namespace kuafu
