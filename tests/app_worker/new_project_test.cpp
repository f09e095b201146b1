// SPDX-License-Identifier: Apache-2.0
//
// What `kuafu new` writes is configured and built out of tree, against this build folder and, of every
// kind, against an installed Kuafu, passes conformance and trains its example plan, certified.

#include <gtest/gtest.h>

#include <fstream>
#include <memory>
#include <string_view>

#include "kuafu/base/errors.h"
#include "kuafu/record/json.h"
#include "tests/app_worker/process.h"

namespace kuafu {
namespace {

using tests::Arguments;
using tests::built;
using tests::Ended;

constexpr const char* kSchedule = "schedule";

void expect_done(const Arguments& command) {
  const Ended ended = tests::Child(command).wait(std::chrono::seconds(600));
  EXPECT_EQ(ended.code, 0) << command[0] << " " << command[1] << ": " << ended.output;
}

/// The four commands of its README, and its own test: conformance, and the example plan certified.
void expect_works(const std::string& kuafu, const char* kind, const char* name,
                  const std::string& folder) {
  const std::string build = folder + "/build";
  expect_done({kuafu, "new", kind, name, "--out", folder});
  expect_done({"cmake", "-S", folder, "-B", build});
  expect_done({"cmake", "--build", build});
  expect_done({"ctest", "--test-dir", build, "--output-on-failure"});
}

TEST(NewProject, BuildsOutOfTreeAndPassesConformance) {
  const tests::Folder folder;
  expect_works(built("bin/kuafu"), "schedule", "own_choice", folder.path("project"));
}

/// Names that are also those of types of the library, or of the templates.
struct Installed {
  const char *kind, *name;
};

/// Against what `cmake --install` leaves, which is filled once.
class InstalledProject : public testing::TestWithParam<Installed> {
 protected:
  static void SetUpTestSuite() {
    folder_ = std::make_unique<tests::Folder>();
    expect_done({"cmake", "--install", built(""), "--prefix", folder_->path("prefix")});
  }
  static void TearDownTestSuite() { folder_.reset(); }

  static std::unique_ptr<tests::Folder> folder_;
};
std::unique_ptr<tests::Folder> InstalledProject::folder_;

TEST_P(InstalledProject, BuildsPassesConformanceAndTrainsOnTwoRanks) {
  const auto& [kind, name] = GetParam();
  const std::string kuafu = folder_->path("prefix/bin/kuafu"), project = folder_->path(kind),
                    json = project + "/run.json";
  expect_works(kuafu, kind, name, project);
  expect_done({kuafu, "run", project + "/plan.toml", "--certify", "--plugin",
               text(project, "/build/lib", name, ".so"), "--json", json, "--set",
               text("parallel.pipeline.size=", std::string_view(kind) == kSchedule ? 2 : 1),
               "--steps", "2"});
  std::ifstream in(json);
  const Json document = Json::parse(in);
  EXPECT_EQ(document["ranks"], 2);
  EXPECT_EQ(document["certificate"]["verdict"], "equal");
  EXPECT_EQ(document["certificate"]["native"]["verdict"], "equal");
}

INSTANTIATE_TEST_SUITE_P(Kinds, InstalledProject,
                         testing::Values(Installed{"scheme", "tensor"},
                                         Installed{"sequence", "block"},
                                         Installed{"model", "model"}, Installed{kSchedule, "int"},
                                         Installed{"optimizer", "rule"},
                                         Installed{"policy", "choose"}),
                         [](const auto& info) { return std::string(info.param.kind); });

}  // namespace
}  // namespace kuafu
