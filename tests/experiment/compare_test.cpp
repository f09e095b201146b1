// SPDX-License-Identifier: Apache-2.0
#include "kuafu/experiment/compare.h"
#include "kuafu/experiment/summary.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>
#include <tuple>
#include <utility>

#include "kuafu/base/errors.h"
#include "kuafu/base/philox.h"
#include "kuafu/record/run_log.h"
#include "tests/record/support.h"

namespace kuafu {
namespace {

/// A document of a clean tree: tests may run in a dirty one.
Json clean_document(int64_t tag = 0) {
  Json document = test::sample_document(2, tag);
  document["provenance"]["git_dirty"] = false;
  return document;
}

Comparison compare_documents(const Json& a, const Json& b) {
  return compare({"A", {{"case", "", a, nullptr}}}, {"B", {{"case", "", b, nullptr}}});
}

Comparison changed(const std::function<void(Json&)>& change) {
  Json b = clean_document();
  change(b);
  return compare_documents(clean_document(), b);
}

TEST(Compare, FindsNoRegressionInTheSameResults) {
  Json document = clean_document();
  document["step_time_s"]["ci95"] = {0.0099, 0.0101};
  document["step_time_s"]["median"] = 0.01;
  const Comparison same = compare_documents(document, document);
  EXPECT_EQ(same.num_regressions(), 0);
  EXPECT_EQ(same.cases[0].timing, Timing::kSame);
  EXPECT_EQ(same.notes.size(), 1U);  // what the interval leaves out
}

TEST(Compare, ReadsNoRecordWithADamagedLineInTheMiddle) {
  const test::TemporaryFolder folder;
  {
    RunLog log(folder.path());
    log.begin(test::sample_header(2));
    for (const char* id : {"a", "b"}) log.append(test::sample_case(id, clean_document()));
  }
  const std::string whole = test::read_text(folder / "run.jsonl");
  test::write_text(folder / "run.jsonl",
                   whole.substr(0, whole.size() - 100));  // killed: unfinished
  EXPECT_EQ(load_results(folder.path()).cases.size(), 1U);
  std::string bad = whole;
  bad[whole.find('\n') + 1] = 'x';
  test::write_text(folder / "run.jsonl", bad);
  EXPECT_THROW(load_results(folder.path()), ConfigError);
}

TEST(Compare, ReadsTheTimeOfAllRounds) {
  const test::TemporaryFolder folder;
  for (const double factor : {1.0, 1.5}) {
    const std::string at = folder / text(factor);
    std::filesystem::create_directories(at);
    RunLog log(at);
    Json line = test::sample_case("a", clean_document());
    const double median = 0.02 * factor;
    line["timing"] = {
        {"rounds", 3},
        {"step_time_s", {{"median", median}, {"ci95", {0.98 * median, median / 0.98}}}},
        {"tokens_per_s", 256 / median}};
    log.begin(test::sample_header(1));
    log.append(line);
  }
  const Comparison c = compare(load_results(folder / "1"), load_results(folder / "1.5"));
  EXPECT_EQ(c.cases.at(0).timing, Timing::kSlower);
  EXPECT_EQ(c.cases[0].ratio, "1.50");
  EXPECT_EQ(c.cases[0].step_a, "20.0 [19.6, 20.4]");
  EXPECT_EQ(c.cases[0].rounds, 3);
  EXPECT_NE(c.notes.at(0).find("hold what the rounds of a case differ by"), std::string::npos);
}

TEST(Compare, HoldsExactMetricsAtZeroTolerance) {
  const std::vector<std::function<void(Json&)>> changes = {
      [](Json& d) { d["ledger"]["data"]["bytes_sent"][1] = 1002; },
      [](Json& d) { d["ledger"]["data"]["peers"][0] = 0; },
      [](Json& d) { d["ledger"]["data"]["calls"]["all_reduce"][0] = 6; },
      [](Json& d) { d["ledger"]["tensor"] = d["ledger"]["data"]; },
      [](Json& d) { d["memory"]["peak_bytes"][0] = 1001; },
      [](Json& d) { d["flops_per_step"] = 123456790; },
      [](Json& d) { d["plan_hash"] = "00000000000000ff"; },
      [](Json& d) { d["status"] = "failed"; },
      [](Json& d) { d["certificate"]["verdict"] = "different"; },
      [](Json& d) { d["loss"][4] = std::nextafter(d["loss"][4].get<double>(), 9.0); }};
  for (size_t i = 0; i < changes.size(); ++i) {
    const Comparison c = changed(changes[i]);
    EXPECT_EQ(c.num_regressions(), 1) << "change " << i;
    EXPECT_EQ(c.cases[0].differences.size(), 1U) << "change " << i;
  }
}

TEST(Compare, TakesPlansOfOneHashForEqualWhateverKeysWereAdded) {
  const auto with_new_key = [](Json& d) { d["plan"]["model"]["router"] = "top2"; };
  EXPECT_EQ(changed(with_new_key).num_regressions(), 0);
  const Comparison other = changed([&](Json& d) {
    with_new_key(d);
    d["plan_hash"] = "00000000000000ff";
  });
  EXPECT_EQ(other.cases[0].differences.size(), 2U);
}

TEST(Compare, NamesThePlaceThatDiffers) {
  const Comparison c = changed([](Json& d) { d["ledger"]["data"]["bytes_sent"][1] = 7; });
  EXPECT_EQ(c.cases[0].differences.at(0), "ledger.data.bytes_sent.1: 1001, then 7");
}

TEST(Compare, JudgesTimesByTheirIntervals) {
  const auto scaled = [](double factor) {
    Json a = clean_document(), b = a;
    const double median = 0.010 * factor;
    b["step_time_s"] = {
        {"median", median}, {"ci95", {0.9 * median, 1.1 * median}}, {"samples", {median}}};
    a["step_time_s"]["rounds"] = b["step_time_s"]["rounds"] = 3;
    return compare_documents(a, b);
  };
  EXPECT_EQ(scaled(1.0).cases[0].timing, Timing::kInconclusive);
  EXPECT_EQ(scaled(1.2).cases[0].timing, Timing::kInconclusive);
  EXPECT_EQ(scaled(1.2).num_regressions(), 0);
  EXPECT_EQ(scaled(1.3).cases[0].timing, Timing::kSlower);
  EXPECT_EQ(scaled(1.3).num_regressions(), 1);
  EXPECT_EQ(scaled(0.7).cases[0].timing, Timing::kFaster);
  EXPECT_EQ(scaled(0.7).num_regressions(), 0);
}

TEST(Compare, MarksTimesOfASharedMachine) {
  const Comparison c = changed([](Json& d) { d["load"]["foreign_share"] = 0.5; });
  EXPECT_EQ(c.cases[0].step_a.find('*'), std::string::npos);
  EXPECT_TRUE(c.cases[0].step_b.ends_with(" *")) << c.cases[0].step_b;
  EXPECT_NE(c.notes.at(0).find("timed under foreign load"), std::string::npos) << c.notes[0];
}

TEST(Compare, LeavesTimesOfOtherHostsAndDirtyTreesOut) {
  const auto slower = [](const char* field, const Json& value) {
    return changed([&](Json& d) {
      d["step_time_s"] = {{"median", 9.0}, {"ci95", {8.0, 10.0}}, {"samples", {9.0}}};
      d["provenance"][field] = value;
    });
  };
  for (const Comparison& c : {slower("host", "elsewhere"), slower("git_dirty", true)}) {
    EXPECT_EQ(c.cases[0].timing, Timing::kNotCompared);
    EXPECT_EQ(c.num_regressions(), 0);
    EXPECT_EQ(c.notes.size(), 1U);
  }
}

TEST(Compare, ComparesEstimatesOfAnyTreeAndMachine) {
  const auto estimate = [](double median, const char* host) {
    Json document = clean_document();
    document["world"] = "simulated";
    document["step_time_s"]["median"] = median;
    document["step_time_s"]["ci95"] = {median, median};
    document["provenance"]["git_dirty"] = true;
    document["provenance"]["host"] = host;
    return document;
  };
  const Comparison same = compare_documents(estimate(0.01, "a"), estimate(0.01, "b"));
  EXPECT_EQ(same.cases[0].timing, Timing::kSame);
  for (const std::string& note : same.notes)
    EXPECT_EQ(note.find("not compared: "), std::string::npos) << note;
  const Comparison slower = compare_documents(estimate(0.01, "a"), estimate(0.02, "b"));
  EXPECT_EQ(slower.cases[0].timing, Timing::kSlower);
}

TEST(Compare, LeavesLossesOfOtherProcessorsOut) {
  const Comparison c = changed([](Json& d) {
    d["loss"][0] = 1.0;
    d["provenance"]["cpu_model"] = "another";
  });
  EXPECT_TRUE(c.cases[0].differences.empty());
  EXPECT_NE(c.notes.at(0).find("losses not compared"), std::string::npos);
}

TEST(Compare, CountsMissingCasesAndListsNewOnes) {
  const Result x{"x", "1", clean_document(1), nullptr}, y{"y", "2", clean_document(2), nullptr},
      z{"z", "3", clean_document(3), nullptr};
  const Comparison c = compare({"A", {x, y}}, {"B", {y, z}});
  EXPECT_EQ(c.missing, std::vector<std::string>{"x"});
  EXPECT_EQ(c.added, std::vector<std::string>{"z"});
  EXPECT_EQ(c.num_regressions(), 1);
  EXPECT_THROW(compare({"A", {x}}, {"B", {z}}), ConfigError);
}

TEST(Compare, MeetsALoneDocumentInARecordByItsPlan) {
  const Comparison c = compare(
      {"A", {{"x", "1", clean_document(1), nullptr}, {"y", "2", clean_document(2), nullptr}}},
      {"B", {{"lone", "", clean_document(2), nullptr}}});
  EXPECT_EQ(c.cases.at(0).name, "y");
}

Json refuted(Json document) {
  document["certificate"] = {
      {"verdict", "different"}, {"gradient_error", 0.25}, {"tolerance", 1e-9}};
  return document;
}

TEST(Compare, TakesARefutedRunOnEitherSideForARegression) {
  const Json good = clean_document(), bad = refuted(clean_document());
  for (const auto& [a, b] : {std::pair{good, bad}, std::pair{bad, good}, std::pair{bad, bad}}) {
    const Results left{"A", {{"case", "", a, nullptr}}}, right{"B", {{"case", "", b, nullptr}}};
    const Comparison c = compare(left, right);
    EXPECT_EQ(c.num_regressions(), 1);
    EXPECT_EQ(c.cases[0].refuted.size(), (a == bad ? 1U : 0U) + (b == bad ? 1U : 0U));
    const std::string told = comparison_text(left, right, c);
    EXPECT_NE(told.find("case, in "), std::string::npos) << told;
    EXPECT_NE(told.find("its f64 twin: gradient error 0.250 of 1.00e-09"), std::string::npos)
        << told;
  }
}

TEST(Compare, TakesAWeakerProofForADifference) {
  const auto proven = [](const char* level, const char* reference) {
    Json document = clean_document();
    document["certificate"] = {{"verdict", "equal"},
                               {"level", level},
                               {"reference", reference},
                               {"native", {{"steps", {0, 1, 2}}}}};
    return document;
  };
  const auto against = [&](const Json& document) {
    const Results left{"A", {{"case", "", proven("full", "oracle"), nullptr}}};
    return compare(left, {"B", {{"case", "", document, nullptr}}}).cases.at(0);
  };
  EXPECT_EQ(against(proven("full", "oracle")).differences, std::vector<std::string>{});
  const CaseComparison weaker = against(proven("scaled", "engine"));
  EXPECT_EQ(weaker.verdicts, "equal -> equal (scaled, engine)");
  EXPECT_EQ(weaker.differences,
            (std::vector<std::string>{"certificate.level: full, then scaled",
                                      "certificate.reference: oracle, then engine"}));
  Json fewer = proven("full", "oracle");
  fewer["certificate"]["native"]["steps"] = {0, 1};
  EXPECT_EQ(against(fewer).differences.size(), 1u);
  Json blind = proven("scaled", "oracle");
  blind["certificate"]["native"]["unseen"] = "the validation loss";
  EXPECT_EQ(against(blind).verdicts, "equal -> equal (scaled, blind)");
  // A record from before the field says nothing of it.
  Json older = proven("full", "oracle");
  older["certificate"].erase("reference");
  EXPECT_EQ(against(older).differences, std::vector<std::string>{});
}

TEST(Compare, TakesARefutedNewCaseForARegression) {
  const Result x{"x", "1", clean_document(1), nullptr},
      y{"y", "2", refuted(clean_document(2)), nullptr};
  const Comparison c = compare({"A", {x}}, {"B", {x, y}});
  EXPECT_EQ(c.num_regressions(), 1);
  EXPECT_NE(c.refuted.at(0).find("y: its f64 twin: gradient error"), std::string::npos);
}

TEST(Compare, TellsWhyACertificateWasNotRun) {
  const Comparison c = changed([](Json& d) {
    d["certificate"] = {{"verdict", "not_run"}, {"reason", "no legal miniature"}};
  });
  EXPECT_EQ(c.cases[0].verdicts, "equal -> not run");
  EXPECT_EQ(c.cases[0].not_run, std::vector<std::string>{"in B: no legal miniature"});
}

/// A run on a corpus of this hash, under a LibTorch of this version.
Json on_data(const std::string& hash, const std::string& version = "2.1") {
  Json document = clean_document(1);
  document["data"] = {
      {"kind", "text"}, {"path", nullptr}, {"bytes", 100}, {"hash", hash}, {"samples", 3}};
  document["provenance"]["libraries"]["LibTorch"] = version;
  return document;
}

TEST(Compare, SaysThatCasesDoNotMeetBecauseTheCorpusDiffers) {
  const Result one{"x", "1", on_data("aaaa"), nullptr},
      other{"x", "2", on_data("bbbb", "2.2"), nullptr}, same{"y", "3", clean_document(2), nullptr};
  const Comparison c = compare({"A", {one, same}}, {"B", {other, same}});
  ASSERT_EQ(c.missing.size(), 1U);
  for (const char* said : {"x: A read a corpus of 100 bytes, hash aaaa", "hash bbbb",
                           "headers of the installed LibTorch (A 2.1, B 2.2)"}) {
    EXPECT_NE(c.missing[0].find(said), std::string::npos) << c.missing[0];
  }
  try {
    compare({"A", {one}}, {"B", {other}});
    FAIL() << "nothing in common";
  } catch (const ConfigError& error) {
    EXPECT_NE(std::string(error.what()).find("hash aaaa"), std::string::npos) << error.what();
  }
}

TEST(Compare, MeetsRecordsFromBeforeHashesByTheirPlan) {
  const Result old{"x", "1", clean_document(1), nullptr}, now{"x", "2", on_data("aaaa"), nullptr};
  const Comparison c = compare({"A", {old}}, {"B", {now}});
  ASSERT_EQ(c.cases.size(), 1U);
  EXPECT_NE(c.notes.at(0).find("A does not say which data it read"), std::string::npos);
  EXPECT_THROW(compare({"A", {{"x", "1", on_data("bbbb"), nullptr}}}, {"B", {now}}), ConfigError);
}

TEST(Compare, SaysNothingOfDataAndLossesWhereNothingWasTrained) {
  const Json refused = {{"status", "refused"}, {"reason", "no square"}};
  const Comparison c = compare_documents(refused, refused);
  for (const std::string& note : c.notes) {
    EXPECT_EQ(note.find("which data it read"), std::string::npos) << note;
    EXPECT_EQ(note.find("losses not compared"), std::string::npos) << note;
  }
}

TEST(Compare, NamesTheDataOfLoneDocuments) {
  const Comparison c = compare_documents(on_data("aaaa"), on_data("bbbb"));
  EXPECT_EQ(c.cases[0].differences, std::vector<std::string>{"data.hash: aaaa, then bbbb"});
}

/// A case of a suite: its strategy and ranks.
Result case_of(const std::string& id, const std::string& strategy, int64_t ranks,
               const Json& document = clean_document()) {
  return {strategy + text(", ", ranks, " ranks"),
          id,
          document,
          {{"strategy", strategy}, {"ranks", ranks}}};
}

TEST(Compare, PicksASubsetOfBothSides) {
  Results a{"A", {case_of("1", "ZeRO 1", 2), case_of("2", "ZeRO 3", 4), case_of("3", "1D", 4)}},
      b = a;
  b.cases.pop_back();
  pick_subset(a, b, {{"strategy", "ZeRO*"}});
  EXPECT_EQ(compare(a, b).cases.size(), 2U);
  EXPECT_EQ(compare(a, b).num_regressions(), 0);
  pick_subset(a, b, {{"ranks", "4"}});
  EXPECT_EQ(compare(a, b).cases.at(0).name, "ZeRO 3, 4 ranks");
  const auto error = [&](const Overrides& subset) {
    Results left = a, right = b;
    right.cases = {case_of("4", "2D", 4)};
    try {
      pick_subset(left, right, subset);
    } catch (const ConfigError& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  EXPECT_NE(error({{"rank", "4"}})
                .find("--subset rank=4: no case has the key \"rank\"; did you mean "
                      "\"ranks\"?"),
            std::string::npos)
      << error({{"rank", "4"}});
  EXPECT_NE(error({{"strategy", "3D"}}).find("did you mean \"2D\""), std::string::npos);
  EXPECT_NE(error({{"strategy", "2D"}}).find("A has no case of the --subset"), std::string::npos);
}

TEST(Compare, MeetsCasesByNameAndStillHoldsThemExactly) {
  CompareOptions by_name;
  by_name.by = CompareOptions::By::kName;
  const Results a{"A", {case_of("1", "1D", 2)}}, b{"B", {case_of("2", "1D", 2)}};
  EXPECT_THROW(compare(a, b), ConfigError);
  EXPECT_EQ(compare(a, b, by_name).num_regressions(), 0);
  const Results other{"B", {case_of("2", "1D", 2, clean_document(1))}};
  EXPECT_EQ(compare(a, other, by_name).num_regressions(), 1);
  const Results twice{"B", {case_of("2", "1D", 2), case_of("3", "1D", 2)}};
  try {
    compare(a, twice, by_name);
    FAIL() << "two cases of one name";
  } catch (const ConfigError& error) {
    EXPECT_NE(std::string(error.what()).find("--by name: B has two cases named \"1D, 2 ranks\""),
              std::string::npos)
        << error.what();
  }
}

TEST(Compare, FindsNothingSlowerInTheSameProgramOnAnUnsteadyMachine) {
  Results a{"A", {}}, b{"B", {}};
  for (int64_t i = 0; i < 18; ++i) {
    for (Results* side : {&a, &b}) {
      Json document = clean_document(i);
      const double median = 0.01 * (side == &a || i % 3 > 0 ? 1 : 1.15);  // a third was 15 % slower
      document["step_time_s"] = {
          {"median", median}, {"ci95", {0.99 * median, 1.01 * median}}, {"samples", {median}}};
      side->cases.push_back(case_of(text(i), text("strategy ", i), 2, document));
    }
  }
  const Comparison c = compare(a, b);
  EXPECT_EQ(c.num_regressions(), 0);
  EXPECT_NE(comparison_text(a, b, c).find("no regression; step times: 18 inconclusive"),
            std::string::npos)
      << comparison_text(a, b, c);
}

/// A case whose process of each round differs from the next by `scatter`, with narrow intervals within.
Result unsteady_case(double scatter, int64_t rounds, const CounterRandom& random, uint64_t draw) {
  static const Json kDocument = clean_document();
  Json line = {{"document", kDocument}};
  for (int64_t r = 1; r <= rounds; ++r) {
    const auto at = draw * 100 + static_cast<uint64_t>(r) * 2;
    const double error = 0.01;
    const double median = std::exp(scatter * random.normal(at) + error * random.normal(at + 1));
    line["rounds"].push_back(
        {{"status", "ok"},
         {"step_time_s",
          {{"median", median},
           {"ci95",
            {median * std::exp(-kNormal95 * error), median * std::exp(kNormal95 * error)}}}}});
  }
  line["timing"] = timing_of(line["rounds"]);
  return {"case", "", timed_document(line), nullptr};
}

/// In how many of 300 comparisons of 8 cases some case of the same program is slower or faster.
int num_false_verdicts(double scatter, int64_t rounds_a, int64_t rounds_b) {
  const CounterRandom random(7, hash_name("other rounds"));
  int found = 0;
  for (uint64_t i = 0; i < 300; ++i) {
    Results a{"A", {}}, b{"B", {}};
    for (uint64_t c = 0; c < 8; ++c) {
      const uint64_t draw = (i * 8 + c) * 2;
      for (auto [side, rounds, own] : {std::tuple{&a, rounds_a, draw}, {&b, rounds_b, draw + 1}}) {
        side->cases.push_back(unsteady_case(scatter, rounds, random, own));
        side->cases.back().name = side->cases.back().case_id = text("case ", c);
      }
    }
    const Comparison both = compare(a, b);
    found += std::any_of(both.cases.begin(), both.cases.end(), [](const CaseComparison& c) {
      return c.timing == Timing::kSlower || c.timing == Timing::kFaster;
    });
  }
  return found;
}

TEST(Compare, FindsNothingSlowerInTheSameProgramOfOtherRounds) {
  for (const double scatter : {0.10, 0.15}) {
    for (const auto& [fewer, more] : {std::pair{1, 2}, {2, 3}, {1, 1}, {3, 3}}) {
      EXPECT_LE(num_false_verdicts(scatter, fewer, more), 18)
          << scatter << ", " << fewer << ":" << more;
      EXPECT_LE(num_false_verdicts(scatter, more, fewer), 18)
          << scatter << ", " << more << ":" << fewer;
    }
  }
}

TEST(Compare, SaysThatSidesRanWithTwoBuildsOfAPlugIn) {
  const auto side = [](const char* hash) {
    return Results{"side", {{"case", "a", clean_document(), Json(), Json{{"libmine.so", hash}}}}};
  };
  EXPECT_EQ(compare(side("1"), side("1")).notes.size() + 1,
            compare(side("1"), side("2")).notes.size());
  RunRecord record;
  for (const char* hash : {"1", "2", "2"}) {
    Json line = test::sample_case(text("case ", record.cases.size()), clean_document());
    line["plugins"] = {{"libmine.so", hash}};
    record.cases.push_back(line);
    const std::vector<std::string> notes = notes_of_builds(record);
    EXPECT_EQ(notes.size(), record.cases.size() == 1 ? 0U : 1U);
    if (record.cases.size() < 3) continue;
    EXPECT_NE(notes[0].find("2 builds of the plug-in libmine.so"), std::string::npos) << notes[0];
    EXPECT_NE(notes[0].find("2: 2 cases, "), std::string::npos) << notes[0];
  }
}

TEST(LoadResults, ReadsFoldersRecordsAndDocuments) {
  const test::TemporaryFolder folder;
  {
    RunLog log(folder.path());
    log.begin(test::sample_header(1));
    log.append(test::sample_case("a", clean_document()));
  }
  test::write_text(folder / "one.json", clean_document().dump());
  EXPECT_EQ(load_results(folder.path()).cases.at(0).case_id, "a");
  EXPECT_EQ(load_results(folder / "run.jsonl").cases.at(0).name, "case a");
  EXPECT_EQ(load_results(folder / "one.json").cases.at(0).name, "one.json");
}

TEST(LoadResults, SaysWhatIsWrongWithAFile) {
  const test::TemporaryFolder folder;
  test::write_text(folder / "bad.json", "{");
  test::write_text(folder / "other.json", "{\"status\": 3}");
  for (const char* name : {"bad.json", "other.json", "missing.json"}) {
    try {
      load_results(folder / name);
      FAIL() << name;
    } catch (const ConfigError& error) {
      EXPECT_NE(std::string(error.what()).find(name), std::string::npos) << error.what();
    }
  }
}

}  // namespace
}  // namespace kuafu
