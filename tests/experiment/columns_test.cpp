// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <filesystem>

#include "kuafu/experiment/summary.h"
#include "tests/experiment/derivation.h"

namespace kuafu {
namespace {

using test::Derivation;
using test::kSweep;

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

TEST_F(Derivation, SizesAndTimesAreToldAsSuch) {
  read(
      "[[column]]\nname = \"sent\"\nformula = \"1024 * 9360\"\nunit = \"B\"\n"
      "[[column]]\nname = \"slow\"\nformula = \"step_time_s.median / 16\"\nunit = \"s\"\n"
      "[[column]]\nname = \"share\"\nformula = \"ranks / 8\"\n");
  const std::string table = result_table(record_.cases, column_cells(rows()));
  for (const char* part : {"9.14 MiB", "5 ms", "0.125", "sent", "slow"})
    EXPECT_NE(table.find(part), std::string::npos) << part << "\n" << table;
  for (const char* part : {"9584640", "0.005", "[B]", "[s]"})
    EXPECT_EQ(table.find(part), std::string::npos) << part << "\n" << table;
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

}  // namespace
}  // namespace kuafu
