// SPDX-License-Identifier: Apache-2.0
//
// kuafu-worker conformance on schemes in and out of tree.

#include <gtest/gtest.h>

#include <fstream>
#include <set>

#include "app/worker/exit_code.h"
#include "tests/app_worker/process.h"

namespace kuafu {
namespace {

using tests::built;
using tests::Ended;

/// kuafu-worker conformance and what it wrote to --json.
struct Checked : Ended {
  Json document;
};

Checked check(const tests::Arguments& arguments) {
  const tests::Folder folder;
  const std::string file = folder.path("findings.json");
  tests::Arguments command = {built("bin/kuafu-worker"), "conformance"};
  command.insert(command.end(), arguments.begin(), arguments.end());
  command.insert(command.end(), {"--json", file});
  Checked checked{tests::Child(command).wait(), {}};
  std::ifstream in(file);
  if (in) checked.document = Json::parse(in);
  return checked;
}

TEST(Conformance, HoldsForAPluginThatIsRight) {
  const Checked c = check({"--plugin", built("plugins/chain_1d.so"), "--sizes", "1,2,3"});
  ASSERT_EQ(c.code, kOk) << c.output;
  EXPECT_EQ(c.document["status"], "ok");
  EXPECT_EQ(c.document["failed"], 0);
  EXPECT_EQ(c.document["passed"], c.document["findings"].size());
  for (const Json& f : c.document["findings"]) {
    EXPECT_EQ(f["name"], "1d-chain");  // without names, what the plug-in brought
    EXPECT_EQ(f["ok"], true);
    EXPECT_EQ(f["detail"], "");
  }
}

TEST(Conformance, FailsForAPluginThatIsBroken) {
  const Checked c = check({"--plugin", built("plugins/broken_1d.so"), "--sizes", "1,2"});
  ASSERT_EQ(c.code, kFailed) << c.output;
  EXPECT_EQ(c.document["status"], "failed");
  std::set<std::string> failed;
  for (const Json& f : c.document["findings"]) {
    if (f["ok"] == true) continue;
    failed.insert(f["check"].get<std::string>());
    EXPECT_EQ(f["where"], "tensor2");  // one rank has nothing to sum
    EXPECT_NE(f["detail"], "");
  }
  EXPECT_EQ(failed, (std::set<std::string>{"products", "layers", "training"}));
  EXPECT_NE(c.output.find("input gradient of an expand layer"), std::string::npos) << c.output;
}

TEST(Conformance, FailsForSchemesThatAreWrongInF32OrLateOrWide) {
  for (const char* scheme : {"1d-tenth", "1d-late", "1d-wide"}) {
    const Checked c = check({scheme, "--plugin", built("plugins/faults.so"), "--sizes", "2"});
    EXPECT_EQ(c.code, kFailed) << scheme << c.output;
    std::set<std::string> failed;
    for (const Json& f : c.document["findings"]) {
      if (f["ok"] == false) failed.insert(f["check"].get<std::string>());
    }
    EXPECT_TRUE(failed.contains("training")) << scheme << c.output;
  }
}

TEST(Conformance, ChecksWhatIsNamed) {
  const Checked c = check({"2d", "3d", "--sizes", "1,4,8"});
  ASSERT_EQ(c.code, kOk) << c.output;
  std::set<std::string> meshes;
  for (const Json& f : c.document["findings"]) meshes.insert(f["where"].get<std::string>());
  EXPECT_EQ(meshes, (std::set<std::string>{"dep1 x row1 x col1", "dep1 x row2 x col2",
                                           "x1 x y1 x z1", "x2 x y2 x z2"}));
}

TEST(Conformance, RefusesSchemesAndSizesThatDoNotExist) {
  struct Case {
    tests::Arguments arguments;
    const char* says;
  };
  for (const Case& c : {Case{{"4d"}, "4d"}, Case{{"3d", "--sizes", "4"}, "--sizes"},
                        Case{{"1d", "--sizes", "0"}, "0"},
                        Case{{"--plugin", built("plugins/no_symbol.so")}, "no symbol"}}) {
    const Checked checked = check(c.arguments);
    EXPECT_EQ(checked.code, kUsage) << checked.output;
    EXPECT_NE(checked.output.find(c.says), std::string::npos) << checked.output;
    EXPECT_TRUE(checked.document.is_null());
  }
}

}  // namespace
}  // namespace kuafu
