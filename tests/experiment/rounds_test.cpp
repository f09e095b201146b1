// SPDX-License-Identifier: Apache-2.0
#include "kuafu/experiment/rounds.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>
#include <sstream>
#include <utility>

#include "kuafu/base/errors.h"
#include "kuafu/experiment/runner.h"
#include "kuafu/record/schema.h"
#include "tests/experiment/fake_suite.h"
#include "tests/record/support.h"

namespace kuafu {
namespace {

using test::fake_options;
using test::TemporaryFolder;

/// Cases of the fake worker's behaviours on two seeds.
Suite suite_of(const std::vector<std::string>& behaviours, int64_t repeats,
               const std::string& head = "") {
  return test::fake_suite(behaviours, text("repeats = ", repeats, "\n", head),
                          "train.seed = [1, 2]\n");
}

/// What one call did, and what it printed.
struct Swept {
  SweepEnd end = SweepEnd::kComplete;
  RunCounts before, after;
  std::string printed;
  std::vector<std::string> sentences;
};

using Stop = std::function<bool(const RunRecord&)>;

Swept sweep(const std::string& folder, const Suite& suite, const Stop& stop = {},
            const std::set<std::string>& retried = {}) {
  RunnerOptions runner_options = fake_options(folder);
  runner_options.retried = retried;
  Runner runner(suite, runner_options);
  Swept swept;
  swept.before = runner.counts(suite.cases);
  swept.sentences = runner.repeated(suite.cases);
  std::ostringstream out;
  Progress::Options options;
  options.total = swept.before.total;
  options.finished = swept.before.total - swept.before.left;
  options.repeats = swept.before.repeats;
  {
    Progress progress(out, options);
    swept.end = runner.run(suite.cases, progress, [&] { return stop && stop(runner.record()); });
  }
  swept.after = runner.counts(suite.cases);
  swept.printed = out.str();
  return swept;
}

std::vector<Json> lines_in(const std::string& folder) {
  return read_run(folder + "/" + kRunFile).cases;
}

/// {(case, round)} with the place at which it was taken.
std::map<std::pair<std::string, int64_t>, int64_t> rounds_in(const RunRecord& record) {
  std::map<std::pair<std::string, int64_t>, int64_t> all;
  for (const Json& line : record.cases) {
    if (!line.contains("rounds")) continue;
    for (const Json& round : line["rounds"]) {
      all[{line["case_id"], round["round"]}] = round["position"];
    }
  }
  return all;
}

std::vector<std::string> ids_of(const std::vector<Turn>& turns) {
  std::vector<std::string> ids;
  for (const Turn& turn : turns) ids.push_back(turn.of->id);
  return ids;
}

std::string first_id(const Suite& suite) { return suite.cases.front().id; }

TEST(Rounds, HaveAnotherOrderEachAndTheSameAtEveryCall) {
  const std::vector<std::string> behaviours = {"ok", "slow", "refuse", "throw", "hang", "abort"};
  const Suite suite = suite_of(behaviours, 3), again = suite_of(behaviours, 5);
  const auto first = ids_of(order_of_round(suite, 1)), second = ids_of(order_of_round(suite, 2)),
             third = ids_of(order_of_round(suite, 3));
  for (size_t i = 0; i < suite.cases.size(); ++i) EXPECT_EQ(first[i], suite.cases[i].id);
  EXPECT_NE(first, second);
  EXPECT_NE(second, third);
  EXPECT_TRUE(std::is_permutation(first.begin(), first.end(), second.begin(), second.end()));
  EXPECT_EQ(second, ids_of(order_of_round(again, 2)));
  const Suite larger = suite_of({"ok", "slow", "refuse", "throw", "hang", "abort", "usage"}, 3);
  std::vector<std::string> common;
  for (const std::string& id : ids_of(order_of_round(larger, 2))) {
    if (std::count(first.begin(), first.end(), id) > 0) common.push_back(id);
  }
  EXPECT_NE(common, second);  // another suite, another seed
}

TEST(Rounds, TimeAgainWhatEndedWell) {
  const TemporaryFolder folder;
  const Suite suite = suite_of({"ok", "refuse"}, 3, "worlds = [\"threads\", \"simulated\"]");
  const Swept swept = sweep(folder.path(), suite);
  EXPECT_EQ(swept.end, SweepEnd::kComplete);
  EXPECT_EQ(suite.cases.size(), 6U);         // the simulated world reads no data
  EXPECT_EQ(swept.before.total, 6 + 2 * 4);  // nobody knows yet that two cases are refused
  EXPECT_EQ(swept.after.total, 6 + 2 * 2);
  EXPECT_EQ(swept.after.left, 0);
  EXPECT_NE(swept.printed.find("10/10  ok"), std::string::npos) << swept.printed;
  EXPECT_NE(swept.printed.find(", round 2"), std::string::npos) << swept.printed;
  for (const Json& line : lines_in(folder.path())) {
    const bool is_timed = line["status"] == "ok" && line["settings"]["world"] == "threads";
    EXPECT_EQ(line.contains("rounds"), is_timed);
    if (!is_timed) continue;
    ASSERT_EQ(line["rounds"].size(), 3U);
    EXPECT_EQ(line["timing"]["rounds"], 3);
    for (int64_t r = 1; r <= 3; ++r) {
      const Json& round = line["rounds"][static_cast<size_t>(r) - 1];
      EXPECT_EQ(round["round"], r);
      EXPECT_EQ(round["losses"], "same");
      EXPECT_EQ(round["began"].get<std::string>().size(), 20U);
      EXPECT_EQ(round["sweep"], line["rounds"][0]["sweep"]);
      EXPECT_EQ(round["sweep"].get<std::string>().size(), 16U);
      const auto order = ids_of(order_of_round(suite, r));
      EXPECT_EQ(order.at(round["position"].get<size_t>() - 1), line["case_id"]);
    }
    const std::string at = folder / ("cases/" + line["case_id"].get<std::string>());
    EXPECT_NE(test::read_text(at + "/output.txt").find("\n--certify\n"), std::string::npos);
    EXPECT_NE(test::read_text(at + "/output-round-3.txt").find("--no-certify"), std::string::npos);
  }
}

TEST(Rounds, OneRoundSaysThatItIsOne) {
  const TemporaryFolder folder;
  sweep(folder.path(), suite_of({"ok"}, 1));
  const Json line = lines_in(folder.path()).at(0);
  EXPECT_EQ(line["timing"]["rounds"], 1);
  EXPECT_EQ(line["timing"]["step_time_s"]["ci95"], line["document"]["step_time_s"]["ci95"]);
}

TEST(Rounds, GoOnWithTheSameRunsAfterAStop) {
  const TemporaryFolder folder;
  const Suite suite = suite_of({"ok", "slow", "refuse", "not_run"}, 3);
  sweep(folder / "whole", suite);
  const auto whole = rounds_in(read_run(folder / "whole" + ("/" + std::string(kRunFile))));
  EXPECT_EQ(whole.size(), 18U);
  for (const size_t enough : {3U, 8U, 13U}) {  // in each of the rounds
    const std::string out = folder / text("stopped-", enough);
    const Swept stopped =
        sweep(out, suite, [&](const RunRecord& r) { return rounds_in(r).size() >= enough; });
    EXPECT_EQ(stopped.end, SweepEnd::kInterrupted);
    EXPECT_EQ(stopped.after.left, enough < 6 ? stopped.after.left : int64_t(18 - enough));
    const auto part = rounds_in(read_run(out + "/" + kRunFile));
    EXPECT_LT(part.size(), whole.size());
    const Swept rest = sweep(out, suite);
    EXPECT_EQ(rest.end, SweepEnd::kComplete);
    EXPECT_EQ(rounds_in(read_run(out + "/" + kRunFile)), whole);
  }
}

TEST(Rounds, GrowInTheSameFolderAndNeverShrink) {
  const TemporaryFolder folder;
  const auto num_rounds = [&] { return lines_in(folder.path()).at(0)["rounds"].size(); };
  sweep(folder.path(), suite_of({"ok"}, 1));
  const std::string document = lines_in(folder.path()).at(0)["document"].dump();
  EXPECT_EQ(num_rounds(), 1U);
  const Swept grown = sweep(folder.path(), suite_of({"ok"}, 3));
  EXPECT_EQ(grown.before.left, 4);
  EXPECT_EQ(grown.before.repeats, 4);
  EXPECT_EQ(num_rounds(), 3U);
  EXPECT_EQ(lines_in(folder.path()).at(0)["document"].dump(), document);  // of the certified run
  const Swept shrunk = sweep(folder.path(), suite_of({"ok"}, 2));
  EXPECT_EQ(shrunk.before.left, 0);
  EXPECT_EQ(shrunk.before.total, 4);
  EXPECT_EQ(num_rounds(), 3U);
}

TEST(Rounds, KeepTheCaseWhereALaterOneFails) {
  const TemporaryFolder folder;
  const Suite suite = suite_of({"throw_later"}, 3);
  sweep(folder.path(), suite);
  const Json line = lines_in(folder.path()).at(0);
  EXPECT_EQ(line["status"], "ok");
  EXPECT_EQ(value_at(line, "document.certificate.verdict"), "equal");
  EXPECT_EQ(line["rounds"].size(), 3U);
  EXPECT_EQ(line["rounds"][1]["status"], "failed");
  EXPECT_TRUE(line["rounds"][1]["step_time_s"].is_null());
  EXPECT_EQ(line["timing"]["rounds"], 1);
  const RoundFindings findings = findings_of_rounds(line);
  EXPECT_TRUE(findings.is_bad);
  ASSERT_EQ(findings.sentences.size(), 2U);
  EXPECT_NE(findings.sentences[0].find("round 2: failed: the worker was killed by signal 6"),
            std::string::npos)
      << findings.sentences[0];
  // Final, unless it is asked for.
  EXPECT_EQ(sweep(folder.path(), suite).before.left, 0);
  EXPECT_EQ(sweep(folder.path(), suite, {}, {"failed"}).before.left, 4);
}

TEST(Rounds, RunAgainWhatTheMachineEnded) {
  const TemporaryFolder folder;
  const Suite suite = suite_of({"kill_once_later"}, 2);
  EXPECT_EQ(sweep(folder.path(), suite).after.left, 0);
  EXPECT_EQ(lines_in(folder.path()).at(0)["rounds"][1]["status"], "failed");
  EXPECT_EQ(sweep(folder.path(), suite).before.left, 2);
  for (const Json& line : lines_in(folder.path())) {
    ASSERT_EQ(line["rounds"].size(), 2U);
    EXPECT_EQ(line["rounds"][1]["status"], "ok");
    EXPECT_EQ(line["timing"]["rounds"], 2);
    EXPECT_TRUE(findings_of_rounds(line).sentences.empty());
  }
}

TEST(Rounds, FindThatARunComputedSomethingElse) {
  const TemporaryFolder folder;
  const Suite suite = suite_of({"differ_later", "stale_later", "elsewhere_later"}, 2);
  sweep(folder.path(), suite);
  const std::vector<Json> lines = lines_in(folder.path());
  for (size_t i = 0; i < lines.size(); ++i) {
    const Json losses = lines[i]["rounds"].at(1)["losses"];
    if (i < 2) {
      EXPECT_EQ(losses, "different");
      EXPECT_TRUE(findings_of_rounds(lines[i]).is_bad);
    } else {  // what may differ: the order of pushes, the processor
      EXPECT_TRUE(losses.is_null()) << lines[i]["name"];
      EXPECT_FALSE(findings_of_rounds(lines[i]).is_bad);
    }
  }
}

TEST(Rounds, AreNotMixedWithThoseOfAnotherProgramOrMachine) {
  for (const char* field : {"git_commit", "host", "cpu_model"}) {
    const TemporaryFolder folder;
    sweep(folder.path(), suite_of({"ok"}, 1));
    {
      RunLog log(folder.path());
      RunRecord record = log.record();
      record.cases[1]["document"]["provenance"][field] = "another";
      log.rewrite(record);
    }
    const Swept swept = sweep(folder.path(), suite_of({"ok"}, 2));
    EXPECT_EQ(swept.before.left, 1) << field;
    EXPECT_EQ(lines_in(folder.path()).at(0)["rounds"].size(), 2U);
    EXPECT_EQ(lines_in(folder.path()).at(1)["rounds"].size(), 1U);
    ASSERT_EQ(swept.sentences.size(), 1U);
    EXPECT_NE(swept.sentences[0].find("not timed again: 1 case of another commit or machine"),
              std::string::npos);
  }
}

TEST(Rounds, AddToALineFromBeforeThereWereAny) {
  const TemporaryFolder folder;
  const Suite suite = suite_of({"ok"}, 2);
  sweep(folder.path(), suite_of({"ok"}, 1));
  {
    RunLog log(folder.path());
    RunRecord record = log.record();
    for (Json& line : record.cases) {
      line.erase("rounds");
      line.erase("timing");
    }
    log.rewrite(record);
  }
  EXPECT_EQ(sweep(folder.path(), suite_of({"ok"}, 1)).before.left, 0);
  sweep(folder.path(), suite);
  const Json line = lines_in(folder.path()).at(0);
  EXPECT_EQ(line["case_id"], first_id(suite));
  ASSERT_EQ(line["rounds"].size(), 2U);
  EXPECT_TRUE(line["rounds"][0]["position"].is_null());
  EXPECT_EQ(line["timing"]["rounds"], 2);
}

TEST(Rounds, EndWithTheBudgetBetweenTwoRuns) {
  const TemporaryFolder folder;
  const Suite suite = suite_of({"slow"}, 50, "budget_s = 0.3");
  const Swept swept = sweep(folder.path(), suite);
  EXPECT_EQ(swept.end, SweepEnd::kOutOfBudget);
  EXPECT_GT(swept.after.left, 0);
  EXPECT_LT(sweep(folder.path(), suite).after.left, swept.after.left);
}

}  // namespace
}  // namespace kuafu
