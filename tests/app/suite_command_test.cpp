// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <map>

#include "kuafu/base/build_folders.h"
#include "kuafu/base/build_info.h"
#include "kuafu/base/errors.h"
#include "kuafu/base/philox.h"
#include "kuafu/record/run_log.h"
#include "tests/app/process.h"
#include "tests/record/support.h"
#include "tests/support/expect_has.h"

namespace kuafu {
namespace {

using test::built;
using test::eventually;
using test::expect_has;
using test::front;
using test::Output;
using test::Process;
using test::TemporaryFolder;

/// Writes a suite of the fake worker's behaviours, each a corpus beside it, and returns its path.
std::string suite_in(const TemporaryFolder& folder, const std::vector<std::string>& behaviours) {
  std::string toml =
      "[suite]\nname = \"fake\"\nquestion = \"q\"\n[grid]\nranks = [2]\ndata.path = [";
  for (const auto& behaviour : behaviours) {
    toml += "\"" + behaviour + "\",";
    test::write_text(folder / behaviour, behaviour);
  }
  const std::string path = folder / "suite.toml";
  test::write_text(path, toml + "]\ntrain.seed = [1, 2]\n");
  return path;
}

std::vector<std::string> suite_words(const std::string& suite, const std::string& out) {
  return {"suite", suite, "--out", out, "--worker", built("fake-worker"), "--no-report"};
}

Output run_suite(const std::string& suite, const std::string& out,
                 const Process::Environment& environment = {}) {
  return front(suite_words(suite, out), environment);
}

/// `kuafu suite` left running.
std::vector<std::string> started(const std::string& suite, const std::string& out) {
  std::vector<std::string> words = suite_words(suite, out);
  words.insert(words.begin(), built("kuafu"));
  return words;
}

/// The lines of a folder's cases by id, without the time they took.
std::map<std::string, Json> results(const std::string& folder) {
  std::map<std::string, Json> lines;
  for (Json line : read_run(folder + "/" + kRunFile).cases) {
    line.erase("wall_s");
    line.erase("time");
    const size_t num_rounds = line.contains("rounds") ? line["rounds"].size() : 0;
    for (size_t r = 0; r < num_rounds; ++r) {
      for (const char* moment : {"wall_s", "began", "sweep"}) line["rounds"][r].erase(moment);
    }
    // The command names the folder.
    if (Json& document = line["document"]; document.contains("provenance")) {
      document["provenance"].erase("command");
    }
    const auto id = line["case_id"].get<std::string>();
    EXPECT_FALSE(lines.contains(id)) << id << " was recorded twice";
    lines[id] = line;
  }
  return lines;
}

TEST(SuiteCommand, RunsASweepToTheEnd) {
  const TemporaryFolder folder;
  const std::string suite = suite_in(folder, {"ok", "refuse", "out_of_memory"}),
                    out = folder / "out";
  const Output output = run_suite(suite, out);
  EXPECT_EQ(output.code, 0) << output.err;
  expect_has(output.out, "2 ok, 2 refused, 2 out_of_memory");
  expect_has(output.out, "2 ranks are no square");
  expect_has(output.err, "6/6  out_of_memory");
  EXPECT_EQ(results(out).size(), 6U);
  EXPECT_EQ(std::filesystem::exists(out + "/results.h5"), build_info::kHdf5.found);
}

TEST(SuiteCommand, RunsNothingTwiceAndMendsADamagedHdf5) {
  const TemporaryFolder folder;
  const std::string suite = suite_in(folder, {"ok"}), out = folder / "out";
  run_suite(suite, out);
  const std::string record = test::read_text(out + "/run.jsonl");
  test::write_text(out + "/results.h5", "damaged");
  const Output again = run_suite(suite, out);
  EXPECT_EQ(again.code, 0);
  expect_has(again.err, "2 of 2 cases were finished before");
  expect_has(again.err, build_info::kHdf5.found ? "was damaged" : "left out");
  EXPECT_EQ(test::read_text(out + "/run.jsonl"), record);
}

TEST(SuiteCommand, GoesOnWhereNobodyReadsItsOutput) {
  const TemporaryFolder folder;
  const std::string out = folder / "out";
  std::string line;
  for (const std::string& word : started(suite_in(folder, {"ok"}), out)) line += word + " ";
  Process process({"bash", "-c", line + "| true; exit ${PIPESTATUS[0]}"});
  const Output output = process.wait();
  EXPECT_EQ(output.code, 7) << output.err;
  expect_has(output.err, "cannot write all of the standard output");
  EXPECT_EQ(results(out).size(), 2U);
  EXPECT_EQ(std::filesystem::exists(out + "/results.h5"), build_info::kHdf5.found);
}

TEST(SuiteCommand, FailsWhereACaseFailed) {
  const TemporaryFolder folder;
  const Output output = run_suite(suite_in(folder, {"throw", "ok"}), folder / "out");
  EXPECT_EQ(output.code, 1);
  expect_has(output.out, "2 ok, 2 failed");
  expect_has(output.out, "killed by signal 6");
}

TEST(SuiteCommand, FailsWhereACertificateSaysDifferent) {
  const TemporaryFolder folder;
  const std::string out = folder / "out";
  const Output output = run_suite(suite_in(folder, {"different", "ok", "not_run"}), out);
  EXPECT_EQ(output.code, 1) << output.err;
  expect_has(output.out, "4 ok, 2 different; certificates: 2 equal, 2 different, 2 not run");
  expect_has(output.out, "certificate different: its f64 twin: gradient error 0.250 of 1.00e-09");
  expect_has(output.out, "certificate not run: no legal miniature");
  // The same results are no reference to hold others against.
  const Output compared = front({"compare", "--exact", out, out});
  EXPECT_EQ(compared.code, 1);
  expect_has(compared.out, "2 regressions: ");
  expect_has(compared.out, "path different, seed 1, in A: its f64 twin: gradient error 0.250");
}

/// In the place of Python: prints the file that the report is handed as its last word.
std::string teller_in(const TemporaryFolder& folder) {
  const std::string python = folder / "python";
  test::write_text(python, "#!/bin/sh\nfor last; do :; done\ncat \"$last\"\n");
  std::filesystem::permissions(python, std::filesystem::perms::owner_all);
  return python;
}

TEST(ReportCommand, HandsTheSuitesOrderAndReferencesOn) {
  const TemporaryFolder folder;
  const std::string suite = suite_in(folder, {"ok", "refuse"}), out = folder / "out";
  const std::string written = test::read_text(suite) +
                              "[[reference]]\nmetric = \"status\"\nequals = \"status\"\n"
                              "[[reference]]\nmetric = \"ranks\"\nvalue = 3\nsource = \"a wish\"\n";
  test::write_text(suite, written);
  EXPECT_EQ(run_suite(suite, out).code, 1);
  const std::string python = teller_in(folder);
  const std::vector<std::string> words = {"report", out, "--text", "--suite", suite};
  const Output output = front(words, {{"KUAFU_PYTHON", python}});
  if (output.code == 2) {
    expect_has(output.err, "report.py is not there");  // a tree without the report
    return;
  }
  const Json facts = Json::parse(output.out, nullptr, false);
  ASSERT_TRUE(facts.is_array() && facts.size() == 1) << output.out;
  std::vector<std::string> recorded, order = facts[0]["order"];
  for (const Json& line : read_run(out + "/" + kRunFile).cases) recorded.push_back(line["case_id"]);
  EXPECT_EQ(order, recorded);  // one after the other, as the suite has them
  const Json& references = facts[0]["references"];
  ASSERT_EQ(references.size(), 2U);
  EXPECT_EQ(references[0]["checked"], 4);
  EXPECT_TRUE(references[0]["broken"].empty());
  EXPECT_EQ(references[1]["checked"], 2);
  EXPECT_EQ(references[1]["broken"].size(), 2U);
  expect_has(references[1]["what"], "a wish");
  // The record alone says the same: the suite's file may be on another machine.
  test::write_text(suite, "");
  EXPECT_EQ(Json::parse(front({"report", out, "--text"}, {{"KUAFU_PYTHON", python}}).out), facts);
  test::write_text(suite, written);
  // Other cases are told where the file is asked for.
  const Output other = front({"report", out, "--suite", suite, "--set", "train.steps=3"});
  EXPECT_EQ(other.code, 2);
  expect_has(other.err, "was made with");
}

TEST(SuiteCommand, ComputesColumnsAndClaimsAndRunsNothingAnewForThem) {
  const TemporaryFolder folder;
  const std::string suite = suite_in(folder, {"ok", "refuse"}), out = folder / "out";
  const std::string sweep = test::read_text(suite);
  const auto claim = [](const std::string& name, const std::string& formula) {
    return "[[claim]]\nname = \"" + name + "\"\nsource = \"a book\"\nformula = \"" + formula +
           "\"\n";
  };
  const std::string ok = "where = { status = \"ok\" }\n";
  test::write_text(suite, sweep + "[[column]]\nname = \"twice\"\nformula = \"ranks * 2\"\n" +
                              claim("it learns", "loss.last < loss.first") + ok +
                              claim("ranks are many", "ranks > 2") + ok +
                              claim("all learn", "loss.last < loss.first") +
                              "[[figure]]\nkind = \"bar\"\nx = \"seed\"\ny = \"twice\"\n");
  const Output dry = front({"suite", suite, "--out", out, "--dry-run"});
  EXPECT_EQ(dry.code, 0) << dry.err;
  expect_has(dry.out, "column  twice = ranks * 2\n");
  expect_has(dry.out, "claim   ranks are many: ranks > 2 where status = ok (a book)\n");
  expect_has(dry.out, "figure  bar of twice over seed\n");
  const Output first = run_suite(suite, out);
  EXPECT_EQ(first.code, 0) << first.out << first.err;  // though a claim fails
  expect_has(first.out, "twice");
  expect_has(first.out, "  holds       it learns: 2 of 2");
  expect_has(first.out, "  FAILS       ranks are many: 0 of 2");
  expect_has(first.out, "  unresolved  all learn: 2 of 4");
  expect_has(first.out, "ended as refused");
  // Other claims, and a case that is to be run again: only the claims change.
  const auto before = results(out);
  test::write_text(suite, sweep + claim("two ranks", "all(ranks == 2)"));
  const Output again = run_suite(suite, out);
  EXPECT_EQ(again.code, 0);
  expect_has(again.err, "columns, claims or figures have changed: no case runs again");
  expect_has(again.err, "4 of 4 cases were finished before; 0 to run");
  expect_has(again.out, "  holds       two ranks: 1 of 1");
  EXPECT_EQ(results(out), before);
  // The same three lines further down, of a file with another name: nothing has changed.
  const std::string moved = folder / "moved.toml";
  test::write_text(moved,
                   "# one\n# two\n# three\n" + sweep + claim("two ranks", "all(ranks == 2)"));
  const Output third = run_suite(moved, out);
  EXPECT_EQ(third.code, 0) << third.err;
  EXPECT_EQ(third.err.find("have changed"), std::string::npos) << third.err;
  // The report has the record's own; with --suite those of the file.
  const Process::Environment told = {{"KUAFU_PYTHON", teller_in(folder)}};
  const Output own = front({"report", out, "--text"}, told);
  if (own.code == 2) return;  // a tree without the report
  const Json facts = Json::parse(own.out, nullptr, false);
  ASSERT_TRUE(facts.is_array()) << own.out;
  EXPECT_EQ(facts[0]["derived"]["claims"][0]["verdict"], "holds");
  EXPECT_EQ(facts[0]["order"].size(), 4U);
  test::write_text(suite, sweep + claim("three ranks", "any(ranks == 3)"));
  const Json asked =
      Json::parse(front({"report", out, "--text", "--suite", suite}, told).out, nullptr, false);
  ASSERT_TRUE(asked.is_array());
  EXPECT_EQ(asked[0]["derived"]["claims"][0]["verdict"], "fails");
  test::write_text(suite, sweep + claim("bad", "rank > 1"));
  const Output wrong = front({"suite", suite, "--out", folder / "other"});
  EXPECT_EQ(wrong.code, 2);
  expect_has(wrong.err, "suite.toml:8: [[claim]] \"bad\": formula, letter 1: no \"rank\"");
  EXPECT_FALSE(std::filesystem::exists(folder / "other"));
}

TEST(SuiteCommand, PrintsItsCasesWithoutRunningThem) {
  const TemporaryFolder folder;
  const std::string suite = suite_in(folder, {"ok", "slow"}), out = folder / "out";
  const Output dry = front({"suite", suite, "--out", out, "--dry-run", "--filter", "seed=2"});
  EXPECT_EQ(dry.code, 0);
  expect_has(dry.out, "2 ranks, path ok, seed 2");
  expect_has(dry.out, "2 of 4 cases");
  EXPECT_FALSE(std::filesystem::exists(out));
}

TEST(SuiteCommand, FinishesAfterKillsAtRandomMomentsWithTheSameResults) {
  const TemporaryFolder folder;
  const std::string suite =
      suite_in(folder, {"slow", "refuse", "crash", "grandchild_ok", "out_of_memory", "ok"});
  const std::string whole = folder / "whole", killed = folder / "killed";
  const auto began = std::chrono::steady_clock::now();
  test::write_text(suite, "[suite]\nrepeats = 2\n" +
                              test::read_text(suite).substr(std::string("[suite]\n").size()));
  ASSERT_EQ(run_suite(suite, whole).code, 1);  // a case crashes
  const std::chrono::duration<double, std::milli> all = std::chrono::steady_clock::now() - began;
  const CounterRandom random(7, hash_name("kill"));
  const auto size_of_record = [&] {
    std::error_code none;
    const auto size = std::filesystem::file_size(killed + "/run.jsonl", none);
    return none ? 0 : size;
  };
  constexpr int kEarly = 2;  // kills as soon as a case is recorded, however long the whole took
  int kills = 0;
  for (uint64_t attempt = 0;; ++attempt) {
    ASSERT_LT(attempt, 100U) << "never finished";
    const auto before = size_of_record();
    Process process(started(suite, killed));
    if (attempt < kEarly) {
      ASSERT_TRUE(eventually([&] { return size_of_record() > before; }));
    } else {
      test::pause_ms(static_cast<int>(20 + 0.5 * all.count() * random.uniform(attempt)));
    }
    process.signal(SIGKILL);
    const int code = process.wait().code;
    ASSERT_TRUE(eventually([&] { return test::processes_with(killed).empty(); })) << "orphans";
    if (code == 1) break;
    ASSERT_EQ(code, 128 + SIGKILL);
    ++kills;
  }
  EXPECT_GE(kills, kEarly);
  EXPECT_EQ(results(killed), results(whole));
}

TEST(SuiteCommand, StopsAtCtrlCAndGoesOn) {
  const TemporaryFolder folder;
  const std::string suite = suite_in(folder, {"ok", "hang"}), out = folder / "out";
  Process process(started(suite, out));
  ASSERT_TRUE(eventually([&] {
    const std::string record = test::read_text(out + "/run.jsonl");
    return std::count(record.begin(), record.end(), '\n') ==
           3;  // the suite and two cases: it hangs now
  }));
  process.signal(SIGINT);
  const Output output = process.wait();
  EXPECT_EQ(output.code, 130);
  expect_has(output.err, "2 of 4 cases are in");
  EXPECT_TRUE(test::processes_with(out).empty());
  EXPECT_EQ(results(out).size(), 2U);
}

TEST(SuiteCommand, LetsOneRunnerIntoAFolder) {
  const TemporaryFolder folder;
  const std::string suite = suite_in(folder, {"hang"}), out = folder / "out";
  Process first(started(suite, out));
  ASSERT_TRUE(eventually([&] { return std::filesystem::exists(out + "/cases"); }));
  const Output second = run_suite(suite, out);
  EXPECT_EQ(second.code, 2);
  expect_has(second.err, "another runner");
  first.signal(SIGTERM);
  EXPECT_EQ(first.wait().code, 130);
}

TEST(SuiteCommand, StopsOnAFullDiskAndLosesNothing) {
  const TemporaryFolder folder;
  const std::string suite = suite_in(folder, {"ok", "slow", "refuse"}), out = folder / "out";
  std::string line = "ulimit -f 6; exec";  // KiB a file
  for (const auto& word : started(suite, out)) line += " '" + word + "'";
  const Output full = Process({"bash", "-c", line}).wait();
  EXPECT_EQ(full.code, 7);
  expect_has(full.err, "kuafu: cannot write " + out);
  expect_has(full.err, "File too large");
  expect_has(full.err, "call again to go on");
  const size_t saved = results(out).size();
  EXPECT_GT(saved, 0U);
  EXPECT_LT(saved, 6U);
  EXPECT_EQ(run_suite(suite, out).code, 0);
  EXPECT_EQ(results(out).size(), 6U);
}

TEST(SuiteCommand, SaysByItsCodeThatItsTablesCannotBeWritten) {
  if (!build_info::kHdf5.found) GTEST_SKIP() << "no HDF5";
  const TemporaryFolder folder;
  const std::string suite = suite_in(folder, {"ok"}), out = folder / "out",
                    tables = out + "/results.h5";
  std::string line = "ulimit -f 16; exec";  // KiB a file: the record is smaller
  for (const auto& word : started(suite, out)) line += " '" + word + "'";
  const Output full = Process({"bash", "-c", line}).wait();
  EXPECT_EQ(full.code, 7) << full.err;
  expect_has(full.err, tables + " left out: cannot write " + tables + ": File too large");
  expect_has(full.out, "2 ok");
  std::filesystem::create_directories(tables);
  const Output blocked = run_suite(suite, out);
  EXPECT_EQ(blocked.code, 7) << blocked.err;
  expect_has(blocked.err, tables + " left out: ");
  expect_has(blocked.err, "is a folder");
  std::filesystem::remove(tables);
  EXPECT_EQ(run_suite(suite, out).code, 0);
  EXPECT_TRUE(std::filesystem::exists(tables));
}

TEST(SuiteCommand, SaysWhyASweepWithoutAGoodCaseHasNoReport) {
  const TemporaryFolder folder;
  const std::string out = folder / "out";
  std::vector<std::string> words = suite_words(suite_in(folder, {"hang"}), out);
  words.back() = "--timeout";  // instead of --no-report
  words.emplace_back("0.1");
  const Output late = front(words);
  EXPECT_EQ(late.code, 0) << late.err;
  expect_has(late.err, "report left out: no case ended well: all 2 took longer than they may");
  expect_has(late.err, "--timeout");
  EXPECT_EQ(late.err.find("report failed"), std::string::npos) << late.err;
}

TEST(SuiteCommand, EndsWithACodeOfItsOwnWhereItsReportFails) {
  const TemporaryFolder folder;
  std::vector<std::string> words = suite_words(suite_in(folder, {"ok"}), folder / "out");
  words.pop_back();  // --no-report
  EXPECT_EQ(front(words, {{"KUAFU_PYTHON", "true"}}).code, 0);
  const Output failed = front(words, {{"KUAFU_PYTHON", "false"}});
  if (failed.err.find("report.py is not there") != std::string::npos) GTEST_SKIP();
  EXPECT_EQ(failed.code, 1) << failed.err;
  expect_has(failed.err, "report failed with exit code 1");
}

TEST(SuiteCommand, RunsWhatADiskHadNoRoomForWithTheNextCall) {
  const TemporaryFolder folder;
  const std::string suite = suite_in(folder, {"full_once"}), out = folder / "out";
  const Output full = run_suite(suite, out);
  EXPECT_EQ(full.code, 7) << full.err;
  expect_has(full.out, "and 1 more: the worker exited with code 7 without writing");
  expect_has(full.out, "document.json: No space left on device");
  EXPECT_EQ(run_suite(suite, out).code, 0);
}

TEST(SuiteCommand, SaysThatAFolderCannotBeWritten) {
  const TemporaryFolder folder;
  const std::string suite = suite_in(folder, {"ok"});
  const Output read_only = run_suite(suite, "/proc/kuafu");
  EXPECT_EQ(read_only.code, 2);
  expect_has(read_only.err, "/proc/kuafu");
  expect_has(read_only.err, "--out");
  EXPECT_EQ(run_suite(suite, suite).code, 2);  // a file in place of the folder
}

TEST(SuiteCommand, RefusesTheFolderOfAnotherSuite) {
  const TemporaryFolder folder;
  const std::string out = folder / "out";
  run_suite(suite_in(folder, {"ok"}), out);
  const Output other = run_suite(suite_in(folder, {"refuse"}), out);
  EXPECT_EQ(other.code, 2);
  expect_has(other.err, "another suite");
  EXPECT_EQ(results(out).size(), 2U);
}

/// `kuafu suite` with more words.
Output run_with(const std::string& suite, const std::string& out,
                const std::vector<std::string>& more) {
  std::vector<std::string> words = suite_words(suite, out);
  words.insert(words.end(), more.begin(), more.end());
  return front(words);
}

TEST(SuiteCommand, RetriesTheStatusesItIsAskedFor) {
  const TemporaryFolder folder;
  const std::string suite = suite_in(folder, {"throw_once", "ok"}), out = folder / "out";
  expect_has(run_suite(suite, out).out, "2 ok, 2 failed");
  expect_has(run_suite(suite, out).err, "4 of 4 cases were finished before");
  const Output again = run_with(suite, out, {"--retry", "failed,timeout"});
  EXPECT_EQ(again.code, 0) << again.err;
  expect_has(again.err, "runs again: 2 ranks, path throw_once, seed 1: failed, as --retry asks");
  expect_has(again.out, "4 ok;");
  EXPECT_EQ(results(out).size(), 4U);
}

TEST(SuiteCommand, GoesOnInItsFolderWhenItHasChanged) {
  const TemporaryFolder folder;
  const std::string out = folder / "out";
  run_suite(suite_in(folder, {"ok", "slow"}), out);
  const Output output = run_suite(suite_in(folder, {"ok", "refuse"}), out);
  EXPECT_EQ(output.code, 0) << output.err;
  expect_has(output.err,
             "2 recorded cases are in it, 2 cases not recorded yet, 2 recorded cases no");
  expect_has(output.err, "2 of 4 cases were finished before; 2 to run");
  expect_has(output.out, "2 ok, 2 refused");
  expect_has(output.out, "2 recorded cases are no longer in the suite: left out here");
  EXPECT_EQ(output.out.find("path slow"), std::string::npos) << output.out;
}

TEST(SuiteCommand, OverridesTimeOutAndBudget) {
  const TemporaryFolder folder;
  const std::string suite = suite_in(folder, {"ok"}), out = folder / "out";
  const Output dry = run_with(suite, out, {"--timeout", "7.5", "--budget", "2GiB", "--dry-run"});
  expect_has(dry.out, "7.5 s");
  expect_has(run_with(suite, out, {"--timeout", "2m", "--dry-run"}).out, "2 min 0 s");
  EXPECT_EQ(run_with(suite, out, {"--timeout", "7.5s"}).code, 0);
  for (const auto& [id, line] : results(out)) EXPECT_EQ(line["timeout_s"], 7.5);
  for (const auto& [option, value] :
       std::vector<std::pair<std::string, std::string>>{{"--timeout", "0"},
                                                        {"--timeout", "1 week"},
                                                        {"--budget", "2 GiBB"},
                                                        {"--budget", "0"}}) {
    const Output bad = run_with(suite, folder / "bad", {option, value});
    EXPECT_EQ(bad.code, 2);
    expect_has(bad.err, option);
    expect_has(bad.err, value);
  }
  EXPECT_FALSE(std::filesystem::exists(folder / "bad"));
}

TEST(SuiteCommand, RepeatsAsItIsAsked) {
  const TemporaryFolder folder;
  const std::string suite = suite_in(folder, {"ok", "refuse"}), out = folder / "out";
  const Output dry = run_with(suite, out, {"--repeats", "3", "--dry-run"});
  expect_has(dry.out, "4 of 4 cases");
  expect_has(dry.out, "3 rounds: 12 runs");
  const Output output = run_with(suite, out, {"--repeats", "3"});
  EXPECT_EQ(output.code, 0) << output.err;
  expect_has(output.err, "8/8  ok");
  expect_has(output.err, "path ok, seed 1, round 3");
  expect_has(output.out, "step times are medians over 3 rounds");
  EXPECT_EQ(results(out).size(), 4U);
  const Output more = run_with(suite, out, {"--repeats", "4"});
  expect_has(more.err, "8 of 10 runs were finished before; 2 to run");
  expect_has(more.out, "medians over 4 rounds");
  expect_has(run_suite(suite, out).err, "4 of 4 cases were finished before; 0 to run");
  for (const char* bad : {"0", "-1", "x", "1.5"}) {
    const Output wrong = run_with(suite, folder / "bad", {"--repeats", bad});
    EXPECT_EQ(wrong.code, 2) << bad;
    expect_has(wrong.err, "--repeats");
  }
  EXPECT_FALSE(std::filesystem::exists(folder / "bad"));
}

TEST(SuiteCommand, SaysWhyAWorkerOfAnotherCommitRunsOneRound) {
  const TemporaryFolder folder;
  const std::string suite = suite_in(folder, {"of_another_commit"});
  const Output output = run_with(suite, folder / "out", {"--repeats", "3"});
  EXPECT_EQ(output.code, 0) << output.err;
  expect_has(output.err, "not timed again: 2 cases: the worker " + built("fake-worker"));
  expect_has(output.err, "of commit \"0123abc\"");
}

TEST(SuiteCommand, FailsWhereALaterRoundFailsOrComputesSomethingElse) {
  const TemporaryFolder folder;
  for (const auto& [behaviour, said] : std::vector<std::pair<std::string, std::string>>{
           {"throw_later", "round 2: failed: the worker was killed by signal 6"},
           {"differ_later", "round 2: other losses than in round 1"}}) {
    const Output output =
        run_with(suite_in(folder, {behaviour}), folder / ("of_" + behaviour), {"--repeats", "2"});
    EXPECT_EQ(output.code, 1) << behaviour;
    expect_has(output.out, "2 ok;");
    expect_has(output.out, said);
  }
}

TEST(SuiteCommand, FindsDataBesideTheSuite) {
  const TemporaryFolder folder;
  const std::string suite = suite_in(folder, {"ok", "refuse"}), out = folder / "out";
  EXPECT_EQ(run_suite(suite, out).code, 0);
  std::filesystem::remove(folder / "refuse");
  const Output missing = run_suite(suite, out);
  EXPECT_EQ(missing.code, 2);
  expect_has(missing.err, suite + ":6: data.path = \"refuse\": no such file or folder");
  expect_has(missing.err, "paths in a suite are relative to the suite's file");
  // Cases that are not asked for need no data.
  EXPECT_EQ(run_with(suite, out, {"--filter", "path=ok"}).code, 0);
  const Output by_set =
      front({"suite", std::string(build_info::kSourceDir) + "/suites/quickstart.toml", "--set",
             "data.path=nowhere.txt", "--dry-run"});
  EXPECT_EQ(by_set.code, 2);
  expect_has(by_set.err, "--set data.path=nowhere.txt: no such file or folder");
}

TEST(MergeCommand, MakesAFolderOfWhichTheSuiteGoesOn) {
  const TemporaryFolder folder;
  const std::string suite = suite_in(folder, {"ok", "refuse"}), out = folder / "all";
  for (const char* seed : {"1", "2"}) {
    const std::string filter = text("seed=", seed);
    ASSERT_EQ(run_with(suite, folder / seed, {"--filter", filter}).code, 0);
  }
  const Output merged = front({"merge", folder / "1", folder / "2", "--out", out});
  EXPECT_EQ(merged.code, 0) << merged.err;
  expect_has(merged.out, "2 ok, 2 refused");
  EXPECT_EQ(results(out).size(), 4U);
  EXPECT_EQ(std::filesystem::exists(out + "/results.h5"), build_info::kHdf5.found);
  expect_has(run_suite(suite, out).err, "4 of 4 cases were finished before");
  const Output again = front({"merge", folder / "1", folder / "2", "--out", out});
  EXPECT_EQ(again.code, 2);
  expect_has(again.err, "holds results already");
}

TEST(MergeCommand, TellsOfCasesOfOneName) {
  const TemporaryFolder folder;
  const std::string suite = suite_in(folder, {"ok"});
  for (const char* steps : {"2", "3"}) {
    ASSERT_EQ(run_with(suite, folder / steps, {"--set", text("train.steps=", steps)}).code, 0);
  }
  const Output merged = front({"merge", folder / "2", folder / "3", "--out", folder / "all"});
  EXPECT_EQ(merged.code, 0) << merged.err;
  expect_has(merged.err, "several cases have one name: \"");
  expect_has(merged.err, "\" (2)");
}

TEST(SuiteCommand, LeavesNoLockBehind) {
  const TemporaryFolder folder;
  const std::string out = folder / "out";
  run_suite(suite_in(folder, {"ok"}), out);
  EXPECT_FALSE(std::filesystem::exists(out + "/lock"));
  EXPECT_EQ(run_suite(suite_in(folder, {"refuse"}), out).code, 2);
  EXPECT_FALSE(std::filesystem::exists(out + "/lock"));
}

TEST(SuiteCommand, WritesItsResultsWhereTheFileSystemHasNoLocks) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "AddressSanitizer must be the first library: nothing can be preloaded before it";
#endif
  const TemporaryFolder folder;
  const std::string out = folder / "out";
  const Output output =
      run_suite(suite_in(folder, {"ok"}), out, {{"LD_PRELOAD", built("../lib/libno_locks.so")}});
  EXPECT_EQ(output.code, 0) << output.err;
  expect_has(output.err, "cannot lock");
  EXPECT_EQ(results(out).size(), 2U);
  EXPECT_EQ(std::filesystem::exists(out + "/results.h5"), build_info::kHdf5.found);
}

}  // namespace
}  // namespace kuafu
