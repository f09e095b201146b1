// SPDX-License-Identifier: Apache-2.0
//
// `kuafu new`: what it writes, and what it refuses.

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <utility>

#include "kuafu/base/config.h"
#include "tests/app/process.h"
#include "tests/record/support.h"
#include "tests/support/expect_has.h"

namespace kuafu {
namespace {

using test::expect_has;
using test::front;
using test::Output;
using test::TemporaryFolder;

TEST(New, WritesAProjectOfEveryKindUnderItsName) {
  const TemporaryFolder folder;
  for (const char* kind : {"scheme", "sequence", "model", "schedule", "optimizer", "policy"}) {
    const std::filesystem::path out = folder / kind;
    const Output output = front({"new", kind, "late_bird", "--out", out.string()});
    ASSERT_EQ(output.code, 0) << output.err;
    for (const char* line :
         {"cmake -B build", "cmake --build build", "conformance ", "run plan.toml --certify"}) {
      expect_has(output.out, line);
    }
    for (const char* file : {"CMakeLists.txt", "README.md", "late_bird.cpp", "plan.toml"}) {
      const std::string text = read_file((out / file).string(), "file");
      expect_has(text, "late_bird");
      for (const char* word : {"my_plugin", "my_scheme", "my_sequence", "my_model", "my_schedule",
                               "my_optimizer", "my_policy", "@"}) {
        EXPECT_EQ(text.find(word), std::string::npos) << word << " in " << kind << "/" << file;
      }
    }
    expect_has(read_file((out / "CMakeLists.txt").string(), "file"),
               "find_package(Kuafu REQUIRED HINTS");
    expect_has(read_file((out / "CMakeLists.txt").string(), "file"), "kuafu_plugin(late_bird");
  }
  expect_has(read_file(folder / "model/late_bird.cpp", "file"), "class LateBirdModel ");
  expect_has(read_file(folder / "policy/README.md", "file"),
             "everything that memory policies promise");
}

// Without a precompiled header, and whatever a header of Kuafu happens to include.
TEST(New, TemplatesIncludeWhatTheyUse) {
  const TemporaryFolder folder;
  for (const char* kind : {"scheme", "sequence", "model", "schedule", "optimizer", "policy"}) {
    const std::filesystem::path out = folder / kind;
    ASSERT_EQ(front({"new", kind, "mine", "--out", out.string()}).code, 0);
    const std::string code = read_file((out / "mine.cpp").string(), "file");
    for (const auto& [word, header] : {std::pair{"Tensor ", "<ATen/ATen.h>"},
                                       {"std::make_unique", "<memory>"},
                                       {"std::min", "<algorithm>"},
                                       {"std::move", "<utility>"},
                                       {"std::string", "<string>"},
                                       {"std::vector", "<vector>"}}) {
      if (code.find(word) == std::string::npos) continue;
      EXPECT_NE(code.find(header), std::string::npos) << word << " in " << kind;
    }
  }
}

TEST(New, ReplacesNamesOnce) {
  const TemporaryFolder folder;
  ASSERT_EQ(front({"new", "scheme", "my_scheme_2", "--out", folder / "x"}).code, 0);
  const std::string text = read_file(folder / "x/my_scheme_2.cpp", "file");
  expect_has(text, "\"my_scheme_2\"");
  EXPECT_EQ(text.find("my_scheme_2_2"), std::string::npos);
}

TEST(New, TakesTheNamesThatPluginsMayHave) {
  const TemporaryFolder folder;
  ASSERT_EQ(front({"new", "model", "Late-bird_2", "--out", folder / "x"}).code, 0);
  expect_has(read_file(folder / "x/Late-bird_2.cpp", "file"), "class LateBird2Model ");
  expect_has(read_file(folder / "x/CMakeLists.txt", "file"), "kuafu_plugin(Late-bird_2 ");
}

TEST(New, RefusesWhatItCannotWrite) {
  const TemporaryFolder folder;
  struct Case {
    std::vector<std::string> arguments, words;
  };
  for (const Case& c :
       {Case{{"bogus", "x"}, {"\"bogus\"", "scheme, sequence, model, schedule, optimizer, policy"}},
        Case{{"shceme", "x"}, {"did you mean \"scheme\""}},
        Case{{"scheme", "2.5d"},
             {"tensor-parallel scheme \"2.5d\" already", "nearest: \"my_2_5d\""}},
        Case{{"sequence", "ring"}, {"sequence mode \"ring\" already", "\"my_ring\""}},
        Case{{"model", "gpt"}, {"model \"gpt\" already", "bert"}},
        Case{{"optimizer", "lamb"}, {"an optimizer \"lamb\" already", "adamw", "\"my_lamb\""}},
        Case{{"policy", "lru"}, {"a memory policy \"lru\" already", "optimal", "\"my_lru\""}},
        Case{{"policy", "plain"}, {"memory policy \"plain\" already", "lru", "\"my_plain\""}},
        Case{{"optimzer", "x"}, {"did you mean \"optimizer\""}},
        Case{{"schedule", "1f1b"}, {"pipeline schedule \"1f1b\" already", "zbv"}},
        Case{{"scheme", "Two Rings"},
             {"a tensor-parallel scheme \"Two Rings\"", "is no name", "nearest: \"Two_Rings\""}},
        Case{{"scheme", ""}, {"is no name"}}, Case{{"scheme", "../up"}, {"is no name"}},
        Case{{"scheme", "1d-mine"}, {"begins with a digit", "nearest: \"my-1d-mine\""}},
        Case{{"optimizer", std::string(65, 'x')}, {"is no name", "at most 64"}},
        Case{{"scheme", "install"}, {"\"install\" is a word of the build's own", "\"my_install\""}},
        Case{{"scheme"}, {"name", "required"}},
        Case{{"scheme", "x", "--uot", "y"}, {"--uot", "--out"}}}) {
    std::vector<std::string> words = {"new"};
    words.insert(words.end(), c.arguments.begin(), c.arguments.end());
    const Output output = front(words);
    EXPECT_EQ(output.code, 2) << output.out;
    for (const std::string& word : c.words) expect_has(output.err, word);
  }
  const std::string there = folder / "there";
  std::filesystem::create_directory(there);
  const Output output = front({"new", "scheme", "x", "--out", there});
  EXPECT_EQ(output.code, 2);
  expect_has(output.err, there + " is there already");
  EXPECT_TRUE(std::filesystem::is_empty(there));
}

TEST(New, WritesAllOrNothing) {
  const TemporaryFolder folder;
  const std::string out = folder / "mine";
  const std::string call = test::built("kuafu") + " new scheme x --out " + out;
  const Output full = test::Process({"bash", "-c", "ulimit -f 1; exec " + call}).wait();  // KiB
  EXPECT_EQ(full.code, 7);
  expect_has(full.err, "kuafu: cannot write " + out + "/");
  EXPECT_TRUE(test::names_in(folder.path()).empty()) << test::names_in(folder.path()).front();
  const std::string deep = test::built("kuafu") + " new scheme x --out " + (folder / "a/b/c");
  EXPECT_EQ(test::Process({"bash", "-c", "ulimit -f 1; exec " + deep}).wait().code, 7);
  EXPECT_TRUE(test::names_in(folder.path()).empty()) << test::names_in(folder.path()).front();
  EXPECT_EQ(front({"new", "scheme", "x", "--out", out + "/"}).code, 0);
  EXPECT_EQ(test::names_in(folder.path()), std::vector<std::string>{"mine"});
}

}  // namespace
}  // namespace kuafu
