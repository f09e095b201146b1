// SPDX-License-Identifier: Apache-2.0
//
// `kuafu matrix` that is killed in the middle and called again: what was done is not done twice, and
// the record is that of a call without a kill.

#include <gtest/gtest.h>

#include <signal.h>

#include <algorithm>
#include <set>

#include "tests/app_worker/process.h"

namespace kuafu {
namespace {

using tests::Arguments;
using tests::lines_of;

class KilledMatrix : public testing::Test {
 protected:
  /// A dozen combinations.
  Arguments command(const std::string& out) const {
    return {tests::built("bin/kuafu"),
            "matrix",
            "--filter",
            "overlap=false",
            "--filter",
            "world=threads",
            "--share",
            "0.001",
            "--triples",
            "0",
            "--out",
            folder_.path(out)};
  }
  std::vector<std::string> done() const {
    return lines_of(folder_.path("killed/.matrix/done.jsonl"));
  }
  /// Kills a call once `count` plans are done there.
  void kill_after(size_t count) {
    tests::Child child(command("killed"));
    ASSERT_TRUE(tests::eventually([&] { return done().size() >= count; }, std::chrono::seconds(60)))
        << child.output();
    ::kill(child.pid(), SIGKILL);
    EXPECT_EQ(child.wait().code, -SIGKILL);
  }
  /// compatibility.json without what tells of the call.
  Json record(const std::string& out) const {
    Json all = Json::parse(tests::content_of(folder_.path(out + "/compatibility.json")));
    all.erase("provenance");
    return all;
  }

  tests::Folder folder_;
};

TEST_F(KilledMatrix, GoesOnToTheRecordOfOneThatWasNot) {
  kill_after(2);
  const std::vector<std::string> first = done();
  kill_after(first.size() + 2);
  const std::vector<std::string> second = done();
  std::set<std::string> cases;
  for (size_t i = 0; i < second.size(); ++i) {
    const Json row = Json::parse(second[i], nullptr, false);
    if (row.is_discarded()) continue;  // the last before a kill may be cut off
    EXPECT_TRUE(cases.insert(row["case"]).second) << "done twice: " << second[i];
    if (i + 1 >= first.size()) continue;
    EXPECT_EQ(second[i], first[i]);
  }
  const tests::Ended ended = tests::Child(command("killed")).wait();
  EXPECT_EQ(ended.code, 0) << ended.output;
  ASSERT_EQ(tests::Child(command("whole")).wait().code, 0);
  const Json whole = record("whole");
  EXPECT_EQ(record("killed"), whole);
  // However small the share, every dimension is met: its default is the first value.
  for (const auto& [dimension, values] : whole["dimensions"].items()) {
    const auto& all = whole["cases"];
    EXPECT_TRUE(dimension == "world" || std::any_of(all.begin(), all.end(),
                                                    [&](const Json& one) {
                                                      return one["values"].value(
                                                                 dimension, values[0]) != values[0];
                                                    }))
        << dimension;
  }
  EXPECT_GT(whole["cases"].size(), second.size());
  for (const Json& one : whole["cases"]) EXPECT_NE(one["status"], "different") << one.dump();
  const std::string page = tests::content_of(folder_.path("whole/compatibility.md"));
  EXPECT_NE(page.find("**A part of all combinations**, by"), std::string::npos) << page;
  for (const char* word : {"--share 0.001", "--filter overlap=false", "--filter world=threads"})
    EXPECT_NE(page.find(word), std::string::npos) << word << " in " << page.substr(0, 2000);
}

TEST_F(KilledMatrix, LetsOneCallIntoAFolder) {
  tests::Child first(command("killed"));
  ASSERT_TRUE(tests::eventually([&] { return !done().empty(); }, std::chrono::seconds(60)))
      << first.output();
  ::kill(-first.pid(), SIGSTOP);  // it would be done before the other gives up
  const tests::Ended second = tests::Child(command("killed")).wait();
  EXPECT_EQ(second.code, 2) << second.output;
  EXPECT_NE(second.output.find("another runner"), std::string::npos) << second.output;
}

}  // namespace
}  // namespace kuafu
