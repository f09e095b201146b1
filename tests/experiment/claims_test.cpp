// SPDX-License-Identifier: Apache-2.0
#include "kuafu/experiment/claims.h"

#include <gtest/gtest.h>

#include "kuafu/base/suggest.h"
#include "kuafu/experiment/summary.h"
#include "kuafu/record/schema.h"
#include "tests/experiment/derivation.h"

namespace kuafu {
namespace {

using test::Derivation;
using test::kSweep;

TEST_F(Derivation, ClaimsHoldOrFailInEachCase) {
  EXPECT_EQ(verdict("loss.last < loss.first"), "holds");
  EXPECT_EQ(results_[0].held, 6);
  EXPECT_EQ(verdict("tokens_per_s > at(strategy = 'one rank', tokens_per_s)",
                    "where = { strategy = \"data\" }\n"),
            "holds");
  EXPECT_EQ(results_[0].checked, 4);
  EXPECT_EQ(verdict("ranks < 4"), "fails");
  EXPECT_EQ(results_[0].held, 4);
  EXPECT_EQ(results_[0].failing, (std::vector<std::string>{"data, 4 ranks, batch 8: 4 < 4",
                                                           "data, 4 ranks, batch 16: 4 < 4"}));
  EXPECT_EQ(verdict("ranks < 4", "where = { ranks = [1, 2] }\n"), "holds");
  EXPECT_EQ(verdict("ranks < 4", "where = \"ranks <= 2 and batch == 8\"\n"), "holds");
  EXPECT_EQ(results_[0].checked, 2);
}

TEST_F(Derivation, ClaimsThatTimesDoNotDecideTellTheirUnits) {
  EXPECT_EQ(verdict("step_time_s.median < 1.05 * at(batch = 8, step_time_s.median)",
                    "where = { name = \"one rank, batch 8\" }\n"),
            "unresolved");
  EXPECT_EQ(
      results_[0].open.at(0),
      "one rank, batch 8: undecided within the 95 % intervals: 80 ms (72 ms to 88 ms) < 84 ms "
      "(75.6 ms to 92.4 ms)");
}

TEST_F(Derivation, ClaimsTellCasesInTheOrderOfTheSuiteWhereItsFileIsGone) {
  read("");
  std::swap(record_.cases[2], record_.cases[4]);  // as they ended
  const std::string formula = "ranks < 2";
  EXPECT_EQ(verdict(formula), "fails");
  const std::vector<std::string> known = results_[0].failing;
  EXPECT_EQ(known.size(), 4U);
  EXPECT_EQ(verdict(formula, "", false), "fails");
  EXPECT_EQ(results_[0].failing, known);
}

TEST_F(Derivation, ClaimsOfAggregatesAreAboutAllCasesAtOnce) {
  EXPECT_EQ(verdict("mean(loss.last) < mean(loss.first)"), "holds");
  EXPECT_EQ(results_[0].checked, 1);
  EXPECT_EQ(verdict("max(ranks = 4, step_time_s.median) < min(ranks = 1, step_time_s.median)"),
            "holds");
  EXPECT_EQ(verdict("count(ranks == 4) == 2 and count() == 6"), "holds");
  EXPECT_EQ(verdict("any(ranks == 3) or median(ranks) > 2"), "fails");
  EXPECT_EQ(verdict("all(ranks = 2, ledger.data.bytes_sent.sum > 0)"), "holds");
  EXPECT_EQ(verdict("tokens_per_s <= max(tokens_per_s)", "within = 0.25\n"), "holds");
}

TEST_F(Derivation, ClaimsAreUnresolvedWhereACaseIsMissing) {
  read("");
  end_as("one rank, batch 16", "out_of_memory");
  EXPECT_EQ(verdict("loss.last < loss.first"), "unresolved");
  EXPECT_EQ(results_[0].open.at(0), "one rank, batch 16: ended as out_of_memory");
  EXPECT_EQ(verdict("loss.last > loss.first"), "fails");  // the others decide
  EXPECT_EQ(verdict("loss.last < loss.first", "where = { status = \"ok\" }\n"), "holds");
  EXPECT_EQ(verdict("mean(loss.last) < 9"), "unresolved");
  record_.cases.pop_back();
  EXPECT_EQ(verdict("loss.last < loss.first", "where = { ranks = 4 }\n"), "unresolved");
  EXPECT_EQ(verdict("loss.last < loss.first", "where = { status = \"ok\" }\n"), "unresolved");
  EXPECT_EQ(verdict("loss.last < loss.first", "where = { ranks = 2 }\n"), "holds");
  // The record alone does not know which case is missing.
  EXPECT_EQ(verdict("loss.last < loss.first", "where = { ranks = 2 }\n", false), "unresolved");
  EXPECT_EQ(results_[0].open.at(0),
            "1 case of the suite has not ended; whether the claim is about them only the suite's "
            "file tells (--suite)");
}

TEST_F(Derivation, ClaimsCountCasesThatHaveEndedWithTheSuiteAndWithout) {
  read("");
  record_.cases.pop_back();
  record_.cases.pop_back();
  const auto told = [&](const std::string& formula, const std::string& more, bool is_suite_known) {
    verdict(formula, more, is_suite_known);
    return claim_text(results_);
  };
  const std::string of_four = "where = { ranks = 4 }\n";
  for (const auto& [formula, more] : {std::pair{"loss.last < loss.first", std::string()},
                                      {"loss.last > loss.first", ""},
                                      {"loss.last < loss.first", of_four},
                                      {"mean(loss.last) < 9", ""},
                                      {"mean(loss.last) > 9", ""},
                                      {"tokens_per_s < mean(tokens_per_s)", ""}}) {
    const std::string known = told(formula, more, true);
    std::string alone = told(formula, more, false);
    const std::string tail =
        "; whether the claim is about them only the suite's file tells (--suite)";
    const size_t at = alone.find(tail);
    EXPECT_EQ(at == std::string::npos, more.empty()) << alone;
    if (at != std::string::npos) alone.erase(at, tail.size());
    EXPECT_EQ(known, alone);
    EXPECT_EQ(known.find("FAILS") == std::string::npos, formula[10] != '>') << known;
    EXPECT_NE(known.find("2 cases of the suite have not ended"), std::string::npos) << known;
    const ClaimResult& result = results_.at(0);  // a report shows what fails, else what is open
    const std::string in_report = (result.failing.empty() ? join(result.open) : "") + result.note;
    EXPECT_NE(in_report.find("2 cases of the suite have not ended"), std::string::npos) << known;
  }
  EXPECT_NE(told("loss.last < loss.first", "", true).find("c: 4 of 4:"), std::string::npos);
}

TEST_F(Derivation, ClaimsAreUnresolvedWhereIntervalsOverlap) {
  read("");
  line("data, 2 ranks, batch 8")["document"]["step_time_s"] = {{"median", 0.078},
                                                               {"ci95", {0.07, 0.09}}};
  const std::string faster = "step_time_s.median < at(strategy = 'one rank', step_time_s.median)";
  EXPECT_EQ(verdict(faster, "where = { ranks = 2, batch = 8 }\n"), "unresolved");
  EXPECT_NE(results_[0].open.at(0).find("95 % intervals"), std::string::npos);
  EXPECT_EQ(verdict(faster, "where = { ranks = 2, batch = 16 }\n"), "holds");
  // All rounds of a case together decide, where the line has them.
  line("data, 2 ranks, batch 8")["timing"]["step_time_s"] = {{"median", 0.05},
                                                             {"ci95", {0.049, 0.051}}};
  EXPECT_EQ(verdict(faster, "where = { ranks = 2, batch = 8 }\n"), "holds");
  EXPECT_EQ(verdict("tokens_per_s < 0.66 * at(strategy = 'data', ranks = 4, tokens_per_s)",
                    "where = { ranks = 2, batch = 8 }\n"),
            "fails");
}

TEST_F(Derivation, WhatACertificateRefutesIsNoSideOfAClaim) {
  read("");
  line("one rank, batch 8")["document"]["certificate"]["verdict"] = "different";
  EXPECT_EQ(verdict("loss.last < loss.first", "where = { ranks = 1 }\n"), "unresolved");
  EXPECT_NE(results_[0].open.at(0).find("says different"), std::string::npos);
  EXPECT_EQ(verdict("tokens_per_s > at(strategy = 'one rank', tokens_per_s)",
                    "where = { ranks = 2, batch = 8 }\n"),
            "unresolved");
  EXPECT_EQ(verdict("certificate.verdict == 'equal'", "where = { ranks = 1 }\n"), "fails");
}

TEST_F(Derivation, ClaimsAboutNoCaseAreUnresolved) {
  EXPECT_EQ(verdict("loss.last < 1", "where = \"ranks > 100\"\n"), "unresolved");
  EXPECT_EQ(results_[0].open.at(0), "no case is what it is about");
}

TEST_F(Derivation, TravelsWithTheRecordAndMayChangeWithoutARerun) {
  const std::string column = "[[column]]\nname = \"x\"\nformula = \"ranks * 2\"\n";
  read(column +
       "[[claim]]\nname = \"c\"\nsource = \"s\"\nformula = \"ranks > 0\"\nwithin = 0.1\n"
       "where = { ranks = [1, 2] }\n"
       "[[figure]]\nkind = \"line\"\nx = \"ranks\"\ny = \"x\"\nlog = \"xy\"\n");
  const Json& header = record_.header;
  EXPECT_TRUE(line_problems(header).empty());
  EXPECT_EQ(to_json(derived_of(header["derived"], "f")), header["derived"]);
  EXPECT_EQ(header["derived"]["suite"], "s.toml");
  // Read from the record alone, the values are the same.
  const Derived alone = derived_of(header["derived"], "f");
  EXPECT_EQ(derived_json({alone, record_, nullptr})["columns"],
            derived_json({suite_.derived, record_, &suite_})["columns"]);
  const std::string hash = suite_.hash;
  const Suite changed =
      parse_suite(kSweep + "[[column]]\nname = \"y\"\nformula = \"ranks\"\n", "s.toml");
  EXPECT_EQ(changed.hash, hash);
  const Membership member = taken_up(record_, changed, "out");
  EXPECT_TRUE(member.is_changed);
  EXPECT_EQ(member.record.cases.size(), 6U);
  EXPECT_TRUE(member.record.former.empty());
  EXPECT_EQ(member.record.header["derived"]["columns"][0]["name"], "y");
  EXPECT_NE(member.notes.at(0).find("no case runs again"), std::string::npos);
  EXPECT_FALSE(taken_up(member.record, changed, "out").is_changed);
  Json broken = header["derived"];
  broken["claims"][0].erase("source");
  EXPECT_THROW(derived_of(broken, "f"), ConfigError);
}

TEST_F(Derivation, ARecordedCaseIsCalledWhatTheSuiteCallsItNow) {
  read("");
  const Suite before = suite_;
  std::string grown = kSweep;
  grown.replace(grown.find("[grid]"), 6, "[grid]\ntrain.seed = [1, 2]");
  const Suite now = parse_suite(grown, "s.toml");
  const Membership member = taken_up(record_, now, "out");
  ASSERT_EQ(member.record.cases.size(), before.cases.size());
  size_t renamed = 0;
  for (const Json& line : member.record.cases) {
    const auto is_it = [&](const Case& c) { return c.id == line["case_id"]; };
    const auto c = std::find_if(now.cases.begin(), now.cases.end(), is_it);
    const auto old = std::find_if(before.cases.begin(), before.cases.end(), is_it);
    ASSERT_NE(c, now.cases.end());
    EXPECT_EQ(line["name"], c->name);
    EXPECT_EQ(line["settings"]["train.seed"], 1);
    renamed += c->name != old->name ? 1 : 0;
  }
  EXPECT_EQ(renamed, before.cases.size());
}

TEST_F(Derivation, ARowThatIsRenamedNamesRecordedCasesAnew) {
  read("");
  std::string renamed = kSweep;
  renamed.replace(renamed.find("\"data\""), 6, "\"replicas\"");
  const Suite now = parse_suite(renamed, "s.toml");
  EXPECT_EQ(now.hash, suite_.hash);  // the same work
  const Membership member = taken_up(record_, now, "out");
  EXPECT_TRUE(member.is_changed);
  for (size_t i = 0; i < now.cases.size(); ++i) {
    EXPECT_EQ(member.record.cases.at(i)["name"], now.cases[i].name);
    for (const auto& [key, value] : now.cases[i].settings) {
      EXPECT_EQ(member.record.cases[i]["settings"][key], value) << key;
    }
  }
  EXPECT_FALSE(taken_up(member.record, now, "out").is_changed);
}

TEST_F(Derivation, FiguresHavePointsWithUnitsAndReach) {
  read(
      "[[figure]]\nkind = \"line\"\nx = \"ranks\"\ny = \"step_time_s.median\"\n"
      "where = { train.batch = 8 }\ntitle = \"t\"\n"
      "[[figure]]\nkind = \"heatmap\"\nx = \"ranks\"\ny = \"train.batch\"\n"
      "z = \"memory.peak_bytes.max\"\n");
  end_as("data, 4 ranks, batch 8", "refused");
  const Json figures = derived_json(rows())["figures"];
  EXPECT_EQ(figures[0]["y"]["unit"], "s");
  EXPECT_EQ(figures[0]["x"]["unit"], "ranks");
  EXPECT_EQ(figures[0]["by"], "strategy");
  ASSERT_EQ(figures[0]["points"].size(), 2U);
  EXPECT_EQ(figures[0]["points"][1]["x"], 2);
  EXPECT_DOUBLE_EQ(figures[0]["points"][1]["reach"][0].get<double>(), 0.036);
  EXPECT_EQ(figures[0]["points"][1]["by"], "data");
  EXPECT_EQ(figures[1]["z"]["unit"], "B");
  EXPECT_EQ(figures[1]["points"].size(), 5U);
  EXPECT_EQ(figures[0]["left_out"], (Json{{"ended as refused", 1}}));
}

TEST_F(Derivation, FiguresSayWhyCasesHaveNoPoint) {
  read(
      "[[column]]\nname = \"gain\"\nformula = \"loss.last / at(strategy = 'one rank', "
      "loss.last)\"\n[[figure]]\nkind = \"bar\"\nx = \"strategy\"\ny = \"gain\"\n");
  end_as("one rank, batch 16", "timeout");
  record_.cases.pop_back();  // data, 4 ranks, batch 16
  const Json figure = derived_json(rows())["figures"][0];
  EXPECT_EQ(figure["points"].size(), 3U);
  EXPECT_EQ(figure["left_out"], (Json{{"\"one rank, batch 16\" ended as timeout", 1},
                                      {"ended as timeout", 1},
                                      {"has not ended", 1}}));
}

TEST_F(Derivation, AKeyThatFollowsFromAnAskedOneKeepsNoCasesApart) {
  read("model.sequence = [\"= ranks * 16\"]\noptimizer.lr = [\"= sequence / 100\"]\n");
  EXPECT_EQ(suite_.derived.follows.at("optimizer.lr"),
            (std::set<std::string>{"ranks", "sequence"}));
  const std::string more = "model.sequence = [\"= ranks * 16\"]\n";
  for (const bool is_suite_known : {true, false}) {
    read(more +
         "[[claim]]\nname = \"c\"\nsource = \"s\"\nwhere = { strategy = \"data\" }\n"
         "formula = \"batch == at(ranks = 2, batch) and "
         "batch == at(strategy = 'one rank', batch)\"\n");
    const Derived alone = derived_of(record_.header["derived"], "f");
    const Rows known = rows(), of_record(alone, record_, nullptr);
    const ClaimResult result = check_claims(is_suite_known ? known : of_record).at(0);
    EXPECT_EQ(std::string(describe(result.verdict)), "holds")
        << (result.open.empty() ? "" : result.open[0]);
    EXPECT_EQ(result.held, 4);
  }
  // Two formulas of a key make two cases: it is an axis of its own.
  read("model.sequence = [\"= ranks * 16\", \"= ranks * 32\"]\n");
  EXPECT_FALSE(suite_.derived.follows.contains("model.sequence"));
}

TEST_F(Derivation, WhatStandsOverEstimatesIsMarked) {
  read(
      "[[column]]\nname = \"ms\"\nformula = \"1000 * at(ranks = 2, step_time_s.median)\"\n"
      "[[column]]\nname = \"twice\"\nformula = \"2 * ms\"\n"
      "[[column]]\nname = \"two\"\nformula = \"2 * ranks\"\n"
      "[[claim]]\nname = \"fast\"\nsource = \"s\"\nformula = \"max(twice) < 1e6\"\n"
      "where = { strategy = \"data\" }\n"
      "[[claim]]\nname = \"few\"\nsource = \"s\"\nformula = \"ranks < 8\"\n");
  EXPECT_EQ(claim_text(check_claims(rows())).find('~'), std::string::npos);
  const Json before = derived_json(rows());
  EXPECT_EQ(before["columns"][0]["estimated"], Json::array());
  line("data, 2 ranks, batch 8")["document"]["world"] = "simulated";
  const Json derived = derived_json(rows());
  const Json marked = derived["columns"][1]["estimated"];
  EXPECT_EQ(marked.size(), 2U) << marked;  // of the cases of 2 and of 4 ranks, batch 8
  EXPECT_EQ(derived["columns"][0]["estimated"], marked);
  EXPECT_EQ(derived["columns"][2]["estimated"], Json::array());
  EXPECT_TRUE(derived["claims"][0]["is_estimated"]);
  EXPECT_FALSE(derived["claims"][1]["is_estimated"]);
  const auto cells = column_cells(rows());
  EXPECT_EQ(cells[1].cells.at(line("data, 4 ranks, batch 8")["case_id"])[0], '~');
  const std::string said = claim_text(check_claims(rows()));
  EXPECT_NE(said.find("~holds"), std::string::npos) << said;
  EXPECT_NE(said.find("  holds       few"), std::string::npos) << said;
}

TEST_F(Derivation, AClaimOverTwoRoundsSaysWhatItsIntervalsAre) {
  const auto note = [&](int64_t rounds) {
    read("[[claim]]\nname = \"c\"\nsource = \"s\"\nformula = \"step_time_s.median < 1\"\n");
    for (Json& l : record_.cases) l["timing"] = {{"rounds", rounds}};
    return claim_text(check_claims(rows()));
  };
  EXPECT_NE(note(2).find("times of two rounds"), std::string::npos) << note(2);
  EXPECT_EQ(note(3).find("rounds"), std::string::npos) << note(3);
}

TEST_F(Derivation, ClaimsTellSizesAndTimesWhereBothSidesAre) {
  const auto told = [&](const std::string& formula) {
    EXPECT_EQ(verdict(formula, "where = \"ranks == 2 and batch == 8\"\n"), "fails") << formula;
    return results_[0].failing.empty() ? "" : results_[0].failing[0];
  };
  EXPECT_EQ(told("4 * step_time_s.median < at(strategy = 'one rank', step_time_s.median)"),
            "data, 2 ranks, batch 8: 160 ms (144 ms to 176 ms) < 80 ms (72 ms to 88 ms)");
  const std::string bytes = told("4096 * memory.peak_bytes.max < memory.peak_bytes.max");
  EXPECT_NE(bytes.find("MiB < "), std::string::npos) << bytes;
  // One that rounds to the other, or of another kind, is told as it is.
  EXPECT_EQ(told("memory.peak_bytes.max * 1000000 < memory.peak_bytes.max * 999999").find("iB"),
            std::string::npos);
  EXPECT_EQ(told("memory.peak_bytes.max < ranks").find("iB"), std::string::npos);
}

TEST_F(Derivation, IsToldOnTheConsole) {
  read(
      "[[column]]\nname = \"nothing\"\nformula = \"1 / (ranks - ranks)\"\n"
      "[[claim]]\nname = \"small\"\nsource = \"a wish\"\nformula = \"ranks < 2\"\n"
      "[[figure]]\nkind = \"bar\"\nx = \"ranks\"\ny = \"loss.last\"\n");
  const std::string claims = claim_text(check_claims(rows()));
  EXPECT_NE(claims.find("FAILS       small: 2 of 6 hold, 4 fail: ranks < 2 (a wish)"),
            std::string::npos)
      << claims;
  EXPECT_NE(claims.find("data, 2 ranks, batch 8: 2 < 2"), std::string::npos) << claims;
  ASSERT_EQ(empty_columns(rows()).size(), 1U);
  EXPECT_NE(empty_columns(rows())[0].find("division by zero"), std::string::npos);
  const std::string all = derived_text(suite_.derived);
  EXPECT_NE(all.find("column  nothing = 1 / (ranks - ranks)\n"), std::string::npos) << all;
  EXPECT_NE(all.find("claim   small: ranks < 2 (a wish)\n"), std::string::npos) << all;
  EXPECT_NE(all.find("figure  bar of loss.last over ranks\n"), std::string::npos) << all;
}

}  // namespace
}  // namespace kuafu
