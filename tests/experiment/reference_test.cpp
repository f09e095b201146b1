// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "kuafu/experiment/filter.h"
#include "kuafu/experiment/membership.h"
#include "kuafu/experiment/references.h"
#include "kuafu/experiment/summary.h"
#include "tests/record/support.h"

namespace kuafu {
namespace {

/// A suite of two cases with a reference, and a record in which they are ok and refused.
std::vector<ReferenceResult> check(const std::string& reference) {
  const Suite suite = parse_suite(
      "[suite]\nname = \"s\"\n[grid]\nranks = [2, 4]\n[[reference]]\n" + reference, "s.toml");
  RunRecord record;
  record.cases = {test::sample_case(suite.cases[0].id, test::sample_document(2, 3)),
                  test::sample_case(suite.cases[1].id, {{"status", "refused"}, {"reason", "no"}})};
  for (size_t i = 0; i < 2; ++i) record.cases[i]["name"] = suite.cases[i].name;
  auto results = check_references(suite.references, order_of(suite), record);
  // The record alone says the same, without the suite.
  record.header = Json::parse(suite_header(suite).dump());
  const auto again =
      check_references(references_in(record.header, "run.jsonl"), order_in(record.header), record);
  EXPECT_EQ(reference_text(again), reference_text(results));
  return results;
}

TEST(Reference, HoldsOrSaysWhichCaseBreaksIt) {
  const auto good = check("metric = \"certificate.verdict\"\nvalue = \"equal\"\n").at(0);
  EXPECT_EQ(good.checked, 1);  // the refused case has no certificate
  EXPECT_TRUE(good.broken.empty());
  const auto bad = check("metric = \"memory.peak_bytes.max\"\nvalue = 3\n").at(0);
  ASSERT_EQ(bad.broken.size(), 1U);
  EXPECT_EQ(bad.broken[0], "2 ranks: memory.peak_bytes.max is 1031, expected 3");
}

TEST(Reference, OfACertificateIsAboutWhatItRefutesToo) {
  Json refuted = test::sample_document(2, 3);
  refuted["certificate"]["verdict"] = "different";
  RunRecord record;
  record.cases = {test::sample_case("a", refuted)};
  const auto checked = [&](const std::string& metric, const Json& value) {
    Reference r;
    r.metric = metric;
    r.value = value;
    return check_references({r}, {"a"}, record).at(0);
  };
  EXPECT_EQ(checked("certificate.verdict", "equal").broken.size(), 1U);
  EXPECT_TRUE(checked("certificate.verdict", "different").broken.empty());
  EXPECT_EQ(checked("memory.peak_bytes.max", 3).checked, 0);  // its numbers are of a wrong result
}

TEST(Reference, ComparesTwoMetrics) {
  EXPECT_TRUE(check("metric = \"loss.last\"\nbelow = \"loss.first\"\n").at(0).broken.empty());
  EXPECT_FALSE(check("metric = \"loss.first\"\nbelow = \"loss.last\"\n").at(0).broken.empty());
  EXPECT_FALSE(check("metric = \"loss.first\"\nequals = \"loss.last\"\n").at(0).broken.empty());
}

TEST(Reference, MayBeBelowANumber) {
  EXPECT_TRUE(check("metric = \"loss.last\"\nbelow = 3\n").at(0).broken.empty());
  const auto bad = check("metric = \"loss.last\"\nbelow = 1\n").at(0);
  EXPECT_EQ(bad.broken.at(0), "2 ranks: loss.last is 2.1, expected below 1");
}

TEST(Reference, AllowsItsTolerance) {
  EXPECT_TRUE(
      check("metric = \"validation_loss\"\nvalue = 1.3\ntolerance = 0.05\n").at(0).broken.empty());
  EXPECT_FALSE(
      check("metric = \"validation_loss\"\nvalue = 1.3\ntolerance = 0.01\n").at(0).broken.empty());
}

TEST(Reference, MayBeBelowWithinATolerance) {
  const std::string below = "metric = \"loss.last\"\nbelow = 2.05\n";
  EXPECT_FALSE(check(below).at(0).broken.empty());
  EXPECT_FALSE(check(below + "tolerance = 0.01\n").at(0).broken.empty());
  EXPECT_TRUE(check(below + "tolerance = 0.05\n").at(0).broken.empty());
}

TEST(Reference, PicksCasesByTheLastWordOfAKeyThatTheyLeaveAtItsDefault) {
  const std::string head =
      "[suite]\nname = \"s\"\n[grid]\noptimizer.schedule = [\"constant\", \"linear\"]\n[[case]]\n"
      "name = \"left\"\noptimizer.lr = 0.5\n[[reference]]\nmetric = \"status\"\nvalue = \"ok\"\n";
  const Suite suite = parse_suite(head + "where = { schedule = \"constant\" }\n", "s.toml");
  EXPECT_EQ(suite.references.at(0).cases.size(),
            filtered(suite.cases, {{"schedule", "constant"}}).size());
  EXPECT_EQ(suite.references.at(0).cases.size(), 2U);
}

TEST(Reference, IsRefusedWhereSeveralKeysEndInItsWord) {
  const std::string two =
      "[suite]\nname = \"s\"\n[grid]\nparallel.tensor.size = [1]\nparallel.sequence.size = [1]\n";
  for (const std::string more :
       {"[[reference]]\nmetric = \"status\"\nvalue = \"ok\"\nwhere = { size = 1 }\n",
        "[[claim]]\nname = \"c\"\nsource = \"x\"\nformula = \"size == 1\"\n"}) {
    try {
      parse_suite(two + more, "s.toml");
      ADD_FAILURE() << more;
    } catch (const ConfigError& e) {
      EXPECT_NE(std::string(e.what()).find(
                    "\"size\" may be parallel.tensor.size or parallel.sequence.size"),
                std::string::npos)
          << e.what();
    }
  }
  EXPECT_THROW(filtered(parse_suite(two, "s.toml").cases, {{"size", "1"}}), ConfigError);
}

TEST(Reference, IsAboutTheCasesItNames) {
  const auto refused =
      check("metric = \"status\"\nvalue = \"refused\"\nwhere = { ranks = 4 }\n").at(0);
  EXPECT_EQ(refused.checked, 1);
  EXPECT_TRUE(refused.broken.empty());
  EXPECT_EQ(check("metric = \"status\"\nvalue = \"ok\"\n").at(0).broken.size(), 1U);
}

TEST(Reference, IsHeldOfARefusedPlanByWhatThePlanWouldHaveBeen) {
  // The line of a refused case may have no plan: its header knows which cases are meant.
  const auto wider =
      check("metric = \"status\"\nvalue = \"ok\"\nwhere = { \"model.hidden\" = 64 }\n").at(0);
  EXPECT_EQ(wider.checked, 2);
  EXPECT_EQ(wider.broken.size(), 1U);
}

TEST(Reference, OfADamagedHeaderSaysWhatToGive) {
  const Json header = {{"order", Json::array()}, {"references", {{{"below", "loss.first"}}}}};
  try {
    references_in(header, "dir");
    FAIL() << "a reference without a metric was read";
  } catch (const ConfigError& e) {
    EXPECT_NE(std::string(e.what()).find("dir: its references"), std::string::npos) << e.what();
    EXPECT_NE(std::string(e.what()).find("--suite SUITE.toml"), std::string::npos) << e.what();
  }
}

TEST(Reference, IsRefusedWhereNoDocumentHasItsMetric) {
  const auto refusal = [](const std::string& reference) -> std::string {
    try {
      check(reference);
    } catch (const ConfigError& e) {
      return e.what();
    }
    return "";
  };
  for (const char* metric : {"los.last", "loss.lst", "memory.peak_byte"}) {
    const std::string said = refusal(text("metric = \"", metric, "\"\nvalue = 1\n"));
    EXPECT_NE(said.find("s.toml:6: [[reference]]: metric: "), std::string::npos) << said;
    EXPECT_NE(said.find("did you mean"), std::string::npos) << said;
  }
  EXPECT_NE(refusal("metric = \"loss.last\"\nbelow = \"loss.frst\"\n").find("loss.first"),
            std::string::npos);
  const std::string text_as_metric =
      refusal("metric = \"certificate.verdict\"\nequals = \"equal\"\n");
  EXPECT_NE(text_as_metric.find("s.toml:7: [[reference]]: equals: \"equal\" is no field"),
            std::string::npos)
      << text_as_metric;
  EXPECT_NE(text_as_metric.find("value = \"equal\""), std::string::npos) << text_as_metric;
  for (const char* metric : {"loss", "loss.0", "ledger.data.bytes_sent.max", "plan.train.steps"}) {
    EXPECT_EQ(refusal(text("metric = \"", metric, "\"\nvalue = 1\n")), "");
  }
}

TEST(Reference, IsRefusedWhereItComparesATextWithANumber) {
  const auto refusal = [](const std::string& reference) -> std::string {
    try {
      check(reference);
    } catch (const ConfigError& e) {
      return e.what();
    }
    return "";
  };
  const std::string peak = "metric = \"memory.peak_bytes.max\"\n", status = "metric = \"status\"\n";
  for (const auto& [reference, said] :
       {std::pair{peak + "value = \"abc\"\n",
                  "memory.peak_bytes.max is a number and \"abc\" is a text: they never equal"},
        {peak + "value = true\n", "true is a truth value"},
        {peak + "equals = \"status\"\n", "\"status\" is a text"},
        {status + "value = 3\n", "status is a text and 3 is a number"},
        {status + "value = \"refuse\"\n", "did you mean \"refused\"?"},
        {"metric = \"certificate.verdict\"\nvalue = \"equals\"\n", "did you mean \"equal\"?"},
        {peak + "below = \"status\"\n", "below compares numbers"},
        {status + "below = \"plan_hash\"\n", "below compares numbers"},
        {status + "below = 3\n", "status is a text and 3 is a number; below compares numbers"}}) {
    const std::string why = refusal(reference);
    EXPECT_NE(why.find("s.toml:7: [[reference]]: "), std::string::npos) << reference << why;
    EXPECT_NE(why.find(said), std::string::npos) << reference << why;
  }
  EXPECT_EQ(refusal(status + "value = \"different\"\n"), "");
  EXPECT_EQ(refusal("metric = \"plan.model.kind\"\nvalue = \"gpt\"\n"), "");
  EXPECT_EQ(refusal("metric = \"plan.train.steps\"\nbelow = \"memory.peak_bytes.0\"\n"), "");
}

TEST(Reference, IsRefusedWhereItPicksNoCase) {
  const auto refusal = [](const std::string& where) -> std::string {
    try {
      check("metric = \"loss.last\"\nbelow = \"loss.first\"\nwhere = " + where + "\n");
    } catch (const ConfigError& e) {
      return e.what();
    }
    return "";
  };
  const std::vector<std::pair<std::string, std::string>> wrong = {
      {"{ status = \"ok\" }", "\"status\" is known only when a case has ended"},
      {"{ nokey = 3 }", "no case has a key \"nokey\". Known are"},
      {"{ rank = 2 }", "did you mean \"ranks\"?"},
      {"{ ranks = 3 }", "no case has ranks = \"3\". ranks is \"2\" or \"4\""},
      {"{ \"model.hiden\" = 64 }", "did you mean \"model.hidden\"?"},
      {"{ ranks = 2, name = \"4 ranks\" }", "no case has all of these values at once"}};
  for (const auto& [where, said] : wrong) {
    const std::string why = refusal(where);
    EXPECT_NE(why.find("s.toml:8: [[reference]]: where: "), std::string::npos) << where << why;
    EXPECT_NE(why.find(said), std::string::npos) << where << ": " << why;
  }
  for (const char* where : {"{ ranks = 2, name = \"2 ranks\" }", "{ \"model.hidden\" = 64 }"}) {
    EXPECT_EQ(refusal(where), "");
  }
}

TEST(Summary, ListsCasesAndReasons) {
  const std::vector<Json> lines = {
      test::sample_case("a", test::sample_document(2, 0)),
      test::sample_case("b", {{"status", "refused"}, {"reason", "no square\nmore"}})};
  const std::string table = result_table(lines);
  EXPECT_NE(table.find("case a  ok           2     25600  10.0 [9.00, 11.0] "), std::string::npos)
      << table;
  EXPECT_NE(table.find("5.500 -> 1.100  equal"), std::string::npos) << table;
  EXPECT_NE(table.find("\n  case b: no square\n"), std::string::npos) << table;
  EXPECT_EQ(status_counts(lines), "1 ok, 1 refused");
  Json refuted = lines[0];
  refuted["document"]["certificate"] = {{"verdict", "different"}};
  EXPECT_EQ(status_counts({lines[0], lines[1], refuted}), "1 ok, 1 different, 1 refused");
  EXPECT_NE(result_table({refuted}).find("case a  different "), std::string::npos)
      << result_table({refuted});
}

/// A case of three rounds whose processes had the machine to themselves but for the second.
Json line_of_rounds(double foreign_share) {
  Json line = test::sample_case("a", test::sample_document(2, 0));
  for (int round = 1; round <= 3; ++round) {
    line["rounds"].push_back(
        {{"round", round},
         {"status", "ok"},
         {"load", {{"foreign_share", round == 2 ? Json(foreign_share) : Json(nullptr)}}},
         {"losses", "same"}});
  }
  line["timing"] = {{"rounds", 3},
                    {"step_time_s", {{"median", 0.02}, {"ci95", {0.015, 0.025}}}},
                    {"tokens_per_s", 12800.0}};
  return line;
}

TEST(Summary, ShowsTheTimeOfAllRoundsAndWhoElseUsedTheMachine) {
  const std::string quiet = result_table({line_of_rounds(0.10)});
  EXPECT_NE(quiet.find("12800  20.0 [15.0, 25.0] "), std::string::npos) << quiet;
  EXPECT_NE(quiet.find("step times are medians over 3 rounds"), std::string::npos) << quiet;
  EXPECT_EQ(quiet.find("*"), std::string::npos) << quiet;
  const std::string loaded = result_table({line_of_rounds(0.42), line_of_rounds(0.0)});
  EXPECT_NE(loaded.find("20.0 [15.0, 25.0]  *"), std::string::npos) << loaded;
  EXPECT_NE(loaded.find("* timed under foreign load: 1 case, where other processes took more than "
                        "10 % of the cores in a round (the most: 42 %, case a)"),
            std::string::npos)
      << loaded;
}

TEST(Summary, EstimatesAreMarkedAndHaveNoInterval) {
  Json line = test::sample_case("a", test::sample_document(2, 0));
  EXPECT_EQ(result_table({line}).find("estimated"), std::string::npos);
  line["document"]["world"] = "simulated";
  line["document"]["step_time_s"]["ci95"] = {0.01, 0.01};
  const std::string table = result_table({line});
  EXPECT_NE(table.find("~25600           ~10.0 "), std::string::npos) << table;
  EXPECT_EQ(table.find("[10.0"), std::string::npos) << table;
  EXPECT_NE(table.find("~ estimated by the cost model"), std::string::npos) << table;
}

TEST(Summary, TwoRoundsGiveNoInterval) {
  Json line = line_of_rounds(0);
  EXPECT_EQ(result_table({line}).find("no interval"), std::string::npos);
  line["timing"]["rounds"] = 2;
  line["rounds"].erase(2);
  for (const auto& lines : {std::vector<Json>{line}, {line, line_of_rounds(0)}}) {
    const std::string table = result_table(lines);
    EXPECT_NE(table.find(" 20.0 [-] "), std::string::npos) << table;
    EXPECT_NE(table.find("two rounds give no interval"), std::string::npos) << table;
  }
}

TEST(Summary, TellsWhatOtherRoundsFound) {
  Json line = line_of_rounds(0);
  line["rounds"][1]["status"] = "failed";
  line["rounds"][1]["reason"] = "killed\nmore";
  line["rounds"][2]["losses"] = "different";
  const std::string table = result_table({line});
  EXPECT_NE(table.find("case a: round 2: failed: killed\n"), std::string::npos) << table;
  EXPECT_NE(table.find("case a: round 3: other losses than in round 1"), std::string::npos)
      << table;
}

TEST(Reference, IsHeldAgainstTheTimeOfAllRounds) {
  const Suite suite = parse_suite(
      "[suite]\nname = \"s\"\nquestion = \"q\"\n[grid]\nranks = [2]\n[[reference]]\n"
      "metric = \"step_time_s.median\"\nvalue = 0.02\n",
      "s.toml");
  RunRecord record;
  record.cases.push_back(line_of_rounds(0));
  record.cases[0]["case_id"] = suite.cases.at(0).id;
  EXPECT_TRUE(check_references(suite.references, order_of(suite), record).at(0).broken.empty());
}

TEST(Summary, CountsWhatCertificatesSayAndTellsWhy) {
  const auto certified = [](const Json& certificate) {
    Json document = test::sample_document(2, 0);
    document["certificate"] = certificate;
    return document;
  };
  const std::vector<Json> lines = {
      test::sample_case("a", test::sample_document(2, 0)),
      test::sample_case(
          "b",
          certified({{"verdict", "different"}, {"gradient_error", 0.25}, {"tolerance", 1e-9}})),
      test::sample_case("c", certified({{"verdict", "not_run"}, {"reason", "no legal miniature"}})),
      test::sample_case("d", certified(nullptr)),
      test::sample_case("e", {{"status", "refused"}, {"reason", "no square"}})};
  EXPECT_EQ(verdict_counts(lines),
            "1 equal, 1 different, 2 not run, none of 1 that did not end ok");
  const std::string table = result_table(lines);
  for (const char* said :
       {"case b: certificate different: its f64 twin: gradient error 0.250 of 1.00e-09",
        "case c: certificate not run: no legal miniature"}) {
    EXPECT_NE(table.find(said), std::string::npos) << table;
  }
  EXPECT_EQ(table.find("case d: certificate"), std::string::npos) << table;
}

}  // namespace
}  // namespace kuafu
