// SPDX-License-Identifier: Apache-2.0
//
// What `kuafu new` writes is configured and built out of tree, against this build folder and against an
// installed Kuafu, passes conformance and trains its example plan, certified.

#include <gtest/gtest.h>

#include "kuafu/base/errors.h"
#include "tests/app_worker/process.h"

namespace kuafu {
namespace {

using tests::Arguments;
using tests::built;
using tests::Ended;

void expect_done(const Arguments& command) {
  const Ended ended = tests::Child(command).wait(std::chrono::seconds(600));
  EXPECT_EQ(ended.code, 0) << command[0] << " " << command[1] << ": " << ended.output;
}

/// The four commands of its README, and its own test.
void expect_works(const std::string& kuafu, const char* kind, const std::string& folder) {
  const std::string build = folder + "/build";
  expect_done({kuafu, "new", kind, "own_choice", "--out", folder});
  expect_done({"cmake", "-S", folder, "-B", build});
  expect_done({"cmake", "--build", build});
  expect_done({"ctest", "--test-dir", build, "--output-on-failure"});
}

class NewProject : public testing::TestWithParam<const char*> {};

TEST_P(NewProject, BuildsOutOfTreeAndPassesConformance) {
  const tests::Folder folder;
  expect_works(built("bin/kuafu"), GetParam(), folder.path("project"));
}

INSTANTIATE_TEST_SUITE_P(Kinds, NewProject,
                         testing::Values("scheme", "sequence", "model", "schedule", "optimizer"),
                         [](const auto& info) { return std::string(info.param); });

TEST(NewProject, BuildsAgainstAnInstalledKuafu) {
  const tests::Folder folder;
  expect_done({"cmake", "--install", built(""), "--prefix", folder.path("prefix")});
  expect_works(folder.path("prefix/bin/kuafu"), "schedule", folder.path("project"));
}

// Names that are also those of types of the library, or of the templates.
TEST(NewProject, BuildsUnderAnyName) {
  const tests::Folder folder;
  struct Case {
    const char *kind, *name;
  };
  for (const Case& c : {Case{"scheme", "tensor"}, Case{"model", "model"}, Case{"sequence", "block"},
                        Case{"schedule", "int"}, Case{"optimizer", "rule"}}) {
    const std::string project = folder.path(c.name);
    expect_done({built("bin/kuafu"), "new", c.kind, c.name, "--out", project});
    expect_done({"cmake", "-S", project, "-B", project + "/build"});
    expect_done({"cmake", "--build", project + "/build"});
    expect_done(
        {built("bin/kuafu"), "list", "--plugin", text(project, "/build/lib", c.name, ".so")});
  }
}

}  // namespace
}  // namespace kuafu
