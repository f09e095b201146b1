// SPDX-License-Identifier: Apache-2.0
//
// `train.validate_every`, the best checkpoint and divergence, as a user meets them.

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "kuafu/base/build_info.h"
#include "kuafu/checkpoint/folder.h"
#include "kuafu/record/schema.h"
#include "tests/app_worker/process.h"

namespace kuafu {
namespace {

using tests::Arguments;
using tests::Ran;

constexpr int kOk = 0, kUsage = 2, kRefused = 3, kDiverged = 6;

Ran run(const Arguments& more) {
  const Ran ran = tests::run_front(more);
  for (const std::string& problem : document_problems(ran.document)) ADD_FAILURE() << problem;
  for (const std::string& field : unknown_fields(ran.document))
    ADD_FAILURE() << "docs/record.md lacks " << field;
  return ran;
}

/// Cells of a column of a CSV file, by its name.
std::vector<std::string> column(const std::string& file, const std::string& name) {
  std::ifstream in(file);
  std::vector<std::vector<std::string>> rows;
  for (std::string line; std::getline(in, line);) {
    std::vector<std::string> cells;
    std::istringstream words(line + ",");
    for (std::string cell; std::getline(words, cell, ',');) cells.push_back(cell);
    rows.push_back(cells);
  }
  const auto at = std::find(rows.at(0).begin(), rows.at(0).end(), name) - rows.at(0).begin();
  std::vector<std::string> found;
  for (size_t i = 1; i < rows.size(); ++i) found.push_back(rows[i].at(static_cast<size_t>(at)));
  return found;
}

class Validated : public testing::TestWithParam<const char*> {};

TEST_P(Validated, SeriesIsInDocumentAndLogAndTheBestIsKept) {
  const tests::Folder folder;
  const std::string saved = folder.path("saved"), log = folder.path("log.csv");
  const Arguments common = {"--world", GetParam(), "--ranks", "2", "--set", "parallel.data=2"};
  const auto with = [&](Arguments more) {
    more.insert(more.end(), common.begin(), common.end());
    return run(more);
  };
  const Ran ran = with({"--set", "train.validate_every=2", "--steps", "5", "--log", log,
                        "--log-every", "5", "--checkpoint", saved, "--keep", "1"});
  ASSERT_EQ(ran.code, kOk) << ran.output;
  const Json v = ran.document["validation"];
  EXPECT_EQ(v["steps"], (Json{2, 4, 5}));
  EXPECT_EQ(v["losses"][2], ran.document["validation_loss"]);
  const auto cells = column(log, "validation_loss");
  ASSERT_EQ(cells.size(), 5u);
  EXPECT_EQ(cells[0] + cells[2], "");
  EXPECT_EQ(Json::parse(cells[1]), v["losses"][0]);
  EXPECT_EQ(Json::parse(cells[4]), v["losses"][2]);
  EXPECT_NE(ran.output.find(" % of peak)"), std::string::npos) << ran.output;
  EXPECT_GT(ran.document["compute"]["peak_flops_per_s"], 1e6);
  EXPECT_GT(ran.document["compute"]["share_of_peak"], 0);

  const int64_t best = v["best_step"];
  EXPECT_EQ(step_of_folder(best_checkpoint(saved).value_or("")), best);
  tests::Child child({tests::built("bin/kuafu"), "export", saved + "/best", "--out",
                      folder.path("weights.safetensors")});
  const tests::Ended exported = child.wait();
  EXPECT_EQ(exported.code, kOk) << exported.output;
  EXPECT_NE(exported.output.find("of step " + std::to_string(best)), std::string::npos);
  const Ran tuned =
      with({"--steps", "6", "--checkpoint", folder.path("tuned"), "--from", saved + "/best"});
  EXPECT_EQ(tuned.code, kOk) << tuned.output;
  EXPECT_EQ(tuned.document["resumed_from"], best);
  EXPECT_TRUE(tuned.document["validation"].is_null());
  EXPECT_TRUE(tuned.document["compute"].is_null()) << "nobody watched";
}

std::vector<const char*> worlds() {
  if (build_info::kMpi.found) return {"threads", "mpi"};
  return {"threads"};
}

INSTANTIATE_TEST_SUITE_P(Worlds, Validated, testing::ValuesIn(worlds()),
                         [](const auto& info) { return std::string(info.param); });

// A run that goes on without the key ends the series with its own last loss.
TEST(Validation, OfAFolderEndsWithTheLastStepWhoeverGoesOn) {
  const tests::Folder folder;
  const std::string saved = folder.path("saved");
  const Arguments common = {"--steps", "6", "--set", "optimizer.warmup=0", "--checkpoint", saved};
  const auto with = [&](Arguments more) {
    more.insert(more.end(), common.begin(), common.end());
    return run(more);
  };
  EXPECT_EQ(with({"--set", "train.validate_every=2", "--stop-at", "4"}).code, kOk);
  const Ran ran = with({"--resume"});
  ASSERT_EQ(ran.code, kOk) << ran.output;
  const Json v = ran.document["validation"];
  EXPECT_EQ(v["steps"], (Json{2, 4, 6}));
  EXPECT_EQ(v["losses"][2], ran.document["validation_loss"]);
  EXPECT_EQ(v["best_step"], 6) << v;
  EXPECT_EQ(step_of_folder(best_checkpoint(saved).value_or("")), 6);
}

TEST(Validation, IsNothingInTheSimulatedWorld) {
  const Ran with = run({"--world", "simulated", "--set", "train.validate_every=1"});
  const Ran without = run({"--world", "simulated"});
  ASSERT_EQ(with.code, kOk) << with.output;
  EXPECT_TRUE(with.document["validation"].is_null());
  for (const char* field : {"flops_per_step", "memory", "ledger", "step_time_s"})
    EXPECT_EQ(with.document[field], without.document[field]) << field;
}

TEST(Validation, DivergenceNamesTheLastGoodStateAndGoesOnFromIt) {
  const tests::Folder folder;
  const std::string saved = folder.path("saved");
  const Arguments wild = {"--set",        "optimizer.kind=sgd",
                          "--set",        "optimizer.lr=300",
                          "--set",        "optimizer.clip=0",
                          "--set",        "optimizer.warmup=40",
                          "--steps",      "20",
                          "--checkpoint", saved,
                          "--every",      "1",
                          "--keep",       "1"};
  const Ran ran = run(wild);
  ASSERT_EQ(ran.code, kDiverged) << ran.output;
  const std::string good = ran.document["checkpoint"]["last_good"];
  EXPECT_EQ(newest_checkpoint(saved), good);
  EXPECT_NE(ran.output.find("the last good state, by its finite loss, is " + good),
            std::string::npos)
      << ran.output;
  // The state after the last step made has no loss; its loss is what diverged.
  EXPECT_EQ(step_of_folder(good), static_cast<int64_t>(ran.document["loss"].size()) - 1);
}

TEST(Validation, ALastUpdateThatBlowsUpIsDivergence) {
  const tests::Folder folder;
  const std::string saved = folder.path("saved");
  const auto with = [&](const char* steps, const char* rate, const char* resume) {
    const std::string lr = std::string("optimizer.lr=") + rate,
                      decay = std::string("optimizer.weight_decay=") + rate;
    return run({"--set", "optimizer.kind=sgd", "--set", "optimizer.clip=0", "--set", lr, "--set",
                decay, "--steps", steps, "--checkpoint", saved, resume});
  };
  ASSERT_EQ(with("2", "0.01", "--resume").code, kOk);
  const Ran ran = with("3", "1e6", "--resume-with-changes");
  ASSERT_EQ(ran.code, kDiverged) << ran.output;
  EXPECT_EQ(ran.document["status"], "diverged");
  EXPECT_EQ(ran.document["loss"].size(), 1u);
  EXPECT_TRUE(ran.document["loss"][0].is_number());
  EXPECT_TRUE(ran.document["validation_loss"].is_null());
  EXPECT_NE(ran.output.find("the validation loss is "), std::string::npos) << ran.output;
  const std::string good = ran.document["checkpoint"]["last_good"];
  EXPECT_EQ(step_of_folder(good), 2);
  EXPECT_EQ(newest_checkpoint(saved), good);
  EXPECT_TRUE(std::filesystem::exists(saved + "/step-00000003.diverged"));
}

TEST(Validation, WrongUseIsToldBeforeTheRun) {
  const tests::Folder folder;
  const std::vector<std::pair<Arguments, std::string>> wrong = {
      {{"--set", "train.validate_every=-1"}, "train.validate_every"},
      {{"--set", "train.validate_evry=1"}, "train.validate_every"},
      {{"--set", "train.validate_every=1", "--set", "train.validation_batches=0"},
       "has nothing to validate on: train.validation_batches = 0"},
      {{"--from", "saved/best"}, "--from needs the folder of the checkpoints"},
      {{"--from", folder.path("nothing"), "--checkpoint", folder.path("new")}, "is no folder"},
      {{"--from", folder.path("best"), "--checkpoint", folder.path("new")}, "is not there"},
  };
  for (const auto& [more, says] : wrong) {
    const Ran ran = tests::run_front(more);
    EXPECT_EQ(ran.code, kUsage) << ran.output;
    EXPECT_NE(ran.output.find(says), std::string::npos) << says << "\n" << ran.output;
  }
}

// As a sweep over staleness has it: its other cases run.
TEST(Validation, AndTelemetryAreRefusedOfWorkersInDifferentSteps) {
  for (const char* key : {"train.validate_every=1", "train.telemetry=true"}) {
    const Ran ran = tests::run_front({"--set", key, "--set", "parallel.data=2", "--set",
                                      "parallel.data.mode=parameter_server", "--set",
                                      "parallel.data.staleness=1", "--set", "optimizer.clip=0"});
    EXPECT_EQ(ran.code, kRefused) << ran.output;
    EXPECT_NE(ran.output.find("workers are in different steps"), std::string::npos) << ran.output;
  }
}

}  // namespace
}  // namespace kuafu
