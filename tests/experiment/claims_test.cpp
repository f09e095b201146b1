// SPDX-License-Identifier: Apache-2.0
#include "kuafu/experiment/claims.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "kuafu/base/errors.h"
#include "kuafu/experiment/membership.h"
#include "kuafu/experiment/summary.h"
#include "kuafu/record/schema.h"
#include "tests/record/support.h"

namespace kuafu {
namespace {

const std::string kSweep = R"([suite]
name = "s"
[[strategy]]
name = "one rank"
ranks = 1
[[strategy]]
name = "data"
ranks = [2, 4]
parallel.data = "$ranks"
[grid]
train.batch = [8, 16]
)";

/// A suite of six cases, and a record in which the step of a case takes 80 ms / ranks * batch / 8.
class Derivation : public testing::Test {
 protected:
  void read(const std::string& more) {
    suite_ = parse_suite(kSweep + more, "dir/s.toml");
    record_ = {};
    record_.header = suite_header(suite_);
    for (const Case& c : suite_.cases) record_.cases.push_back(line_of(c));
  }

  static Json line_of(const Case& c) {
    Json document = test::sample_document(c.ranks, 0);
    const int64_t batch = std::stoll(*case_value(c, "train.batch"));
    const double median = 0.08 / static_cast<double>(c.ranks) * static_cast<double>(batch) / 8;
    document["plan"]["train"]["batch"] = batch;
    document["step_time_s"]["median"] = median;
    document["step_time_s"]["ci95"] = {0.9 * median, 1.1 * median};
    document["tokens_per_s"] = static_cast<double>(batch) * 64 / median;
    if (c.ranks == 1) document["ledger"] = Json::object();
    Json line = test::sample_case(c.id, document);
    line["name"] = c.name;
    line["settings"] = Json::object();
    for (const auto& [key, value] : c.settings) line["settings"][key] = value;
    return line;
  }

  Json& line(const std::string& name) {
    for (Json& l : record_.cases) {
      if (l["name"] == name) return l;
    }
    throw InternalError("no case " + name);
  }

  void end_as(const std::string& name, const std::string& status) {
    Json& l = line(name);
    l["status"] = status;
    l["document"] = {{"status", status}, {"reason", "no"}, {"ranks", 2}};
  }

  Rows rows(bool is_suite_known = true) const {
    return {suite_.derived, record_, is_suite_known ? &suite_ : nullptr};
  }

  std::string verdict(const std::string& formula, const std::string& more = "",
                      bool is_suite_known = true) {
    const auto before = record_.cases;
    read("[[claim]]\nname = \"c\"\nsource = \"here\"\nformula = \"" + formula + "\"\n" + more);
    if (!before.empty()) record_.cases = before;
    results_ = check_claims(rows(is_suite_known));
    return describe(results_.at(0).verdict);
  }

  std::string column(const std::string& formula, const std::string& name) {
    const auto before = record_.cases;
    read("[[column]]\nname = \"x\"\nformula = \"" + formula + "\"\n");
    if (!before.empty()) record_.cases = before;
    const Rows all = rows();
    for (size_t i = 0; i < all.all().size(); ++i) {
      if (all.all()[i].name == name) {
        const Value value = all.column(0, i);
        return value.is_absent() ? value.words : value.json().dump();
      }
    }
    return "no such case";
  }

  Suite suite_;
  RunRecord record_;
  std::vector<ClaimResult> results_;
};

TEST_F(Derivation, ColumnsSeeTheDocumentSettingsAndOtherCases) {
  const std::string four = "data, 4 ranks, batch 16", one = "one rank, batch 16";
  EXPECT_EQ(column("loss.first - loss.last", four), "4.4");
  EXPECT_EQ(column("batch * ranks", four), "64");
  EXPECT_EQ(column("model.layers + train.batch", four), "18");
  EXPECT_EQ(column("at(strategy = 'one rank', step_time_s.median) / step_time_s.median", four),
            "4");
  EXPECT_EQ(column("at(strategy = 'one rank', step_time_s.median) / step_time_s.median", one), "1");
  EXPECT_EQ(column("at(ranks = ranks / 2, step_time_s.median)", four), "0.08");
  EXPECT_EQ(column("at(batch = 8, ranks)", four), "4");
  EXPECT_EQ(column("tokens_per_s / max(batch = batch, tokens_per_s)", one), "0.25");
  EXPECT_EQ(column("strategy == 'data'", four), "true");
  EXPECT_EQ(column("ledger.*.bytes_sent.max", four), "1003");
  EXPECT_EQ(column("ledger.*.bytes_sent.sum", four), "4006");
  EXPECT_EQ(column("ledger.*.calls.all_reduce.sum / ranks", four), "6.5");
  EXPECT_EQ(column("ledger.*.bytes_sent.max", one), "0");
}

TEST_F(Derivation, StarAddsUpAxesBeforeTheElementIsTaken) {
  read("");
  Json& ledger = line("data, 2 ranks, batch 8")["document"]["ledger"];
  ledger["data"]["bytes_sent"] = {10, 1};
  ledger["tensor"] = ledger["data"];
  ledger["tensor"]["bytes_sent"] = {2, 5};
  EXPECT_EQ(column("ledger.*.bytes_sent.max", "data, 2 ranks, batch 8"), "12");
  EXPECT_EQ(column("ledger.*.bytes_sent.1", "data, 2 ranks, batch 8"), "6");
}

TEST_F(Derivation, ColumnsWithoutAValueSayWhy) {
  EXPECT_NE(column("1 / (ranks - 1)", "one rank, batch 8").find("division by zero"),
            std::string::npos);
  EXPECT_NE(column("at(ranks = 2, loss.last)", "one rank, batch 8").find("no case like"),
            std::string::npos);
  EXPECT_NE(column("at(strategy = 'data', ranks)", "one rank, batch 8").find("say more in at()"),
            std::string::npos);
  EXPECT_EQ(column("at(strategy = 'data', ranks = 4, ranks)", "one rank, batch 8"), "4");
  end_as("one rank, batch 8", "refused");
  EXPECT_NE(column("at(strategy = 'one rank', loss.last)", "data, 2 ranks, batch 8")
                .find("\"one rank, batch 8\" ended as refused"),
            std::string::npos);
}

TEST_F(Derivation, ColumnsStandOnColumnsAbove) {
  read(
      "[[column]]\nname = \"a step\"\nformula = \"1000 * step_time_s.median\"\nunit = \"ms\"\n"
      "[[column]]\nname = \"a token\"\nformula = \"`a step` / (batch * 64)\"\n");
  const Rows all = rows();
  EXPECT_DOUBLE_EQ(all.column(1, 0).number, 80.0 / 512);
  const std::string table = result_table(record_.cases, column_cells(all));
  EXPECT_NE(table.find("a step [ms]"), std::string::npos) << table;
  EXPECT_NE(table.find(" 80 "), std::string::npos) << table;
  EXPECT_NE(table.find("0.1562"), std::string::npos) << table;
}

TEST_F(Derivation, OtherCasesMayBeBaselinesBesideTheSweep) {
  const test::TemporaryFolder folder;
  std::filesystem::create_directories(folder / "rival");
  test::write_text(folder / "rival/split.toml",
                   "[parallel]\ntensor = { mode = \"1d\", size = 2 }\n");
  SuiteOptions options;
  options.baselines = folder.path();
  suite_ = parse_suite(kSweep +
                           "[[compare]]\nbaseline = \"rival\"\nranks = [2]\n[[column]]\n"
                           "name = \"x\"\nformula = \"at(strategy = 'rival split', case_id)\"\n"
                           "[[column]]\nname = \"y\"\n"
                           "formula = \"at(strategy = 'one rank', ranks + batch)\"\n",
                       "s.toml", options);
  for (const Case& c : suite_.cases) record_.cases.push_back(line_of(c));
  const Rows all = rows();
  ASSERT_EQ(all.all().size(), 8U);
  for (size_t i = 0; i < all.all().size(); ++i) {
    const Row& row = all.all()[i];
    const std::string batch = case_value(*row.planned, "train.batch").value();
    if (row.name.starts_with("data, 2 ranks")) {
      EXPECT_EQ(all.column(0, i).words, suite_.cases.at(batch == "8" ? 6 : 7).id) << row.name;
    }
    EXPECT_EQ(all.column(1, i).json(), 1 + std::stoi(batch)) << row.name;  // of baselines too
  }
}

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
  EXPECT_EQ(results_[0].open.at(0), "1 case of the suite has not ended");
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

std::string error_of(const std::string& more, const std::string& origin = "dir/s.toml") {
  try {
    parse_suite(kSweep + more, origin);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no error";
}

void expect_error(const std::string& more, const std::vector<std::string>& words) {
  const std::string said = error_of(more);
  for (const auto& word : words) {
    EXPECT_NE(said.find(word), std::string::npos) << "no \"" << word << "\" in: " << said;
  }
}

TEST(DerivedErrors, NameTheLineAndTheNearestName) {
  const std::string column = "[[column]]\nname = \"x\"\nformula = ";
  expect_error(column + "\"los.last\"\n",
               {"dir/s.toml:12", "[[column]] \"x\"", "\"los.last\"", "\"loss.last\""});
  expect_error(column + "\"hiden * 2\"\n", {"\"hiden\"", "did you mean"});
  expect_error(column + "\"loss * 2\"\n", {"loss is a list", "loss.first, .last"});
  expect_error(column + "\"memory\"\n", {"memory is an object"});
  expect_error(column + "\"1 +\"\n", {"dir/s.toml:14", "formula", "letter 4"});
  expect_error(column + "\"at(strategy = 'one rnk', ranks)\"\n", {"\"one rnk\"", "\"one rank\""});
  expect_error(column + "\"at(ranks = 3, loss.last)\"\n",
               {"no case has ranks = \"3\"", "1, 2 or 4"});
  expect_error(column + "\"at(rank = 2, loss.last)\"\n", {"\"rank\"", "\"ranks\""});
  expect_error(column + "\"x + 1\"\n", {"no \"x\" is known"});
  expect_error("[[column]]\nname = \"loss\"\nformula = \"1\"\n", {"has this name"});
  expect_error(column + "\"1\"\n" + column + "\"2\"\n", {"dir/s.toml:15", "a column above"});
  expect_error("[[column]]\nname = \"x\"\n", {"dir/s.toml:12", "formula is missing"});
  expect_error(column + "\"1\"\nunits = \"s\"\n",
               {"dir/s.toml:15", "\"column.units\"", "\"unit\""});
  expect_error("[[colum]]\nname = \"x\"\n", {"\"colum\"", "\"column\""});
}

TEST(DerivedErrors, OfClaims) {
  const std::string claim = "[[claim]]\nname = \"c\"\nsource = \"s\"\nformula = ";
  expect_error("[[claim]]\nname = \"c\"\nformula = \"ranks > 1\"\n",
               {"dir/s.toml:12", "source", "is missing"});
  expect_error(claim + "\"ranks + 1\"\n", {"true or false", "ranks + 1"});
  expect_error(claim + "\"1 < 2\"\n", {"asks no case"});
  expect_error(claim + "\"ranks > 1\"\nwhere = { stategy = \"data\" }\n",
               {"\"stategy\"", "\"strategy\""});
  expect_error(claim + "\"ranks > 1\"\nwhere = { strategy = \"dta\" }\n", {"\"dta\"", "\"data\""});
  expect_error(claim + "\"ranks > 1\"\nwhere = { status = \"fine\" }\n", {"\"fine\"", "status"});
  expect_error(claim + "\"ranks > 1\"\nwhere = 3\n", {"dir/s.toml:16", "where"});
  expect_error(claim + "\"ranks > 1\"\nwithin = \"5%\"\n", {"dir/s.toml:16", "within"});
}

TEST(DerivedErrors, OfFigures) {
  const std::string axes = "x = \"ranks\"\ny = \"loss.last\"\n";
  expect_error("[[figure]]\nkind = \"lines\"\n" + axes,
               {"dir/s.toml:13", "\"lines\"", "did you mean \"line\""});
  expect_error("[[figure]]\n" + axes, {"dir/s.toml:12", "kind", "script"});
  expect_error("[[figure]]\nkind = \"line\"\nx = \"ranks\"\n", {"y is missing"});
  expect_error("[[figure]]\nkind = \"bar\"\nx = \"ranks\"\ny = \"speed\"\n",
               {"dir/s.toml:12", "y = \"speed\""});
  expect_error("[[figure]]\nkind = \"bar\"\n" + axes + "by = \"stratgy\"\n", {"\"strategy\""});
  expect_error("[[figure]]\nkind = \"bar\"\n" + axes + "log = \"z\"\n",
               {"dir/s.toml:16", "\"z\"", "\"xy\""});
  expect_error("[[figure]]\nkind = \"bar\"\n" + axes + "z = \"ranks\"\n", {"heatmap"});
  expect_error("[[figure]]\nkind = \"heatmap\"\n" + axes, {"wants z"});
  expect_error("[[figure]]\nscript = \"gone.py\"\n", {"dir/s.toml:13", "gone.py", "no such file"});
  expect_error("[[figure]]\nscript = \"gone.sh\"\n", {"*.py"});
  expect_error("[[figure]]\nscript = \"gone.py\"\nkind = \"bar\"\n", {"draws by itself"});
}

}  // namespace
}  // namespace kuafu
