// SPDX-License-Identifier: Apache-2.0
#include "kuafu/experiment/suite.h"

#include <gtest/gtest.h>

#include <set>

#include "kuafu/base/build_folders.h"
#include "kuafu/base/errors.h"
#include "kuafu/experiment/expand.h"
#include "kuafu/experiment/filter.h"
#include "kuafu/experiment/summary.h"
#include "tests/record/support.h"

namespace kuafu {
namespace {

const std::string kSuiteHead = "[suite]\nname = \"s\"\nquestion = \"q\"\n";

std::vector<std::string> names(const std::vector<Case>& cases) {
  std::vector<std::string> out;
  for (const Case& c : cases) out.push_back(c.name);
  return out;
}

std::string suite_error(const std::string& toml, const SuiteOptions& options = {}) {
  try {
    parse_suite(toml, "s.toml", options);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no error";
}

void expect_suite_error(const std::string& toml, const std::vector<std::string>& words,
                        const SuiteOptions& options = {}) {
  const std::string message = suite_error(toml, options);
  for (const auto& word : words) {
    EXPECT_NE(message.find(word), std::string::npos) << "no \"" << word << "\" in: " << message;
  }
}

using Names = std::vector<std::string>;

TEST(Suite, APlanIsToldFromIt) {
  expect_suite_error("[model]\nlayers = 2\n",
                     {"s.toml:1: [model] belongs to a plan", "run a plan with: kuafu run FILE"});
}

TEST(Suite, CrossesTheGridInTheOrderWritten) {
  const Suite suite = parse_suite(
      kSuiteHead + "[grid]\nranks = [1, 2]\ntrain.batch = [8, 16]\nmodel.layers = [3]\n", "s.toml");
  EXPECT_EQ(names(suite.cases), (Names{"1 rank, batch 8", "1 rank, batch 16", "2 ranks, batch 8",
                                       "2 ranks, batch 16"}));
  EXPECT_NE(suite.cases[0].plan_toml.find("layers = 3"), std::string::npos);
  EXPECT_EQ(*find_setting(suite.cases[3].settings, "batch"), 16);
}

TEST(Suite, LetsARowReplaceTheGridsAxisOfItsKey) {
  const Suite suite = parse_suite(kSuiteHead + R"(
[[strategy]]
name = "alone"
ranks = 1
[[strategy]]
name = "1D"
ranks = [2, 4]
parallel.tensor = { mode = "1d", size = "$ranks" }
[grid]
ranks = [8]
train.batch = [8, 16]
)",
                                  "s.toml");
  EXPECT_EQ(names(suite.cases),
            (Names{"alone, batch 8", "alone, batch 16", "1D, 2 ranks, batch 8",
                   "1D, 2 ranks, batch 16", "1D, 4 ranks, batch 8", "1D, 4 ranks, batch 16"}));
  EXPECT_EQ(suite.cases[4].ranks, 4);
  EXPECT_EQ(case_value(suite.cases[4], "parallel.tensor.size"), "4");
  EXPECT_EQ(case_value(suite.cases[4], "strategy"), "1D");
}

TEST(Suite, LeavesOutWhatASkipNames) {
  const std::string grid = "[grid]\nranks = [1, 2]\ntrain.batch = [8, 16]\n";
  const Suite suite =
      parse_suite(kSuiteHead + grid + "[[skip]]\nranks = 2\nbatch = [8, 16]\n", "s.toml");
  EXPECT_EQ(names(suite.cases), (Names{"1 rank, batch 8", "1 rank, batch 16"}));
  expect_suite_error(kSuiteHead + grid + "[[skip]]\nranks = 3\n",
                     {"s.toml:8", "no case of the sweep has ranks = 3; nearest: 1. It is 1 or 2"});
  expect_suite_error(
      kSuiteHead + grid + "[[skip]]\nbatch = 8\nrank = [1, 2]\n",
      {"s.toml:9", "no case of the sweep has the key \"rank\"; did you mean \"ranks\"?"});
  expect_suite_error(
      kSuiteHead + grid + "[[skip]]\nranks = 2\n[[skip]]\nranks = [2, 11]\n",
      {"s.toml:10", "no case of the sweep has ranks = 11; nearest: 1. It is 1 or 2"});
  expect_suite_error(
      kSuiteHead + "[grid]\nparallel.tensor.size = [1, 2]\nparallel.pipeline.size = [1, 2]\n" +
          "[[skip]]\nsize = 2\n",
      {"s.toml:8",
       "\"size\" may be parallel.pipeline.size or parallel.tensor.size; name it in full"});
}

TEST(Suite, RefusesTwoRowsOfOneName) {
  const std::string row = "[[strategy]]\nname = \"one\"\ntrain.batch = ";
  expect_suite_error(kSuiteHead + row + "8\n" + row + "16\n",
                     {"s.toml:7: [[strategy]]: the row of line 4 is named \"one\" too"});
}

TEST(Suite, AddsExtraCasesByTheNamesOfRows) {
  const Suite suite = parse_suite(kSuiteHead + R"(
[[strategy]]
name = "1D"
ranks = [2]
parallel.tensor = { mode = "1d", size = "$ranks" }
[[case]]
name = "small"
strategy = "1D"
ranks = 4
memory.device = "1 MiB"
)",
                                  "s.toml");
  ASSERT_EQ(names(suite.cases), (Names{"1D, 2 ranks", "small"}));
  EXPECT_EQ(suite.cases[1].ranks, 4);
  EXPECT_EQ(case_value(suite.cases[1], "parallel.tensor.size"), "4");
  EXPECT_EQ(case_value(suite.cases[1], "strategy"), "1D");
}

TEST(Suite, MergesCasesThatAreTheSame) {
  const Suite suite = parse_suite(
      kSuiteHead + "[grid]\nranks = [1]\n[[case]]\nname = \"again\"\nranks = 1\n", "s.toml");
  EXPECT_EQ(suite.cases.size(), 1U);
  ASSERT_EQ(suite.notes.size(), 1U);
  EXPECT_NE(suite.notes[0].find("again"), std::string::npos);
}

TEST(Suite, KeepsPlansThatCannotBePlaced) {
  const Suite suite =
      parse_suite(kSuiteHead +
                      "[[case]]\nname = \"no square\"\nranks = 2\nparallel.tensor = { mode = "
                      "\"2d\", size = 2 }\n"
                      "[[case]]\nname = \"no product\"\nranks = 3\nparallel.data = 2\n",
                  "s.toml");
  ASSERT_EQ(suite.cases.size(), 2U);
  EXPECT_NE(suite.cases[0].plan_toml.find("mode = \"2d\""), std::string::npos);
  EXPECT_EQ(suite.cases[1].ranks, 3);
}

TEST(Suite, GivesACaseTheSameIdForTheSameContentOnly) {
  const auto id = [](const std::string& rest) {
    return parse_suite(kSuiteHead + rest, "s.toml").cases[0].id;
  };
  const std::string id1 = id("[grid]\nranks = [1]\n");
  EXPECT_EQ(id1, id("timeout_s = 7\n[base.model]\nlayers = 2\n[grid]\nranks = [1]\n"));
  const std::set<std::string> ids = {id1, id("[base.model]\nlayers = 3\n[grid]\nranks = [1]\n"),
                                     id("[grid]\nranks = [2]\n"),
                                     id("certify = false\n[grid]\nranks = [1]\n"),
                                     id("world = \"simulated\"\n[grid]\nranks = [1]\n")};
  EXPECT_EQ(ids.size(), 5U);
}

TEST(Suite, KnowsATimetableByItsBytesAndFindsItBesideItself) {
  const test::TemporaryFolder folder;
  const auto id = [&](const std::string& name, const std::string& rows) {
    test::write_text(folder / name, rows);
    const Suite suite = parse_suite(
        kSuiteHead + "[base]\nparallel = { pipeline = { size = 2, schedule = \"./" + name +
            "\" } }\ntrain = { batch = 4, micro_batch = 2 }\n[grid]\nranks = [2]\n",
        folder / "s.toml");
    EXPECT_EQ(case_value(suite.cases[0], "parallel.pipeline.schedule"), folder / name);
    return suite.cases[0].id;
  };
  const std::string gpipe = "0F0,0F1,0B0,0B1\n1F0,1F1,1B0,1B1\n";
  const std::string other = "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n";
  const std::string first = id("a.csv", gpipe);
  EXPECT_EQ(id("b.csv", gpipe), first);
  EXPECT_NE(id("a.csv", other), first);
  EXPECT_EQ(id("a.csv", gpipe), first);
}

TEST(Suite, ChangesItsHashWithItsCases) {
  const auto hash = [](const std::string& rest) {
    return parse_suite(kSuiteHead + rest, "s.toml").hash;
  };
  EXPECT_EQ(hash("[grid]\nranks = [1, 2]\n"), hash("# comment\n[grid]\nranks = [1, 2]\n"));
  EXPECT_NE(hash("[grid]\nranks = [1, 2]\n"), hash("[grid]\nranks = [1, 4]\n"));
}

TEST(Suite, RunsThroughWorldsAndSeeds) {
  const Suite suite = parse_suite(
      "[suite]\nname = \"s\"\nworlds = [\"threads\", \"simulated\"]\n"
      "seeds = [1, 2]\n[grid]\nranks = [2]\n",
      "s.toml");
  EXPECT_EQ(names(suite.cases),
            (Names{"2 ranks, threads, seed 1", "2 ranks, threads, seed 2",
                   "2 ranks, simulated, seed 1", "2 ranks, simulated, seed 2"}));
  EXPECT_EQ(suite.cases[2].world, "simulated");
}

TEST(Suite, AppliesOverridesToEveryPlan) {
  SuiteOptions options;
  options.overrides = {{"train.steps", "5"}, {"data.path", "corpus.txt"}};
  const Suite suite = parse_suite(kSuiteHead + "[grid]\nranks = [1, 2]\n", "s.toml", options);
  for (const Case& c : suite.cases) {
    EXPECT_EQ(case_value(c, "train.steps"), "5");
    EXPECT_EQ(case_value(c, "data.path"), "corpus.txt");
  }
  options.overrides = {{"train.bacth", "4"}};
  try {
    parse_suite(kSuiteHead + "[grid]\ntrain.batch = [8, 16]\n", "s.toml", options);
    ADD_FAILURE();
  } catch (const ConfigError& error) {  // no line of the suite is to blame
    EXPECT_EQ(std::string(error.what()).find("s.toml"), std::string::npos) << error.what();
  }
  options.overrides = {{"train.batch", "4"}};
  expect_suite_error(kSuiteHead + "[grid]\ntrain.batch = [8, 16]\n",
                     {"--set train.batch=4", "--filter"}, options);
}

TEST(Suite, TakesWorldsOfTheGridAndOfRows) {
  const Suite grid = parse_suite(
      kSuiteHead + "[grid]\nworld = [\"simulated\", \"threads\"]\nranks = [2, 3]\n", "s.toml");
  ASSERT_EQ(grid.cases.size(), 4U);
  for (const Case& c : grid.cases) EXPECT_EQ(c.name.find(c.world), 0U) << c.name;
  EXPECT_EQ(grid.cases[0].world, "simulated");
  const Suite rows =
      parse_suite(kSuiteHead +
                      "[grid]\nranks = [2]\n[[strategy]]\nname = \"a\"\nworld = \"simulated\"\n"
                      "[[strategy]]\nname = \"b\"\n",
                  "s.toml");
  ASSERT_EQ(rows.cases.size(), 2U);
  EXPECT_EQ(rows.cases[0].world, "simulated");
  EXPECT_EQ(rows.cases[1].world, "threads");
  for (const char* axis : {"[grid]\nworld = [\"moon\", \"threads\"]\n",
                           "[[case]]\nname = \"a\"\nworld = \"moon\"\n"}) {
    expect_suite_error(kSuiteHead + axis,
                       {"s.toml:", "world", "moon", "threads, mpi, nccl or simulated"});
  }
}

TEST(Suite, RefusesControlCharactersInNames) {
  for (const char* name : {"a\\nb", "a\\rb", "a\\u007fb", "a\\u001b[31m"}) {
    expect_suite_error(kSuiteHead + "[[case]]\nname = \"" + name + "\"\n", {"s.toml:5", "control"});
  }
}

TEST(Suite, NamesFileLineAndNearestWord) {
  expect_suite_error("[suit]\nname = \"s\"\n", {"s.toml:1", "\"suit\"", "\"suite\""});
  expect_suite_error("[suite]\nname = \"s\"\ntimeout = 3\n", {"s.toml:3", "timeout_s"});
  expect_suite_error("[suite]\nname = \"s\"\nworld = \"thread\"\n",
                     {"s.toml:3", "thread", "\"threads\""});
  expect_suite_error("[suite]\nname = \"s\"\n\nworlds = [\"mpi\", \"thred\"]\n",
                     {"s.toml:4: suite.worlds \"thred\"", "\"threads\""});
  expect_suite_error("[suite]\nname = \"s\"\nworld = \"mpi\"\nworlds = [\"threads\"]\n",
                     {"s.toml:1", "suite.world and suite.worlds"});
  for (const char* path : {"../s", "/tmp/s", ".hidden", "a/b"}) {
    expect_suite_error(text("[suite]\nname = \"", path, "\"\n"),
                       {"s.toml:1", path, "names the folder"});
  }
  expect_suite_error(kSuiteHead + "[grid]\nranks = [1, 2]\n[[skip]]\nranks = [1, 2]\n",
                     {"s.toml:6: [[skip]] leaves no case"});
  expect_suite_error(kSuiteHead + "[grid]\nranks = [\"1\", 2]\n",
                     {"s.toml:5", "write 1, without quotes"});
  expect_suite_error(kSuiteHead + "[grid]\nranks = [2]\ntrain.batch = [\"$rank\"]\n",
                     {"s.toml:6", "\"ranks\"", "It gives ranks, train.batch, world"});
  expect_suite_error("[suite]\nname = \"s\"\ntimeout_s = -3\n", {"s.toml:3", "seconds", "-3"});
  expect_suite_error("[suite]\nname = \"s\"\nbudget_s = 0\n", {"s.toml:3", "positive", "seconds"});
  expect_suite_error(kSuiteHead + "[[reference]]\ntolerance = -1\n",
                     {"s.toml:5", "tolerance, 0 or more", "-1"});
  expect_suite_error(kSuiteHead + "[[claim]]\nwithin = \"1\"\n",
                     {"s.toml:5", "tolerance, 0 or more", "\"1\""});
  expect_suite_error(kSuiteHead + "[grid]\ntrain.batch = []\n", {"s.toml:5", "train.batch"});
  expect_suite_error(kSuiteHead + "[grid]\nranks = [0]\n", {"ranks", "from 1", "0"});
  expect_suite_error(kSuiteHead + "[grid]\ntrain.batch = 8\n", {"s.toml:5", "list"});
  expect_suite_error(kSuiteHead + "[[refrence]]\nmetric = \"loss\"\n",
                     {"s.toml:4", "\"reference\""});
  expect_suite_error(kSuiteHead + "[[reference]]\nmetric = \"loss\"\n",
                     {"s.toml:4", "value, equals and below"});
  expect_suite_error(kSuiteHead + "[[reference]]\nmetric = \"loss\"\nvalue = nan\n",
                     {"s.toml:6", "reference.value: expected a finite number, given nan"});
  expect_suite_error(kSuiteHead + "[[reference]]\nmetric = \"loss\"\nbelow = inf\n",
                     {"s.toml:6", "reference.below: expected a finite number, given inf"});
  expect_suite_error(
      kSuiteHead + "[[case]]\nname = \"a\"\n[[case]]\nname = \"a\"\ntrain.batch = 16\n",
      {"s.toml:6", "the case \"a\" has the name of another, asked for at s.toml:4"});
  expect_suite_error(kSuiteHead + "[[strategy]]\nranks = 2\n", {"s.toml:4", "name is missing"});
  expect_suite_error(kSuiteHead, {"no case"});
  expect_suite_error("name = \n", {"s.toml:1"});
}

TEST(Suite, RefusesWorldsAndSeedsThatMultiplyNothing) {
  const std::string one_case = "[[case]]\nname = \"a\"\nranks = 1\n";
  expect_suite_error(kSuiteHead + "seeds = [1, 2]\n" + one_case,
                     {"s.toml: seeds of the suite multiply a sweep", "which train.seed it has"});
  expect_suite_error(kSuiteHead + "worlds = [\"threads\", \"mpi\"]\n" + one_case,
                     {"s.toml: worlds of the suite multiply a sweep", "which world it has"});
}

TEST(Suite, NamesTheNearestKeyOfACase) {
  expect_suite_error(kSuiteHead + "[[case]]\nname = \"a\"\nrank = 1\n",
                     {"s.toml:6: unknown key rank", "ranks", "and keys of plans"});
}

TEST(Suite, FindsWrongPlanKeysOnTheirLine) {
  expect_suite_error(kSuiteHead + "[base.model]\nlayers = 2\nhiden = 64\n[grid]\nranks = [1]\n",
                     {"s.toml:6", "hiden", "hidden"});
  expect_suite_error(
      kSuiteHead + "[base]\nmodel = { layers = 2 }\n[base.train]\nstep = 3\n[grid]\nranks = [1]\n",
      {"s.toml:7", "step"});
  expect_suite_error(kSuiteHead + "[grid]\ntrain.bach = [1]\n",
                     {"train.bach", "train.batch", "in the case"});
}

TEST(Suite, RefusesAmbiguousSettings) {
  const std::string rows = "[[strategy]]\nname = \"a\"\ntrain.batch = 8\n";
  expect_suite_error(kSuiteHead + rows + "[[policy]]\nname = \"p\"\ntrain.batch = 4\n",
                     {"train.batch", "two rows"});
  expect_suite_error(kSuiteHead + "[[strategy]]\nname = \"a\"\ntrain.batch = \"$rank\"\n",
                     {"$rank", "has no key"});
  expect_suite_error(kSuiteHead + rows + "[[case]]\nname = \"c\"\nstrategy = \"b\"\n",
                     {"\"b\"", "\"a\""});
}

TEST(Suite, LeavesModesOfAPluginToTheWorker) {
  const std::string toml =
      kSuiteHead +
      "[[case]]\nname = \"mine\"\nranks = 4\nparallel.tensor = { mode = \"mine\", size = 2 }\n";
  expect_suite_error(toml, {"mine"});
  SuiteOptions options;
  options.plugins = {"libmine.so"};
  options.names_of_plugins = [](const std::vector<std::string>& plugins) {
    EXPECT_EQ(plugins, Names{"libmine.so"});
    return PluginNames{.models = {"macaron"},
                       .tensor = {"mine"},
                       .sequence = {},
                       .schedules = {},
                       .optimizers = {},
                       .policies = {"nearby"}};
  };
  EXPECT_EQ(parse_suite(toml, "s.toml", options).cases[0].ranks, 4);
  const std::string policies = "[grid]\nmemory.policy = [\"host\", \"nearby\"]\n";
  EXPECT_EQ(parse_suite(kSuiteHead + policies, "s.toml", options).cases.size(), 2U);
  const std::string models = "[grid]\nmodel.kind = [\"gpt\", \"macaron\"]\n";
  EXPECT_EQ(parse_suite(kSuiteHead + models, "s.toml", options).cases.size(), 2U);
  expect_suite_error(kSuiteHead + "[grid]\nmodel.kind = [\"macarons\"]\n",
                     {"\"macarons\"", "\"macaron\""}, options);
  options.plugins = {};
  const std::string head = "[suite]\nname = \"s\"\nplugins = [\"libmine.so\"]\n";
  const Suite suite = parse_suite(head + models, "s.toml", options);
  EXPECT_EQ(suite.plugins, Names{"libmine.so"});
}

TEST(Suite, SweepsEveryModel) {
  const Suite suite = parse_suite(kSuiteHead + R"(
[base]
data.kind = "synthetic"
[grid]
model.kind = ["gpt", "moe_gpt", "bert", "vit"]
)",
                                  "s.toml");
  EXPECT_EQ(suite.cases.size(), 4U);
  for (const Case& c : suite.cases) {
    EXPECT_NE(c.plan_toml.find("kind = \"" + *case_value(c, "model.kind") + "\""),
              std::string::npos);
  }
  expect_suite_error(kSuiteHead + "[grid]\nmodel.kind = [\"birt\"]\n",
                     {"\"birt\"", "nearest: \"bert\""});
}

TEST(Suite, MakesAnotherCaseOfAnotherCorpusAndNotOfAnotherPlace) {
  const test::TemporaryFolder folder;
  const auto suite_on = [&](const std::string& name, const std::string& bytes,
                            const std::string& more = "") {
    test::write_text(folder / name, bytes);
    return parse_suite(kSuiteHead + more + "[base]\ndata.path = \"" + (folder / name) +
                           "\"\n[grid]\nranks = [1]\n",
                       "s.toml");
  };
  const Suite one = suite_on("a", "first"), moved = suite_on("b", "first"),
              changed = suite_on("a", "other");
  EXPECT_EQ(one.cases[0].id, moved.cases[0].id);
  EXPECT_EQ(one.hash, moved.hash);
  EXPECT_NE(one.cases[0].id, changed.cases[0].id);
  ASSERT_EQ(one.corpora.size(), 1U);
  EXPECT_EQ(one.corpora.begin()->second, 5);
  EXPECT_EQ(case_value(one.cases[0], "data.hash"), one.corpora.begin()->first);
  // What is simulated reads nothing.
  const std::string simulated = "world = \"simulated\"\n";
  EXPECT_EQ(suite_on("a", "first", simulated).cases[0].id,
            suite_on("a", "other", simulated).cases[0].id);
}

TEST(Suite, ReadsTheDefaultCorpusWhereNoPathIsGiven) {
  const test::TemporaryFolder folder;
  SuiteOptions options;
  options.default_corpus = folder / "headers";
  const auto id_on = [&](const std::string& bytes) {
    test::write_text(options.default_corpus, bytes);
    return parse_suite(kSuiteHead + "[grid]\nranks = [1]\n", "s.toml", options).cases[0].id;
  };
  const std::string id = id_on("one version");
  EXPECT_EQ(id_on("one version"), id);
  EXPECT_NE(id_on("the next version"), id);
}

TEST(Filter, KeepsTheCasesWithTheValue) {
  const Suite suite =
      parse_suite(kSuiteHead + "[grid]\nranks = [1, 2]\ntrain.batch = [8, 16]\n", "s.toml");
  EXPECT_EQ(filtered(suite.cases, {{"ranks", "2"}}).size(), 2U);
  EXPECT_EQ(filtered(suite.cases, {{"ranks", "2"}, {"batch", "8"}}).size(), 1U);
  EXPECT_EQ(filtered(suite.cases, {{"model.layers", "2"}}).size(), 4U);
  EXPECT_EQ(filtered(suite.cases, {{"ranks", "2e0"}, {"batch", "8.0"}}).size(), 1U);
}

TEST(Filter, ReadsAGroupOfThePlanByItsSize) {
  const Suite suite = parse_suite(
      kSuiteHead + "[base]\nparallel.data = \"$ranks\"\n[grid]\nranks = [1, 2, 4]\n", "s.toml");
  EXPECT_EQ(filtered(suite.cases, {{"parallel.data", "2"}}).size(), 1U);
  EXPECT_EQ(filtered(suite.cases, {{"parallel.data.size", "2,4"}}).size(), 2U);
  EXPECT_EQ(filtered(suite.cases, {{"parallel.pipeline", "1"}}).size(), 3U);
}

TEST(Filter, NamesWhatThereIs) {
  const Suite suite = parse_suite(kSuiteHead + "[grid]\nranks = [1, 2]\n", "s.toml");
  const auto message = [&](const Overrides& filters) {
    try {
      filtered(suite.cases, filters);
    } catch (const ConfigError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_NE(message({{"rank", "2"}}).find("did you mean \"ranks\""), std::string::npos);
  EXPECT_NE(message({{"ranks", "3"}}).find("1 or 2"), std::string::npos);
}

TEST(Filter, TakesListsAndPatterns) {
  const Suite suite = parse_suite(kSuiteHead + R"(
[[strategy]]
name = "ZeRO 1"
parallel = { data = 2, zero = 1 }
[[strategy]]
name = "ZeRO 3"
parallel = { data = 2, zero = 3 }
[[strategy]]
name = "all, but slow"
ranks = 1
[grid]
train.batch = [8, 16, 32]
)",
                                  "s.toml");
  const auto count = [&](const Overrides& filters) {
    return filtered(suite.cases, filters).size();
  };
  EXPECT_EQ(count({{"batch", "8,32"}}), 6U);
  EXPECT_EQ(count({{"batch", "8, 32"}, {"strategy", "ZeRO*"}}), 4U);
  EXPECT_EQ(count({{"strategy", "ZeRO ?"}}), 6U);
  EXPECT_EQ(count({{"strategy", "*slow,ZeRO 3"}}), 6U);
  EXPECT_EQ(count({{"strategy", "all, but slow"}}), 3U);
  EXPECT_EQ(count({{"strategy", "*"}}), 9U);
  EXPECT_EQ(count({{"name", "*batch 8"}}), 3U);
  const auto error = [&](const Overrides& filters) {
    try {
      filtered(suite.cases, filters);
    } catch (const ConfigError& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  EXPECT_NE(error({{"batch", "8,12"}}).find("no case has batch = \"12\"; did you mean \"16\""),
            std::string::npos)
      << error({{"batch", "8,12"}});
  EXPECT_NE(error({{"strategy", "zero*"}}).find("\"zero*\""), std::string::npos);
  EXPECT_NE(error({{"strateg", "ZeRO*"}}).find("did you mean \"strategy\""), std::string::npos);
  EXPECT_NE(error({{"strategy", "ZeRO 1"}, {"parallel.zero", "3"}}).find("no case is left"),
            std::string::npos);
}

TEST(Suite, FiltersByTheLastWordOfAKeyThatSomeCasesLeaveAtItsDefault) {
  const Suite suite = parse_suite(kSuiteHead + R"([[case]]
name = "eight"
[[case]]
name = "sixteen"
train.batch = 16
[[case]]
name = "eight again"
train.batch = 8
optimizer.lr = 0.5
)",
                                  "s.toml");
  EXPECT_EQ(names(filtered(suite.cases, {{"batch", "8"}})),
            (std::vector<std::string>{"eight", "eight again"}));
}

TEST(Suite, PlacesDataBesideItsFileAndThatOfSetBesideTheCaller) {
  const test::TemporaryFolder folder;
  test::write_text(folder / "corpus.txt", "words of a corpus");
  const std::string toml = kSuiteHead + "[base]\ndata.path = \"corpus.txt\"\n[grid]\nranks = [1]\n";
  const Case beside = parse_suite(toml, folder / "s.toml").cases[0];
  EXPECT_EQ(case_value(beside, "data.path"), folder / "corpus.txt");
  EXPECT_EQ(beside.missing_data, "");
  const Case elsewhere = parse_suite(toml, folder / "more/s.toml").cases[0];
  EXPECT_NE(elsewhere.missing_data.find("paths in a suite are relative to the suite's file"),
            std::string::npos)
      << elsewhere.missing_data;
  SuiteOptions options;
  options.overrides = {{"data.path", "corpus.txt"}};
  const Case set = parse_suite(toml, folder / "s.toml", options).cases[0];
  EXPECT_EQ(case_value(set, "data.path"), "corpus.txt");
  EXPECT_NE(set.missing_data.find("--set data.path=corpus.txt"), std::string::npos);
  const std::string simulated =
      "[suite]\nname = \"s\"\nworld = \"simulated\"\n" + toml.substr(kSuiteHead.size());
  EXPECT_EQ(parse_suite(simulated, folder / "more/s.toml").cases[0].missing_data, "");
}

TEST(Suite, OverridesTimeOutAndBudgetOfEveryCase) {
  SuiteOptions options;
  options.timeout_s = 5;
  options.budget = int64_t{2} << 30;
  const std::string rows =
      "[grid]\nranks = [1]\n[[case]]\nname = \"small\"\ntimeout_s = 7\n"
      "memory.device = \"1 MiB\"\ntrain.batch = 4\n";
  const Suite suite = parse_suite(kSuiteHead + "timeout_s = 60\n" + rows, "s.toml", options);
  ASSERT_EQ(suite.cases.size(), 2U);
  for (const Case& c : suite.cases) EXPECT_EQ(c.timeout_s, 5);
  const std::string& swept = suite.cases[0].plan_toml;
  EXPECT_NE(swept.find("device = 2147483648\n"), std::string::npos) << swept;
  EXPECT_EQ(case_value(suite.cases[1], "memory.device"), "1 MiB");  // its own
  EXPECT_NE(suite.cases[1].plan_toml.find("device = 1048576\n"), std::string::npos);
  expect_suite_error(kSuiteHead + "[grid]\nmemory.device = [\"1 MiB\", \"2 MiB\"]\n",
                     {"--budget", "memory.device", "--filter"}, options);
  expect_suite_error(kSuiteHead +
                         "[grid]\nranks = [1]\n[[memory]]\nname = \"a\"\n"
                         "memory.device = \"1 MiB\"\n[[memory]]\nname = \"b\"\n",
                     {"--budget", "memory.device", "case \"b\""}, options);
}

TEST(Suite, NamesTheLineOfTheGridKeyThatIsWrong) {
  const std::string rows = "[[strategy]]\nname = \"a\"\nranks = 1\n[grid]\n";
  expect_suite_error(kSuiteHead + rows + "model.sequence = [8]\nmodel.layers = [0]\n",
                     {"s.toml:9: model.layers:", "in the case \"a\""});
  expect_suite_error(kSuiteHead + rows + "certify = [3]\n",
                     {"s.toml:8: certify: expected true or false"});
  expect_suite_error(
      kSuiteHead + "[[strategy]]\nname = \"a\"\nranks = 1\nmodel.layers = 0\n[grid]\nranks = [1]\n",
      {"s.toml:7: model.layers:"});
  // What a key of the grid and one of the base are wrong in together names both.
  expect_suite_error(kSuiteHead +
                         "[base.optimizer]\nschedule = \"cosine\"\nschedule_steps = "
                         "8\n[grid]\noptimizer.warmup = [50]\n",
                     {"s.toml:6: ", "optimizer.warmup at s.toml:8"});
}

TEST(Suite, RepeatsWithoutBeingAnother) {
  const std::string rows = "[grid]\nranks = [1, 2]\n";
  const Suite once = parse_suite(kSuiteHead + rows, "s.toml");
  const Suite thrice = parse_suite(kSuiteHead + "repeats = 3\n" + rows, "s.toml");
  EXPECT_EQ(once.repeats, 1);
  EXPECT_EQ(thrice.repeats, 3);
  EXPECT_EQ(once.hash, thrice.hash);
  SuiteOptions options;
  options.repeats = 5;
  EXPECT_EQ(parse_suite(kSuiteHead + "repeats = 3\n" + rows, "s.toml", options).repeats, 5);
  for (const char* bad : {"0", "-1", "1.5", "\"three\""}) {
    expect_suite_error(kSuiteHead + "repeats = " + bad + "\n",
                       {"s.toml:4: suite.repeats: expected whole numbers from 1", bad});
  }
  expect_suite_error(kSuiteHead + "repeats = [2, 3]\n",
                     {"s.toml:4: suite.repeats: expected one number"});
  expect_suite_error(kSuiteHead + "repeat = 3\n", {"s.toml:4", "did you mean \"repeats\""});
}

TEST(Quickstart, HasAtMostFortyCases) {
  const Suite suite = load_suite(std::string(build_info::kSourceDir) + "/suites/quickstart.toml");
  EXPECT_LE(suite.cases.size(), 40U);
  EXPECT_TRUE(suite.notes.empty());
  std::set<std::string> strategies;
  for (const Case& c : suite.cases) strategies.insert(*case_value(c, "strategy"));
  EXPECT_EQ(strategies, (std::set<std::string>{"one rank", "data parallel", "1D tensor", "1D-sp",
                                               "2D tensor", "data x tensor"}));
}

TEST(PlanTable, PromisesNoCertificateOfASimulatedRun) {
  const auto table = [](const std::string& world) {
    Case one;
    one.name = "a";
    one.world = world;
    return plan_table({one});
  };
  EXPECT_NE(table("threads").find("  yes "), std::string::npos) << table("threads");
  EXPECT_EQ(table("simulated").find("yes"), std::string::npos) << table("simulated");
}

TEST(Quickstart, MeetsEveryPairOfBatchSequenceAndPolicy) {
  const Suite suite = load_suite(std::string(build_info::kSourceDir) + "/suites/quickstart.toml");
  const std::vector<Case> one = filtered(suite.cases, {{"strategy", "one rank"}});
  for (const auto& [a, b] : std::vector<std::pair<std::string, std::string>>{
           {"batch", "sequence"}, {"batch", "policy"}, {"sequence", "policy"}}) {
    std::set<std::string> met;
    for (const Case& c : one) met.insert(*case_value(c, a) + "/" + *case_value(c, b));
    EXPECT_EQ(met.size(), 4U) << a << " x " << b;
  }
}

}  // namespace
}  // namespace kuafu
