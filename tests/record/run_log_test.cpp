// SPDX-License-Identifier: Apache-2.0
#include "kuafu/record/run_log.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>

#include "kuafu/base/errors.h"
#include "tests/record/support.h"

namespace kuafu {
namespace {

using test::sample_case;
using test::sample_document;
using test::sample_header;
using test::TemporaryFolder;

std::string message_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

/// A record of `cases` lines, closed.
void write_record(const std::string& folder, int cases) {
  RunLog log(folder);
  log.begin(sample_header(cases));
  for (int i = 0; i < cases; ++i) log.append(sample_case(text("c", i), sample_document(2, i)));
}

TEST(RunLog, ReadsBackWhatWasWritten) {
  const TemporaryFolder folder;
  write_record(folder.path(), 3);
  const RunRecord record = read_run(folder / kRunFile);
  EXPECT_EQ(record.header, sample_header(3));
  ASSERT_EQ(record.cases.size(), 3U);
  EXPECT_EQ(record.cases[2], sample_case("c2", sample_document(2, 2)));
  EXPECT_TRUE(record.damaged.empty());
}

TEST(RunLog, ReopensForMoreLines) {
  const TemporaryFolder folder;
  write_record(folder.path(), 2);
  {
    RunLog log(folder.path());
    EXPECT_TRUE(log.notes().empty());
    log.append(sample_case("c2", sample_document(1, 2)));
  }
  EXPECT_EQ(read_run(folder / kRunFile).cases.size(), 3U);
}

TEST(RunLog, RemovesWhatAKillLeftOfAReplacement) {
  const TemporaryFolder folder;
  write_record(folder.path(), 2);
  test::write_text(folder / "run.jsonl.123.new", "half a record");
  test::write_text(folder / "notes.new", "somebody's own");
  RunLog log(folder.path());
  EXPECT_EQ(test::names_in(folder.path()), (std::vector<std::string>{"notes.new", kRunFile}));
}

TEST(RunLog, RecoversFromACutAtEveryByteOfTheLastLine) {
  const TemporaryFolder folder;
  write_record(folder.path(), 2);
  const std::string whole = test::read_text(folder / kRunFile);
  const size_t begin = whole.rfind('\n', whole.size() - 2) + 1;  // of the last line
  for (size_t cut = begin + 1; cut < whole.size(); cut += 13) {
    std::filesystem::remove(folder / "run.jsonl.damaged");
    test::write_text(folder / kRunFile, whole.substr(0, cut));
    {
      RunLog log(folder.path());
      ASSERT_EQ(log.record().cases.size(), 1U) << "cut at byte " << cut;
      ASSERT_EQ(log.notes().size(), 1U);
      EXPECT_NE(log.notes()[0].find("run.jsonl.damaged"), std::string::npos);
      log.append(sample_case("c1", sample_document(2, 1)));
    }
    EXPECT_EQ(test::read_text(folder / kRunFile), whole);
    EXPECT_EQ(test::read_text(folder / "run.jsonl.damaged"),
              whole.substr(begin, cut - begin) + "\n");
  }
}

TEST(RunLog, StartsAgainWhereTheFirstLineWasCut) {
  const TemporaryFolder folder;
  test::write_text(folder / kRunFile, R"({"kind": "suite", "na)");
  RunLog log(folder.path());
  EXPECT_TRUE(log.record().header.is_null());
  EXPECT_NO_THROW(log.begin(sample_header(1)));
}

TEST(RunLog, KeepsWholeLinesBehindADamagedOne) {
  const TemporaryFolder folder;
  write_record(folder.path(), 2);
  std::string bytes = test::read_text(folder / kRunFile);
  const size_t second = bytes.find('\n') + 1;
  bytes.replace(second, 5, 5, '\0');  // what a power cut leaves of a page
  test::write_text(folder / kRunFile, bytes);
  const RunLog log(folder.path());
  ASSERT_EQ(log.record().cases.size(), 1U);
  EXPECT_EQ(log.record().cases[0]["case_id"], "c1");
}

TEST(RunLog, NamesLineAndProblemOfAWrongLine) {
  const TemporaryFolder folder;
  write_record(folder.path(), 1);
  Json wrong = sample_case("c1", sample_document(2, 1));
  wrong["document"]["memory"]["peak_bytes"] = {1};
  test::write_text(folder / kRunFile, test::read_text(folder / kRunFile) + sealed(wrong) + "\n");
  const std::string message = message_of([&] { RunLog log(folder.path()); });
  EXPECT_NE(message.find("run.jsonl:3:"), std::string::npos) << message;
  EXPECT_NE(message.find("memory.peak_bytes"), std::string::npos) << message;
}

TEST(RunLog, NamesTheLineWhoseChecksumIsWrong) {
  const TemporaryFolder folder;
  write_record(folder.path(), 3);
  const std::string whole = test::read_text(folder / kRunFile);
  const size_t third = whole.find('\n', whole.find('\n') + 1) + 1;
  const size_t digit = whole.find("1.5", third);  // of wall_s: the line stays whole JSON
  std::string bad = whole;
  bad[digit] = '7';
  test::write_text(folder / kRunFile, bad);
  for (const auto& read : {std::function<void()>([&] { read_run(folder / kRunFile); }),
                           std::function<void()>([&] { RunLog log(folder.path()); })}) {
    const std::string message = message_of(read);
    EXPECT_NE(message.find("run.jsonl:3:"), std::string::npos) << message;
    EXPECT_NE(message.find("checksum"), std::string::npos) << message;
  }
  EXPECT_EQ(test::read_text(folder / kRunFile), bad) << "the record was changed";
}

TEST(RunLog, KeepsWhatIsNoUtf8AsItIsReadBack) {
  const TemporaryFolder folder;
  RunLog log(folder.path());
  log.begin(sample_header(1));
  log.append(sample_case("c0", {{"status", "failed"}, {"reason", "stopped at \xff\xc3"}}));
  const RunRecord read = read_run(folder / kRunFile);
  ASSERT_EQ(read.cases.size(), 1U);
  EXPECT_EQ(read.cases[0]["document"]["reason"], "stopped at \xef\xbf\xbd\xef\xbf\xbd");
  EXPECT_EQ(log.record().cases[0], read.cases[0]);
}

TEST(RunLog, QuotesNoHalfCharacters) {
  const TemporaryFolder folder;
  write_record(folder.path(), 1);
  Json wrong = sample_case("c1", sample_document(2, 1));
  std::string name(36, 'x');
  for (int i = 0; i < 20; ++i) name += "\xc3\xa4";
  wrong["wall_s"] = name;
  test::write_text(folder / kRunFile, test::read_text(folder / kRunFile) + sealed(wrong) + "\n");
  const std::string message = message_of([&] { read_run(folder / kRunFile); });
  EXPECT_NE(message.find("wall_s"), std::string::npos) << message;
  EXPECT_NO_THROW(Json(message).dump()) << "the message is no UTF-8";
}

TEST(RunLog, ReadsRecordsFromBeforeChecksums) {
  const TemporaryFolder folder;
  Json header = sample_header(2);
  header["format"] = 1;
  const Json one = sample_case("c0", sample_document(2, 0));
  test::write_text(folder / kRunFile, header.dump() + "\n" + one.dump() + "\n");
  {
    RunLog log(folder.path());
    EXPECT_EQ(log.record().cases, std::vector<Json>{one});
    log.append(sample_case("c1", sample_document(2, 1)));
  }
  EXPECT_EQ(read_run(folder / kRunFile).cases.size(), 2U);
  std::string bytes = test::read_text(folder / kRunFile);
  bytes[bytes.rfind("1.5")] = '7';
  test::write_text(folder / kRunFile, bytes);
  EXPECT_NE(message_of([&] { read_run(folder / kRunFile); }).find("run.jsonl:3:"),
            std::string::npos);
}

TEST(RunLog, NewRecordsNeedAChecksumOnEveryLine) {
  const TemporaryFolder folder;
  write_record(folder.path(), 1);
  const Json bare = sample_case("c1", sample_document(2, 1));
  test::write_text(folder / kRunFile, test::read_text(folder / kRunFile) + bare.dump() + "\n");
  const std::string message = message_of([&] { read_run(folder / kRunFile); });
  EXPECT_NE(message.find("run.jsonl:3:"), std::string::npos) << message;
  EXPECT_NE(message.find("no checksum"), std::string::npos) << message;
}

TEST(RunLog, RefusesTheFormatOfAnotherVersion) {
  const TemporaryFolder folder;
  Json header = sample_header(1);
  header["format"] = 99;
  test::write_text(folder / kRunFile, header.dump() + "\n");
  const std::string message = message_of([&] { RunLog log(folder.path()); });
  EXPECT_NE(message.find("format 99"), std::string::npos) << message;
}

TEST(RunLog, LosesNothingWhenTheDiskFillsInTheMiddleOfALine) {
  const TemporaryFolder folder;
  write_record(folder.path(), 2);
  const std::string before = test::read_text(folder / kRunFile);
  {
    RunLog log(folder.path());
    const test::FileSizeLimit full(before.size() + 100);
    const std::string message =
        message_of([&] { log.append(sample_case("c2", sample_document(2, 2))); });
    EXPECT_NE(message.find("File too large"), std::string::npos) << message;
    EXPECT_NE(message.find("2 finished cases are safe"), std::string::npos) << message;
    EXPECT_EQ(log.record().cases.size(), 2U);
  }
  EXPECT_EQ(test::read_text(folder / kRunFile), before);
}

TEST(RunLog, PutsALineInThePlaceOfTheOldOneAndGoesOn) {
  const TemporaryFolder folder;
  RunLog log(folder.path());
  log.begin(sample_header(3));
  for (const char* id : {"a", "b"}) log.append(sample_case(id, sample_document(2, 0)));
  const Json next = sample_case("a", sample_document(2, 1));
  log.replace(next);
  log.append(sample_case("c", sample_document(2, 2)));
  const RunRecord read = read_run(folder / kRunFile);
  ASSERT_EQ(read.cases.size(), 3U);
  EXPECT_EQ(read.cases[0], next);
  EXPECT_EQ(read.cases[2]["case_id"], "c");
  EXPECT_EQ(log.record().cases, read.cases);
}

TEST(RunLog, KeepsFormerCasesApart) {
  const TemporaryFolder folder;
  RunLog log(folder.path());
  log.begin(sample_header(2));
  for (const char* id : {"a", "b"}) log.append(sample_case(id, sample_document(2, 0)));
  RunRecord next = log.record();
  next.former = {next.cases[0]};
  next.former[0]["kind"] = "former";
  next.cases.erase(next.cases.begin());
  log.rewrite(next);
  for (const RunRecord& read : {read_run(folder / kRunFile), log.record()}) {
    EXPECT_EQ(read.cases, next.cases);
    EXPECT_EQ(read.former, next.former);
  }
}

TEST(RunLog, KeepsTheOldLinesWhereTheNewDoNotFit) {
  const TemporaryFolder folder;
  RunLog log(folder.path());
  log.begin(sample_header(1));
  log.append(sample_case("a", sample_document(2, 0)));
  const std::string before = test::read_text(folder / kRunFile);
  {
    const test::FileSizeLimit full(before.size() / 2);
    EXPECT_THROW(log.replace(sample_case("a", sample_document(2, 1))), ConfigError);
  }
  EXPECT_EQ(test::read_text(folder / kRunFile), before);
  log.append(sample_case("b", sample_document(2, 2)));
  EXPECT_EQ(read_run(folder / kRunFile).cases.size(), 2U);
}

TEST(RunLog, SaysThatTheDeviceIsFull) {
  const TemporaryFolder folder;
  std::filesystem::create_symlink("/dev/full", folder / kRunFile);
  const File file(::open((folder / kRunFile).c_str(), O_WRONLY));
  const std::string message = message_of([&] { write_all(file, "line\n", folder / kRunFile); });
  EXPECT_NE(message.find("No space left on device"), std::string::npos) << message;
}

TEST(Folder, SaysWhyItCannotBeWritten) {
  const TemporaryFolder folder;
  test::write_text(folder / "file", "in the way");
  const std::string in_the_way = message_of([&] { make_writable_folder(folder / "file"); });
  EXPECT_NE(in_the_way.find("Not a directory"), std::string::npos) << in_the_way;
  const std::string read_only = message_of([&] { make_writable_folder("/proc/kuafu/results"); });
  EXPECT_NE(read_only.find("/proc/kuafu/results"), std::string::npos) << read_only;
  EXPECT_NE(read_only.find("--out"), std::string::npos) << read_only;
  EXPECT_NE(message_of([&] { make_writable_folder("/proc/self"); }), "");
}

TEST(ReplaceFile, RemovesWhatKilledWritersLeftAndNothingElse) {
  const test::TemporaryFolder folder;
  const auto old = std::filesystem::file_time_type::clock::now() - std::chrono::hours(1);
  for (const char* name : {"a.123.new", "a.old.new", "b.123.new", "a.new"}) {
    std::ofstream(folder / name) << "half";
    std::filesystem::last_write_time(folder / name, old);
  }
  std::ofstream(folder / "a.7.new") << "being made";
  replace_file(folder / "a", "whole");
  EXPECT_EQ(test::names_in(folder.path()),
            (std::vector<std::string>{"a", "a.7.new", "a.new", "a.old.new", "b.123.new"}));
}

TEST(ReplaceFile, LeavesTheOldContentWhereTheNewDoesNotFit) {
  const TemporaryFolder folder;
  replace_file(folder / "a", "old");
  {
    const test::FileSizeLimit full(10);
    EXPECT_THROW(replace_file(folder / "a", std::string(100, 'x')), Unwritten);
  }
  try {
    replace_file(folder / "no/a", "new");
  } catch (const Unwritten&) {
    ADD_FAILURE() << "another path would do";
  } catch (const ConfigError&) {
  }
  EXPECT_EQ(test::read_text(folder / "a"), "old");
  EXPECT_EQ(test::names_in(folder.path()), std::vector<std::string>{"a"});
}

}  // namespace
}  // namespace kuafu
