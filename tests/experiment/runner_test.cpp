// SPDX-License-Identifier: Apache-2.0
#include "kuafu/experiment/runner.h"

#include <gtest/gtest.h>

#include <signal.h>
#include <sys/resource.h>

#include <cerrno>
#include <filesystem>
#include <set>
#include <sstream>

#include "kuafu/base/errors.h"
#include "kuafu/base/suggest.h"
#include "kuafu/experiment/finality.h"
#include "kuafu/record/run_log.h"
#include "kuafu/record/schema.h"
#include "tests/experiment/fake_suite.h"
#include "tests/record/support.h"
#include "tests/support/expect_has.h"

namespace kuafu {
namespace {

/// Seconds in which a fake worker starts and ends: with a sanitizer it takes ten times as long.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr const char *kSoon = "3", *kSoonShown = "3 s";
#else
constexpr const char *kSoon = "0.3", *kSoonShown = "300 ms";
#endif

using test::expect_has;
using test::fake_options;
using test::fake_suite;
using test::TemporaryFolder;

SweepEnd run_all(
    Runner& runner, const Suite& suite, const std::function<bool()>& stop = [] { return false; }) {
  std::ostringstream out;
  Progress::Options options;
  options.total = static_cast<int64_t>(suite.cases.size());
  Progress progress(out, options);
  return runner.run(suite.cases, progress, stop);
}

std::string field(const Runner& runner, size_t i, const char* path) {
  const Json value = value_at(runner.record().cases.at(i), path);
  return value.is_string() ? value.get<std::string>() : value.dump();
}

TEST(Runner, RecordsEveryWayACaseCanEndAndGoesOn) {
  const TemporaryFolder folder;
  const Suite suite = fake_suite({"refuse", "out_of_memory", "throw", "abort", "crash", "silent",
                                  "usage", "broken", "liar", "ok"});
  Runner runner(suite, fake_options(folder.path()));
  ASSERT_EQ(run_all(runner, suite), SweepEnd::kComplete);
  const std::vector<std::pair<std::string, std::string>> expected = {
      {"refused", "no square"},
      {"out_of_memory", "asked for 4096 bytes"},
      {"failed", "thrown on purpose"},
      {"failed", "signal 6"},
      {"failed", "signal 11"},
      {"failed", "without writing its document"},
      {"failed", "the corpus is not there"},
      {"failed", "\"fine\" is none of ok"},
      {"failed", "exited with code 1 although its document says ok"}};
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(field(runner, i, "status"), expected[i].first) << suite.cases[i].name;
    expect_has(field(runner, i, "reason"), expected[i].second);
  }
  EXPECT_EQ(field(runner, 9, "status"), "ok");
  EXPECT_EQ(field(runner, 1, "document.out_of_memory.requested_bytes"), "4096");
}

TEST(Runner, ExpectsExitCodeOneOfARefutedRun) {
  const TemporaryFolder folder;
  const Suite suite = fake_suite({"different", "shrugs", "not_run"});
  Runner runner(suite, fake_options(folder.path()));
  ASSERT_EQ(run_all(runner, suite), SweepEnd::kComplete);
  EXPECT_EQ(field(runner, 0, "status"), "ok");
  EXPECT_EQ(field(runner, 0, "document.certificate.verdict"), "different");
  EXPECT_EQ(field(runner, 1, "status"), "failed");
  expect_has(field(runner, 1, "reason"), "exited with code 0 although its document says ok");
  EXPECT_EQ(field(runner, 2, "status"), "ok");
}

TEST(Runner, RunsAnewWhatWasRecordedWithAnotherBuildOfAPlugIn) {
  const TemporaryFolder folder;
  const std::string plugin = folder / "mine.so";
  const Suite suite = fake_suite({"ok"});
  RunnerOptions options = fake_options(folder / "out");
  options.plugins = {plugin};
  const auto num_unfinished = [&](const std::string& bytes) {
    test::write_text(plugin, bytes);
    Runner runner(suite, options);
    const size_t before = runner.unfinished(suite.cases).size();
    const std::string why = join(runner.repeated(suite.cases));
    EXPECT_EQ(why.find("mine.so is not the one") != std::string::npos, bytes == "two") << why;
    EXPECT_EQ(run_all(runner, suite), SweepEnd::kComplete);
    EXPECT_TRUE(runner.unfinished(suite.cases).empty());
    return before;
  };
  EXPECT_EQ(num_unfinished("one"), 1u);
  EXPECT_EQ(num_unfinished("one"), 0u);
  EXPECT_EQ(num_unfinished("two"), 1u);
  options.plugins.clear();
  EXPECT_EQ(Runner(suite, options).unfinished(suite.cases).size(), 1u);
}

TEST(Runner, NamesTheCorporaOfAFolderBegunOnOthers) {
  const TemporaryFolder folder;
  const auto suite_on = [&](const std::string& bytes) {
    test::write_text(folder / "corpus", bytes);
    return fake_suite({folder / "corpus", "refuse"});
  };
  const Suite one = suite_on("first"), other = suite_on("second!");
  ASSERT_EQ(one.corpora.size(), 1U);
  {
    Runner runner(one, fake_options(folder / "out"));
    RunLog log(folder / "out");
    log.append(test::sample_case(one.cases[0].id, test::sample_document(2, 0)));
    // A refused case reads no data, and is the same whatever they are.
    Json refused = test::sample_case(other.cases[1].id, test::sample_document(2, 0));
    for (Json* at : {&refused, &refused["document"]}) {
      (*at)["status"] = "refused";
      (*at)["reason"] = "r";
    }
    log.append(refused);
  }
  try {
    Runner runner(other, fake_options(folder / "out"));
    FAIL() << "taken for the same";
  } catch (const ConfigError& error) {
    expect_has(error.what(), one.corpora.begin()->first);
    expect_has(error.what(), other.corpora.begin()->first);
  }
}

// The bytes of a corpus were changed, not the suite: also where a case is there that read none of them.
TEST(Runner, GoesOnWithNoOtherBytesBesideACaseThatReadsNone) {
  const TemporaryFolder folder;
  const auto suite_on = [&](const std::string& bytes) {
    test::write_text(folder / "corpus", bytes);
    return fake_suite({folder / "corpus", "none"});
  };
  const Suite one = suite_on("first");
  {
    Runner runner(one, fake_options(folder / "out"));
    RunLog log(folder / "out");
    for (const Case& c : one.cases) {
      Json line = test::sample_case(c.id, test::sample_document(2, 0));
      line["name"] = c.name;
      line["document"]["plan"] = {{"data", {{"hash", one.corpora.begin()->first}}}};
      log.append(line);
    }
  }
  EXPECT_TRUE(Runner(one, fake_options(folder / "out")).unfinished(one.cases).empty());
  const Suite other = suite_on("second!");
  ASSERT_EQ(other.cases[1].id, one.cases[1].id) << "it reads no corpus";
  try {
    Runner runner(other, fake_options(folder / "out"));
    FAIL() << "taken for the same";
  } catch (const ConfigError& error) {
    expect_has(error.what(), one.corpora.begin()->first);
    expect_has(error.what(), other.corpora.begin()->first);
    EXPECT_EQ(std::string(error.what()).find("none of its cases"), std::string::npos);
  }
}

TEST(Runner, KillsACaseThatHangsWithAllItStarted) {
  const TemporaryFolder folder;
  const Suite suite = fake_suite({"hang", "grandchild_hang", "ok"}, text("timeout_s = ", kSoon));
  Runner runner(suite, fake_options(folder.path()));
  ASSERT_EQ(run_all(runner, suite), SweepEnd::kComplete);
  EXPECT_EQ(field(runner, 0, "status"), "timeout");
  expect_has(field(runner, 0, "reason"), kSoonShown);
  expect_has(field(runner, 0, "reason"), "rank 1 waits for rank 0");
  EXPECT_EQ(field(runner, 1, "status"), "timeout");
  EXPECT_EQ(field(runner, 2, "status"), "ok");
  const std::string grandchild =
      test::read_text(folder / ("cases/" + suite.cases[1].id + "/document.json.grandchild"));
  EXPECT_EQ(::kill(std::stoi(grandchild), 0), -1);
  EXPECT_EQ(errno, ESRCH);
}

TEST(Runner, KeepsWhatALateCaseHasMeasured) {
  const TemporaryFolder folder;
  const Suite suite = fake_suite({"late"}, text("timeout_s = ", kSoon));
  Runner runner(suite, fake_options(folder.path()));
  run_all(runner, suite);
  EXPECT_EQ(field(runner, 0, "status"), "timeout");
  expect_has(field(runner, 0, "reason"), std::string("did not end in ") + kSoonShown);
  EXPECT_FALSE(value_at(runner.record().cases[0], "document.loss").empty());
}

TEST(Runner, LeavesNoProcessBehindAGoodCase) {
  const TemporaryFolder folder;
  const Suite suite = fake_suite({"grandchild_ok"});
  Runner runner(suite, fake_options(folder.path()));
  ASSERT_EQ(run_all(runner, suite), SweepEnd::kComplete);
  EXPECT_EQ(field(runner, 0, "status"), "ok");
  const std::string grandchild =
      test::read_text(folder / ("cases/" + suite.cases[0].id + "/document.json.grandchild"));
  EXPECT_EQ(::kill(std::stoi(grandchild), 0), -1);
}

TEST(Runner, SaysThatTheWorkerIsMissing) {
  const TemporaryFolder folder;
  const Suite suite = fake_suite({"ok"});
  RunnerOptions options = fake_options(folder.path());
  options.worker = folder / "no-such-worker";
  Runner runner(suite, options);
  run_all(runner, suite);
  EXPECT_EQ(field(runner, 0, "status"), "failed");
  expect_has(field(runner, 0, "reason"), "No such file");
}

TEST(Runner, RunsNoFinishedCaseAgain) {
  const TemporaryFolder folder;
  const Suite suite = fake_suite({"ok", "refuse", "slow"});
  {
    Runner runner(suite, fake_options(folder.path()));
    int ticks = 0;  // the first case asks once before and at most once within itself
    EXPECT_EQ(
        run_all(runner, suite, [&] { return runner.record().cases.size() == 2 && ++ticks > 0; }),
        SweepEnd::kInterrupted);
    EXPECT_EQ(runner.record().cases.size(), 2U);
  }
  const std::string before = test::read_text(folder / kRunFile);
  Runner runner(suite, fake_options(folder.path()));
  EXPECT_EQ(runner.unfinished(suite.cases).size(), 1U);
  EXPECT_EQ(run_all(runner, suite), SweepEnd::kComplete);
  EXPECT_EQ(test::read_text(folder / kRunFile).substr(0, before.size()), before);
  EXPECT_EQ(runner.record().cases.size(), 3U);
}

/// Statuses of the recorded cases after one call, which may retry some.
std::vector<std::string> statuses_after(const std::string& folder, const Suite& suite,
                                        const std::set<std::string>& retried = {}) {
  RunnerOptions options = fake_options(folder);
  options.retried = retried;
  Runner runner(suite, options);
  EXPECT_EQ(run_all(runner, suite), SweepEnd::kComplete);
  EXPECT_TRUE(runner.unfinished(suite.cases).empty());
  std::vector<std::string> out;
  for (size_t i = 0; i < runner.record().cases.size(); ++i) {
    out.push_back(field(runner, i, "status"));
  }
  return out;
}

using Statuses = std::vector<std::string>;

TEST(Runner, RunsCasesOfTheRetriedStatusesAnewInTheirPlaces) {
  const TemporaryFolder folder;
  const std::string head = text("timeout_s = ", kSoon);
  const Suite suite = fake_suite({"throw_once", "ok", "hang_once", "throw"}, head);
  const Statuses before = {"failed", "ok", "timeout", "failed"};
  EXPECT_EQ(statuses_after(folder.path(), suite), before);
  EXPECT_EQ(statuses_after(folder.path(), suite), before);
  EXPECT_EQ(statuses_after(folder.path(), suite, {"timeout"}),
            (Statuses{"failed", "ok", "ok", "failed"}));
  EXPECT_EQ(statuses_after(folder.path(), suite, {"failed", "timeout"}),
            (Statuses{"ok", "ok", "ok", "failed"}));
  const RunRecord record = read_run(folder / kRunFile);
  EXPECT_EQ(record.cases.size(), 4U);
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(record.cases[i]["case_id"], suite.cases[i].id);
}

TEST(Runner, RunsWhatTheMachineEndedAnewWithoutAsking) {
  const TemporaryFolder folder;
  const Suite suite =
      fake_suite({"kill_once", "rank_killed_once", "bad_alloc_once", "refused_memory_once",
                  "library_once", "loader_once", "mpi_once"});
  const Statuses before = {"failed", "failed", "failed", "out_of_memory",
                           "failed", "failed", "failed"};
  EXPECT_EQ(statuses_after(folder.path(), suite), before);
  expect_has(read_run(folder / kRunFile).cases[4]["reason"].get<std::string>(),
             "exit(1) in the middle of the run; its last lines:\nlibgomp: Thread creation failed");
  EXPECT_EQ(statuses_after(folder.path(), suite), Statuses(7, "ok"));
}

// A library that ends a process may say anything, or nothing.
TEST(Runner, RunsWhatEndedWithoutAWordAnewWhereTheSystemLimitsMemory) {
  const TemporaryFolder folder;
  const Suite suite = fake_suite({"wordless_once"});
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_AS, &before), 0);
  const rlimit limited{rlim_t{1} << 50, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_AS, &limited), 0);
  EXPECT_EQ(statuses_after(folder.path(), suite), Statuses{"failed"});
  expect_has(read_run(folder / kRunFile).cases[0]["reason"].get<std::string>(), "(ulimit -v)");
  ASSERT_EQ(::setrlimit(RLIMIT_AS, &before), 0);
  EXPECT_EQ(statuses_after(folder.path(), suite), Statuses{"ok"});
  const TemporaryFolder other;
  EXPECT_EQ(statuses_after(other.path(), suite), Statuses{"failed"});
  EXPECT_EQ(statuses_after(other.path(), suite),
            Statuses{"failed"});  // without a limit it is final
}

TEST(Runner, RunsWhatTheSystemLeftUncertifiedAnewWithoutAsking) {
  const TemporaryFolder folder;
  const Suite suite =
      fake_suite({"starved_proof_once", "starved_check_once", "unwritten_proof_once", "not_run"});
  const auto verdicts = [&] {
    Statuses all;
    for (const Json& line : read_run(folder / kRunFile).cases) {
      all.push_back(line["document"]["certificate"]["verdict"].get<std::string>());
    }
    return all;
  };
  const Statuses ok(4, "ok");
  EXPECT_EQ(statuses_after(folder.path(), suite), ok);
  EXPECT_EQ(verdicts(), Statuses(4, "not_run"));
  EXPECT_EQ(statuses_after(folder.path(), suite), ok);
  EXPECT_EQ(verdicts(), (Statuses{"equal", "equal", "equal", "not_run"}));
}

TEST(Runner, RunsAnewWhatEndedBecauseTheLauncherOfItsRanksWasKilled) {
  for (const std::string world : {"mpi", "threads"}) {
    const bool is_again = world == "mpi";
    const TemporaryFolder folder;
    const Suite suite =
        fake_suite({"launcher_killed_once", "wordless_once", "exit_told_once", "talking_once"},
                   "world = \"" + world + "\"\n");
    RunnerOptions options = fake_options(folder.path());
    options.mpi_launcher = {"/bin/sh", "-c", "shift 2; exec \"$@\"", "mpirun"};
    for (const bool is_second : {false, true}) {
      Runner runner(suite, options);
      ASSERT_EQ(run_all(runner, suite), SweepEnd::kComplete);
      const bool is_good = is_second && is_again;
      EXPECT_EQ(field(runner, 0, "document.certificate.verdict"), is_good ? "equal" : "not_run");
      EXPECT_EQ(field(runner, 1, "status"), is_good ? "ok" : "failed") << world;
      expect_has(field(runner, 2, "document.certificate.reason"), "called exit(1)");
      expect_has(field(runner, 3, "reason"), "its last lines:\nsomething");
    }
  }
}

TEST(Runner, LeavesACaseOverItsBudgetAsItIs) {
  const TemporaryFolder folder;
  const Suite suite = parse_suite(
      "[suite]\nname = \"fake\"\nquestion = \"q\"\n[base]\nmemory.device = \"1 MiB\"\n"
      "[grid]\nranks = [2]\ndata.path = [\"budget_once\"]\n",
      "fake.toml");
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(statuses_after(folder.path(), suite), Statuses{"out_of_memory"});
  }
  EXPECT_EQ(statuses_after(folder.path(), suite, {"out_of_memory"}), Statuses{"ok"});
}

TEST(Runner, RunsACaseAnewWhoseTimeOutHasChanged) {
  const TemporaryFolder folder;
  const auto suite = [](const std::string& timeout) {
    return fake_suite({"hang_once", "ok", "throw_once"}, "timeout_s = " + timeout);
  };
  const Suite first = suite(kSoon);
  EXPECT_EQ(statuses_after(folder.path(), first), (Statuses{"timeout", "ok", "failed"}));
  const Suite longer = suite("20");
  {
    const Runner runner(longer, fake_options(folder.path()));
    ASSERT_EQ(runner.repeated(longer.cases).size(), 2U);
    expect_has(runner.repeated(longer.cases)[0],
               text("timeout under a time-out of ", kSoonShown, ", now 20 s"));
  }
  EXPECT_EQ(statuses_after(folder.path(), longer), (Statuses{"ok", "ok", "ok"}));
}

TEST(Runner, RunsACaseAnewThatADiskHadNoRoomFor) {
  const TemporaryFolder folder;
  const Suite suite = fake_suite({"full_once"});
  EXPECT_EQ(statuses_after(folder.path(), suite), Statuses{"failed"});
  const Json line = read_run(folder / kRunFile).cases[0];
  expect_has(line["reason"].get<std::string>(),
             "the worker exited with code 7 without writing its document: kuafu: document.json");
  expect_has(line["reason"].get<std::string>(), ": No space left on device; make room");
  EXPECT_TRUE(is_unwritten(line));
  EXPECT_EQ(statuses_after(folder.path(), suite), Statuses{"ok"});
  EXPECT_FALSE(is_unwritten(read_run(folder / kRunFile).cases[0]));
}

TEST(Runner, CertifiesAnewWhatATimeOutCutShort) {
  for (const bool is_longer : {true, false}) {
    const TemporaryFolder folder;
    const Suite before = fake_suite({"late_proof_once"}, "timeout_s = 10");
    const Suite after =
        fake_suite({"late_proof_once"}, is_longer ? "timeout_s = 20" : "timeout_s = 5");
    EXPECT_EQ(statuses_after(folder.path(), before), Statuses{"ok"});
    {
      const Runner runner(after, fake_options(folder.path()));
      EXPECT_EQ(runner.unfinished(after.cases).size(), is_longer ? 1U : 0U);
    }
    statuses_after(folder.path(), after,
                   is_longer ? std::set<std::string>{} : std::set<std::string>{"timeout"});
    const Json line = read_run(folder / kRunFile).cases[0];
    EXPECT_EQ(value_at(line, "document.certificate.verdict"), "equal")
        << line["document"]["certificate"];
  }
}

TEST(Retry, NamesTheNearestStatus) {
  EXPECT_EQ(parse_retry("failed,timeout"), (std::set<std::string>{"failed", "timeout"}));
  for (const auto& [given, near] : std::vector<std::pair<std::string, std::string>>{
           {"faild", "failed"}, {"failed,timout", "timeout"}, {"failed,", ""}, {"ok", ""}}) {
    try {
      parse_retry(given);
      FAIL() << given;
    } catch (const ConfigError& error) {
      expect_has(error.what(), "--retry " + given);
      expect_has(error.what(), near.empty() ? "out_of_memory" : "did you mean \"" + near + "\"");
    }
  }
}

TEST(Runner, KeepsWhatASuiteThatGrewHasInCommonAndRunsTheRest) {
  const TemporaryFolder folder;
  const Suite small = fake_suite({"ok", "refuse"}), large = fake_suite({"slow", "ok", "refuse"});
  EXPECT_EQ(statuses_after(folder.path(), small), (Statuses{"ok", "refused"}));
  const std::vector<Json> before = read_run(folder / kRunFile).cases;
  EXPECT_EQ(statuses_after(folder.path(), large), (Statuses{"ok", "refused", "ok"}));
  const RunRecord after = read_run(folder / kRunFile);
  EXPECT_EQ(after.cases[0], before[0]);
  EXPECT_EQ(after.cases[1], before[1]);
  EXPECT_EQ(after.header["suite_hash"], large.hash);
  EXPECT_EQ(after.header["cases"], 3);
}

TEST(Runner, SaysThatCasesOfOtherKernelsAreKept) {
  const TemporaryFolder folder;
  const Suite suite = fake_suite({"ok", "refuse"});
  statuses_after(folder.path(), suite);
  const auto notes = [&] {
    const Runner runner(suite, fake_options(folder.path()));
    return join(runner.notes(), "\n");
  };
  EXPECT_EQ(notes().find("kernels"), std::string::npos) << notes();
  {
    RunLog log(folder.path());
    Json line = log.record().cases[0];
    line.erase("checksum");
    line["document"]["provenance"]["kernels"] = "aten";
    log.replace(line);
  }
  expect_has(notes(),
             "1 recorded case ran kernels \"aten\" and is kept, though this call has \"own\"");
  const Runner runner(suite, fake_options(folder.path()));
  EXPECT_TRUE(runner.unfinished(suite.cases).empty());
}

TEST(Runner, TellsCasesApartThatTheSuiteHasNoMore) {
  const TemporaryFolder folder;
  const Suite both = fake_suite({"ok", "refuse"}), one = fake_suite({"refuse"});
  statuses_after(folder.path(), both);
  const std::vector<Json> before = read_run(folder / kRunFile).cases;
  {
    const Runner runner(one, fake_options(folder.path()));
    expect_has(runner.notes().at(0), "1 recorded case is in it");
    expect_has(runner.notes().at(0), "1 recorded case no longer in it");
  }
  const RunRecord record = read_run(folder / kRunFile);
  ASSERT_EQ(record.cases.size(), 1U);
  ASSERT_EQ(record.former.size(), 1U);
  EXPECT_EQ(record.former[0]["case_id"], both.cases[0].id);
  // A suite that has it again finds it done.
  EXPECT_EQ(statuses_after(folder.path(), both), (Statuses{"refused", "ok"}));
  const RunRecord again = read_run(folder / kRunFile);
  EXPECT_TRUE(again.former.empty());
  EXPECT_EQ(again.cases, (std::vector<Json>{before[1], before[0]}));
}

// As one that was interrupted after its first case.
TEST(Runner, GoesOnBehindARefusedCaseAlone) {
  const TemporaryFolder folder;
  statuses_after(folder.path(), fake_suite({"refuse"}));
  EXPECT_EQ(statuses_after(folder.path(), fake_suite({"refuse", "ok"})),
            (Statuses{"refused", "ok"}));
}

TEST(Runner, RefusesTheFolderOfAnotherSuiteNamingBothHashes) {
  const TemporaryFolder folder;
  const Suite suite = fake_suite({"ok"}), other = fake_suite({"refuse"});
  statuses_after(folder.path(), suite);
  const std::string before = test::read_text(folder / kRunFile);
  try {
    Runner runner(other, fake_options(folder.path()));
    FAIL() << "took the folder of another suite";
  } catch (const ConfigError& error) {
    expect_has(error.what(), suite.hash);
    expect_has(error.what(), other.hash);
    expect_has(error.what(), "none of its cases is there");
    expect_has(error.what(), "--out");
  }
  EXPECT_EQ(test::read_text(folder / kRunFile), before);
  EXPECT_FALSE(std::filesystem::exists(folder / "lock"));
}

TEST(Runner, SaysWhichPlanKeysMakeAnotherSuiteOfOneName) {
  const TemporaryFolder folder;
  const auto suite = [](const std::string& layers) {
    return parse_suite("[suite]\nname = \"fake\"\nquestion = \"q\"\n[base]\nmodel.layers = " +
                           layers + "\n[grid]\ndata.path = [\"ok\"]\n",
                       "fake.toml");
  };
  const Suite two = suite("2"), three = suite("3");
  statuses_after(folder.path(), two);
  {  // the fake worker's document has no plan of ours
    RunLog log(folder.path());
    RunRecord record = log.record();
    record.cases[0]["document"]["plan"] = {{"model", {{"layers", 2}}},
                                           {"optimizer", {{"exclude", "none"}, {"bound", "none"}}}};
    log.rewrite(record);
  }
  try {
    Runner runner(three, fake_options(folder.path()));
    FAIL() << "took the folder of another suite";
  } catch (const ConfigError& error) {
    expect_has(error.what(), "(model.layers 2, now 3)");  // what "auto" became is no difference
  }
  Suite renamed = three;
  renamed.cases[0].name = "other";
  try {
    Runner runner(renamed, fake_options(folder.path()));
    FAIL() << "took the folder of another suite";
  } catch (const ConfigError& error) {
    expect_has(error.what(), "here \"other\": model.layers 2, now 3.");
  }
}

TEST(Runner, ReplacesCasesThatGaveNoResultWhateverThePlanIsNow) {
  const TemporaryFolder folder;
  EXPECT_EQ(statuses_after(folder.path(), fake_suite({"throw"})), Statuses{"failed"});
  EXPECT_EQ(statuses_after(folder.path(), fake_suite({"ok"})), Statuses{"ok"});
  EXPECT_EQ(read_run(folder / kRunFile).former.size(), 1U);
}

TEST(Runner, StopsWhereTheRecordCannotBeWrittenAndGoesOnLater) {
  const TemporaryFolder folder;
  const Suite suite = fake_suite({"ok", "slow", "refuse"});
  size_t before = 0;
  {
    Runner runner(suite, fake_options(folder.path()));
    EXPECT_EQ(run_all(runner, suite, [&] { return runner.record().cases.size() == 1; }),
              SweepEnd::kInterrupted);
    before = std::filesystem::file_size(folder / kRunFile);
  }
  {
    Runner runner(suite, fake_options(folder.path()));
    const test::FileSizeLimit full(before + 50);
    EXPECT_THROW(run_all(runner, suite), ConfigError);
  }
  EXPECT_EQ(std::filesystem::file_size(folder / kRunFile), before);
  Runner runner(suite, fake_options(folder.path()));
  EXPECT_TRUE(runner.notes().empty());
  EXPECT_EQ(run_all(runner, suite), SweepEnd::kComplete);
  EXPECT_EQ(runner.record().cases.size(), 3U);
}

TEST(Runner, BeginsNoCaseAfterItsBudget) {
  const TemporaryFolder folder;
  const Suite suite = fake_suite({"slow", "ok"}, "budget_s = 0.02");
  Runner runner(suite, fake_options(folder.path()));
  EXPECT_EQ(run_all(runner, suite), SweepEnd::kOutOfBudget);
  EXPECT_EQ(runner.record().cases.size(), 1U);
}

TEST(Runner, StartsMpiRanksThroughTheLauncher) {
  const TemporaryFolder folder;
  const Suite suite = fake_suite({"ok"}, "world = \"mpi\"");
  RunnerOptions options = fake_options(folder.path());
  options.mpi_launcher = {"sh", "-c", "echo \"$1 $2\" >&2; shift 2; exec \"$@\"", "launcher"};
  Runner runner(suite, options);
  run_all(runner, suite);
  EXPECT_EQ(field(runner, 0, "document.world"), "mpi");
  EXPECT_EQ(test::read_text(folder / ("cases/" + suite.cases[0].id + "/errors.txt")), "-n 2\n");
}

TEST(Runner, RecordsPlanSettingsAndProvenance) {
  const TemporaryFolder folder;
  const Suite suite = fake_suite({"ok"});
  Runner runner(suite, fake_options(folder.path()));
  run_all(runner, suite);
  EXPECT_EQ(field(runner, 0, "case_id"), suite.cases[0].id);
  EXPECT_EQ(value_at(runner.record().cases[0], "settings")["data.path"], "ok");
  EXPECT_EQ(value_at(runner.record().header, "suite_hash"), suite.hash);
  EXPECT_TRUE(value_at(runner.record().header, "provenance.git_commit").is_string());
  const std::string plan = test::read_text(folder / ("cases/" + suite.cases[0].id + "/plan.toml"));
  EXPECT_NE(plan.find(suite.cases[0].plan_toml), std::string::npos);
}

}  // namespace
}  // namespace kuafu
