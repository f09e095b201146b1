// SPDX-License-Identifier: Apache-2.0
#include "kuafu/record/schema.h"

#include <gtest/gtest.h>

#include <functional>

#include "kuafu/base/build_folders.h"
#include "kuafu/base/errors.h"
#include "tests/record/support.h"

namespace kuafu {
namespace {

using test::sample_document;

std::string all(const std::vector<std::string>& sentences) {
  std::string out;
  for (const auto& s : sentences) out += s + "\n";
  return out;
}

void expect_problem(const Json& document, const std::string& words) {
  const std::string problems = all(document_problems(document));
  EXPECT_NE(problems.find(words), std::string::npos) << "problems: " << problems;
}

TEST(Schema, AcceptsAWholeDocument) {
  EXPECT_EQ(all(document_problems(sample_document(3, 1))), "");
  EXPECT_EQ(all(unknown_fields(sample_document(3, 1))), "");
}

TEST(Schema, AsksForEveryFieldOfAnOkDocument) {
  for (const FieldDoc& field : document_fields()) {
    const bool is_top = field.path.find('.') == std::string::npos;
    if (field.presence != Presence::kOk || !is_top) continue;
    Json document = sample_document(2, 0);
    document.erase(field.path);
    expect_problem(document, field.path + " is missing");
  }
}

TEST(Schema, AsksForTheFieldsOfEachLedgerRow) {
  for (const char* name :
       {"bytes_sent", "bytes_received", "messages", "peers", "wire_peers", "calls"}) {
    Json document = sample_document(2, 0);
    document["ledger"]["data"].erase(name);
    expect_problem(document, text("ledger.data.", name, " is missing"));
  }
}

TEST(Schema, RefusesAWrongType) {
  Json document = sample_document(2, 0);
  document["tokens_per_s"] = "fast";
  expect_problem(document, "tokens_per_s: expected number or null");
  document = sample_document(2, 0);
  document["ledger"]["data"]["bytes_sent"][0] = -1;
  expect_problem(document, "ledger.data.bytes_sent");
}

TEST(Schema, RefusesAListThatIsNotOneEntryARank) {
  Json document = sample_document(2, 0);
  document["memory"]["peak_by_category"].push_back(Json::object());
  expect_problem(document, "memory.peak_by_category");
}

TEST(Schema, RefusesATimeBelowZero) {
  Json document = sample_document(2, 0);
  document["step_time_s"]["median"] = -0.01;
  expect_problem(document, "step_time_s.median: expected no time below 0, found -0.01");
  document = sample_document(2, 0);
  document["step_time_s"]["samples"][0] = -1e-9;
  expect_problem(document, "step_time_s.samples: expected no time below 0");
}

TEST(Schema, KnowsTheNamesOfStatusesAndVerdicts) {
  Json document = sample_document(2, 0);
  document["status"] = "done";
  expect_problem(document,
                 "status: \"done\" is none of ok, refused, out_of_memory, timeout, diverged, "
                 "interrupted, failed");
  document = sample_document(2, 0);
  document["certificate"]["verdict"] = "perhaps";
  expect_problem(document, "certificate.verdict");
}

TEST(Schema, RefusesAVerdictBetterThanThatOfItsPart) {
  Json document = sample_document(2, 0);
  for (const char* of_run : {"different", "not_run"}) {
    document["certificate"]["native"]["verdict"] = of_run;
    expect_problem(document, "certificate.verdict: \"equal\", and that of its part native is");
  }
  document["certificate"]["native"]["verdict"] = "equal";
  EXPECT_EQ(all(document_problems(document)), "");
}

TEST(Schema, WantsAReasonOfWhateverIsNotOk) {
  EXPECT_EQ(all(document_problems({{"status", "refused"}, {"reason", "no square"}})), "");
  expect_problem({{"status", "refused"}}, "reason");
}

TEST(Schema, TakesNullForLossAndCertificateOfTheSimulatedWorldOnly) {
  Json document = sample_document(2, 0);
  document["loss"] = nullptr;
  document["certificate"] = nullptr;
  document["validation_loss"] = nullptr;
  expect_problem(document, "loss: null is for the simulated world only");
  document["world"] = "simulated";
  EXPECT_EQ(all(document_problems(document)), "");
}

TEST(Schema, ListsFieldsItDoesNotKnow) {
  Json document = sample_document(2, 0);
  document["speed"] = 1;
  document["memory"]["colour"] = "red";
  document["provenance"]["anything"] = 1;
  EXPECT_EQ(all(unknown_fields(document)), "memory.colour\nspeed\n");
}

TEST(Schema, ReadsValuesByPath) {
  const Json document = sample_document(2, 0);
  EXPECT_EQ(value_at(document, "loss.first"), 5.5);
  EXPECT_EQ(value_at(document, "loss.last"), 5.5 / 5);
  EXPECT_EQ(value_at(document, "memory.peak_bytes.max"), 1001);
  EXPECT_EQ(value_at(document, "memory.peak_bytes.sum"), 2001);
  EXPECT_EQ(value_at(document, "step_time_s.ci95.0"), document["step_time_s"]["ci95"][0]);
  EXPECT_TRUE(value_at(document, "loss.99").is_null());
  EXPECT_TRUE(value_at(document, "no.such").is_null());
}

TEST(Schema, ReadsNumbersPerStepByStepAndElement) {
  const Json document = {{"telemetry",
                          {{"trust_ratio", {{1, 2, nullptr}, {3, 5, 4}, {nullptr, 7, 6}}},
                           {"noise_scale", {nullptr, 8, nullptr}}}}};
  EXPECT_EQ(value_at(document, "telemetry.trust_ratio.1.max"), 5);
  EXPECT_EQ(value_at(document, "telemetry.trust_ratio.last.max"), 7);
  EXPECT_EQ(value_at(document, "telemetry.trust_ratio.first.max"), 2);
  EXPECT_EQ(value_at(document, "telemetry.trust_ratio.last.2"), 6);
  EXPECT_EQ(value_at(document, "telemetry.trust_ratio.first.last"), nullptr);
  EXPECT_EQ(value_at(document, "telemetry.trust_ratio.last.sum"), nullptr);
  EXPECT_EQ(value_at(document, "telemetry.trust_ratio.1.sum"), 12);
  EXPECT_EQ(value_at(document, "telemetry.noise_scale.max"), 8);
  EXPECT_EQ(path_problem("telemetry.trust_ratio.last.max"), "");
  EXPECT_EQ(path_problem("telemetry.trust_ratio.last"), "");
  for (const char* wrong : {"telemetry.trust_ratio.max", "telemetry.trust_ratio.last.max.0"}) {
    EXPECT_NE(path_problem(wrong), "") << wrong;
  }
}

Json line_of_rounds() {
  return test::with_rounds(test::sample_case("a", sample_document(2, 0)), 2);
}

TEST(Schema, KnowsTheRoundsOfALine) {
  EXPECT_EQ(all(line_problems(line_of_rounds())), "");
  const auto expect_wrong = [](const char* where, const std::function<void(Json&)>& change) {
    Json line = line_of_rounds();
    change(line);
    const std::string problems = all(line_problems(line));
    EXPECT_NE(problems.find(where), std::string::npos) << "no " << where << " in: " << problems;
  };
  expect_wrong("rounds: expected a list", [](Json& l) { l["rounds"] = Json::array(); });
  expect_wrong("rounds.1.round", [](Json& l) { l["rounds"][1]["round"] = 1; });
  expect_wrong("rounds.0.round", [](Json& l) { l["rounds"].erase(0); });
  expect_wrong("rounds.1.status", [](Json& l) { l["rounds"][1]["status"] = "fine"; });
  expect_wrong("rounds.1.position", [](Json& l) { l["rounds"][1]["position"] = 0; });
  expect_wrong("rounds.0.losses", [](Json& l) { l["rounds"][0]["losses"] = "alike"; });
  expect_wrong("rounds.0.step_time_s",
               [](Json& l) { l["rounds"][0]["step_time_s"].erase("ci95"); });
  expect_wrong("rounds.0.load", [](Json& l) { l["rounds"][0]["load"] = 2; });
  expect_wrong("timing.rounds", [](Json& l) { l["timing"].erase("rounds"); });
  expect_wrong("timing.step_time_s", [](Json& l) { l["timing"]["step_time_s"] = 0.01; });
}

TEST(Schema, IsThePageThatPeopleRead) {
  const std::string page = test::read_text(std::string(build_info::kSourceDir) + "/docs/record.md");
  EXPECT_NE(page.find("\n" + document_fields_markdown()), std::string::npos)
      << "docs/record.md should hold this table:\n"
      << document_fields_markdown();
}

}  // namespace
}  // namespace kuafu
