// SPDX-License-Identifier: Apache-2.0
#include "kuafu/experiment/merge.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <functional>

#include "kuafu/base/errors.h"
#include "tests/record/support.h"
#include "tests/support/expect_has.h"

namespace kuafu {
namespace {

using test::expect_has;
using test::TemporaryFolder;

/// A line that ended at this time; another `tag` is another result.
Json line_of(const std::string& id, const std::string& time, int64_t tag = 0) {
  Json line = test::sample_case(id, test::sample_document(2, tag));
  line["time"] = time;
  return line;
}

Json failed(const std::string& id, const std::string& time) {
  Json line = test::sample_case(id, {{"status", "failed"}, {"reason", "killed"}});
  if (!time.empty()) line["time"] = time;
  return line;
}

MergeInput input_of(const std::string& folder, const std::vector<Json>& cases,
                    const std::string& hash = "1111111111111111") {
  Json header = test::sample_header(static_cast<int64_t>(cases.size()));
  header["suite_hash"] = hash;
  return {folder, {header, cases, {}, {}, false}};
}

std::string merge_error(const std::function<void()>& act) {
  try {
    act();
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no error";
}

const std::string kEarly = "2026-01-01T00:00:00Z", kLate = "2026-01-02T00:00:00Z";

TEST(Merge, KeepsPartsOfOneSuiteThatSuite) {
  const Json a = line_of("a", kEarly), b = line_of("b", kLate);
  const Merged all = merged({input_of("A", {a}), input_of("B", {b})});
  EXPECT_EQ(all.record.cases, (std::vector<Json>{a, b}));
  EXPECT_EQ(all.record.header["suite_hash"], "1111111111111111");
  EXPECT_EQ(all.record.header["cases"], 1);  // of the whole suite, as its header says
  EXPECT_EQ(all.record.header["name"], test::sample_header(1)["name"]);
  EXPECT_EQ(all.origins.at("b"), "B");
  EXPECT_TRUE(all.notes.empty());
}

TEST(Merge, NamesAllSuitesOfSeveral) {
  MergeInput other = input_of("B", {line_of("b", kLate)}, "2222222222222222");
  other.record.header["name"] = "other";
  const Merged all = merged({input_of("A", {line_of("a", kEarly)}), other});
  EXPECT_EQ(all.record.header["name"],
            test::sample_header(1)["name"].get<std::string>() + " + other");
  EXPECT_EQ(all.record.header["cases"], 2);
  EXPECT_NE(all.record.header["suite_hash"], "1111111111111111");
  EXPECT_EQ(all.record.header["merged"][1], "B: other, suite 2222222222222222, cases 1");
}

TEST(Merge, SaysWhatTwoStatesOfASuiteLose) {
  MergeInput other = input_of("B", {line_of("b", kLate)}, "2222222222222222");
  EXPECT_TRUE(merged({input_of("A", {line_of("a", kEarly)}), other}).notes.empty());
  other.record.header["derived"] = {{"columns", {{{"name", "mfu"}}}}, {"claims", Json::array()}};
  const Merged all = merged({input_of("A", {line_of("a", kEarly)}), other});
  ASSERT_EQ(all.notes.size(), 1);
  EXPECT_NE(all.notes[0].find("are of 2 states of suite "), std::string::npos) << all.notes[0];
  EXPECT_NE(all.notes[0].find(": columns are left out; "), std::string::npos) << all.notes[0];
  EXPECT_FALSE(all.record.header.contains("derived"));
}

TEST(Merge, TakesTheLineOfMoreRounds) {
  const auto with_rounds = [](Json line, size_t rounds) {
    line["rounds"] = Json::array();
    for (size_t r = 1; r <= rounds; ++r) line["rounds"].push_back({{"round", r}});
    return line;
  };
  // A copy of the folder that went on, so both lines are of one time; an older one of more rounds.
  const Json once = with_rounds(line_of("a", kEarly), 1), grown = with_rounds(once, 3);
  EXPECT_EQ(merged({input_of("A", {once}), input_of("B", {grown})}).record.cases.at(0), grown);
  const Json later = with_rounds(line_of("a", kLate, 1), 1);
  EXPECT_EQ(merged({input_of("A", {grown}), input_of("B", {later})}).record.cases.at(0), grown);
}

TEST(Merge, TakesTheLineWhoseLastRoundIsTheYoungest) {
  const auto with_rounds = [](const std::string& second) {
    Json line = line_of("a", kEarly);
    line["rounds"] = {{{"round", 1}, {"began", kEarly}}, {{"round", 2}, {"began", second}}};
    return line;
  };
  const Json early = with_rounds("2026-01-01T01:00:00Z"), late = with_rounds(kLate);
  EXPECT_EQ(merged({input_of("A", {late}), input_of("B", {early})}).record.cases.at(0), late);
  EXPECT_EQ(merged({input_of("A", {early}), input_of("B", {late})}).record.cases.at(0), late);
}

TEST(Merge, TakesTheSameLineOnce) {
  const Json a = line_of("a", kEarly);
  const Merged all = merged({input_of("A", {a}), input_of("B", {a})});
  EXPECT_EQ(all.record.cases, std::vector<Json>{a});
  EXPECT_EQ(all.notes.size(), 1U);
  expect_has(all.notes.at(0), "1 line was the same");
}

TEST(Merge, TakesTheNewestOfTwoAndTheGoodOneBeforeIt) {
  const Json early = line_of("a", kEarly), late = line_of("a", kLate, 1), bad = failed("a", kLate);
  const auto first = [](const Json& x, const Json& y) {
    return merged({input_of("A", {x}), input_of("B", {y})}).record.cases.at(0);
  };
  EXPECT_EQ(first(early, late), late);
  EXPECT_EQ(first(late, early), late);
  EXPECT_EQ(first(early, bad), early);
  EXPECT_EQ(first(bad, early), early);
}

TEST(Merge, TakesACertificateBeforeANewerLineWithoutOneAndSaysWhy) {
  Json proven = line_of("a", kEarly), late = line_of("a", kLate, 1);
  proven["document"]["certificate"] = {{"verdict", "equal"}};
  late["document"]["certificate"] = {{"verdict", "not_run"}, {"reason", "cut short"}};
  for (const bool is_first : {true, false}) {
    const Merged all = is_first ? merged({input_of("A", {proven}), input_of("B", {late})})
                                : merged({input_of("B", {late}), input_of("A", {proven})});
    EXPECT_EQ(all.record.cases.at(0), proven);
    expect_has(all.notes.at(0),
               "taken from A, not from B: its certificate is equal, and the other has none");
  }
  const Merged newest =
      merged({input_of("A", {line_of("a", kEarly)}), input_of("B", {line_of("a", kLate, 1)})});
  expect_has(newest.notes.at(0), "taken from B, not from A: it is newer");
}

TEST(Merge, KeepsARefutedLineBeforeANewerEqualOne) {
  Json refuted = line_of("a", kEarly), late = line_of("a", kLate, 1);
  refuted["document"]["certificate"] = {{"verdict", "different"}};
  late["document"]["certificate"] = {{"verdict", "equal"}};
  for (const bool is_first : {true, false}) {
    const Merged all = is_first ? merged({input_of("A", {refuted}), input_of("B", {late})})
                                : merged({input_of("B", {late}), input_of("A", {refuted})});
    EXPECT_EQ(all.record.cases.at(0), refuted);
    expect_has(all.notes.at(0), "taken from A, not from B: it is refuted");
    expect_has(all.notes.at(0), "certificate.verdict");
  }
}

TEST(Merge, RefusesTwoThatNoTimeTellsApart) {
  const auto refused = [](const Json& x, const Json& y) {
    return merge_error([&] { merged({input_of("A", {x}), input_of("B", {y})}); });
  };
  expect_has(refused(line_of("a", kLate), line_of("a", kLate, 1)), "both are of " + kLate);
  const std::string untimed = refused(failed("a", ""), failed("a", kLate));
  for (const char* word : {"\"case a\" (a)", "A", "B", "not both say when"})
    expect_has(untimed, word);
  expect_has(merge_error([] { merged({input_of("A", {})}); }), "two folders or more, given 1");
}

TEST(Merge, WritesAFolderThatIsReadAgainWithTheFoldersOfItsCases) {
  const TemporaryFolder folder;
  const std::string a = folder / "a", out = folder / "out";
  std::filesystem::create_directories(a + "/cases/a");
  test::write_text(a + "/cases/a/plan.toml", "model.layers = 2\n");
  const Merged all =
      merged({input_of(a, {line_of("a", kEarly)}), input_of("B", {line_of("b", kLate)})});
  write_merged(all, out);
  EXPECT_EQ(load_record(out).cases, all.record.cases);
  EXPECT_EQ(test::read_text(out + "/cases/a/plan.toml"), "model.layers = 2\n");
  EXPECT_EQ(test::names_in(out), (std::vector<std::string>{"cases", "run.jsonl"}));
  const std::string before = test::read_text(out + "/run.jsonl");
  expect_has(merge_error([&] { write_merged(all, out); }), "holds results already");
  EXPECT_EQ(test::read_text(out + "/run.jsonl"), before);
}

TEST(Merge, KeepsFormerCasesApart) {
  Json gone = line_of("gone", kEarly), back = line_of("b", kEarly);
  gone["kind"] = back["kind"] = "former";
  MergeInput a = input_of("A", {line_of("a", kEarly)});
  a.record.former = {gone, back};
  const Merged all = merged({a, input_of("B", {line_of("b", kLate)})});
  EXPECT_EQ(all.record.cases.size(), 2U);
  EXPECT_EQ(all.record.former, std::vector<Json>{gone});
}

TEST(Merge, RefusesACorruptedRecord) {
  const TemporaryFolder folder;
  write_merged(
      merged({input_of("A", {line_of("a", kEarly)}), input_of("B", {line_of("b", kLate)})}),
      folder / "out");
  const std::string file = folder / "out/run.jsonl", whole = test::read_text(file);
  std::string changed = whole;
  changed.replace(changed.find("\"wall_s\":1.5"), 12, "\"wall_s\":1.6");
  test::write_text(file, changed);
  expect_has(merge_error([&] { load_record(folder / "out"); }),
             "run.jsonl:2: the line has the checksum");
  test::write_text(file, whole.substr(0, whole.find('\n') + 1) + "{oh\n" + whole);
  expect_has(merge_error([&] { load_record(folder / "out"); }), "second suite line");
  test::write_text(file, whole + "{oh\n");
  expect_has(merge_error([&] { load_record(folder / "out"); }), "1 line is no JSON any more");
  expect_has(merge_error([&] { load_record(folder / "none"); }), "no such file");
}

}  // namespace
}  // namespace kuafu
