// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <unistd.h>

#include <tuple>

#include "kuafu/base/suggest.h"
#include "kuafu/record/schema.h"
#include "tests/app/process.h"
#include "tests/record/support.h"

namespace kuafu {
namespace {

/// The document of a small plan run by the real worker, with these options more.
Json document_of(const std::vector<std::string>& options, int expected_code) {
  const test::TemporaryFolder folder;
  test::write_text(folder / "plan.toml",
                   "[model]\nhidden = 16\nheads = 2\nsequence = 16\n[data]\nkind = \"synthetic\"\n"
                   "[train]\nbatch = 4\nsteps = 3\n[optimizer]\nlr = 1e-2\n");
  std::vector<std::string> words = {"run", folder / "plan.toml", "--json", folder / "out.json"};
  words.insert(words.end(), options.begin(), options.end());
  const test::Output output = test::front(words);
  EXPECT_EQ(output.code, expected_code) << output.out << output.err;
  const Json document = Json::parse(test::read_text(folder / "out.json"), nullptr, false);
  EXPECT_FALSE(document.is_discarded()) << output.err;
  return document;
}

class WorkerDocument : public testing::Test {
 protected:
  void SetUp() override {
    if (::access(test::built("kuafu-worker").c_str(), X_OK) != 0) {
      GTEST_SKIP() << "this build has no kuafu-worker, which needs LibTorch";
    }
  }
};

void expect_documented(const Json& document, const std::string& status) {
  EXPECT_EQ(value_at(document, "status"), status) << document.dump();
  EXPECT_EQ(join(document_problems(document), "\n"), "");
  EXPECT_EQ(join(unknown_fields(document)), "");
}

TEST_F(WorkerDocument, OfARunHoldsToThePage) {
  const Json document = document_of({"--ranks", "2", "--certify"}, 0);
  expect_documented(document, "ok");
  EXPECT_EQ(document["loss"].size(), 3U);
  EXPECT_EQ(value_at(document, "certificate.verdict"), "equal");
  EXPECT_EQ(value_at(document, "plan.parallel.data.size"), 2);
}

TEST_F(WorkerDocument, NamesWhatAutoOfTheOptimizerBecame) {
  for (const auto& [kind, exclude, bound] : {std::tuple{"lamb", "vectors", "ratio"},
                                             {"lars", "vectors", "none"},
                                             {"adamw", "none", "none"}}) {
    const Json document =
        document_of({"--world", "simulated", "--set", std::string("optimizer.kind=") + kind}, 0);
    EXPECT_EQ(value_at(document, "plan.optimizer.exclude"), exclude) << kind;
    EXPECT_EQ(value_at(document, "plan.optimizer.bound"), bound) << kind;
  }
}

TEST_F(WorkerDocument, SaysWhoElseUsedTheMachine) {
  const Json document = document_of({"--ranks", "2", "--set", "train.steps=30"}, 0);
  expect_documented(document, "ok");
  const Json& load = document["load"];
  EXPECT_EQ(load["threads_per_rank"], 1);
  EXPECT_EQ(load["threads"], 2);
  EXPECT_EQ(load["oversubscription"], 2 / load["cores"].get<double>());
  EXPECT_GT(load["window_s"], 0);
  EXPECT_GE(load["average"], 0);
  if (::access("/proc/stat", R_OK) == 0) {
    EXPECT_GE(load["foreign_share"], 0);
    EXPECT_LE(load["foreign_share"], 1);
  }
}

/// Whatever bytes a message quotes: a plan's name, a value of the command line, a file's content.
TEST_F(WorkerDocument, KeepsStatusAndReasonWhereTheyAreNoUtf8) {
  const test::TemporaryFolder folder;
  test::write_text(folder / "latin.csv", "0F0,\xff\xc3\n");
  const std::vector<std::vector<std::string>> all = {
      {"--set", "model.kind=\xff\xfe"},
      {"--set", "parallel.pipeline.size=2", "--set",
       "parallel.pipeline.schedule=" + (folder / "latin.csv")},
      {"--checkpoint", "/proc/\xff"}};
  for (const std::vector<std::string>& options : all) {
    const Json document = document_of(options, 2);
    EXPECT_EQ(value_at(document, "status"), "failed") << options[1];
    EXPECT_TRUE(value_at(document, "reason").is_string()) << options[1];
    EXPECT_EQ(join(document_problems(document), "\n"), "") << options[1];
  }
}

TEST_F(WorkerDocument, OfAMixtureHasTheLoadOfEveryStep) {
  const Json document = document_of({"--ranks", "2", "--set", "model.kind=moe_gpt", "--set",
                                     "model.experts=3", "--set", "model.capacity_factor=0.7"},
                                    0);
  expect_documented(document, "ok");
  for (const Json& load : {document["experts"], document["experts"]["blocks"]["0"]}) {
    const Json& steps = load["steps"];
    for (const char* series : {"tokens", "drop_rate", "imbalance"}) {
      EXPECT_EQ(steps[series].size(), 3U) << series;
    }
    for (size_t e = 0; e < 3; ++e) {
      int64_t sum = 0;
      for (const Json& tokens : steps["tokens"]) sum += tokens[e].get<int64_t>();
      EXPECT_EQ(load["tokens"][e], sum);
    }
    for (const Json& rate : steps["drop_rate"]) EXPECT_GT(rate.get<double>(), 0);
    for (const Json& imbalance : steps["imbalance"]) EXPECT_GE(imbalance.get<double>(), 1);
  }
}

TEST_F(WorkerDocument, OfASimulationHoldsToThePage) {
  const Json document = document_of({"--ranks", "2", "--world", "simulated"}, 0);
  expect_documented(document, "ok");
  EXPECT_TRUE(document["loss"].is_null());
  EXPECT_TRUE(document["load"].is_null());
}

TEST_F(WorkerDocument, OfAPlanThatCannotBePlacedHoldsToThePage) {
  expect_documented(document_of({"--ranks", "3"}, 3), "refused");
}

TEST_F(WorkerDocument, OfAPlanOverItsBudgetHoldsToThePage) {
  const Json document = document_of({"--ranks", "2", "--set", "memory.device=20 kB"}, 4);
  expect_documented(document, "out_of_memory");
  EXPECT_GT(value_at(document, "out_of_memory.requested_bytes"), 0);
  EXPECT_TRUE(value_at(document, "load.foreign_share").is_null());
  EXPECT_GT(value_at(document, "load.cores"), 0);
}

}  // namespace
}  // namespace kuafu
