// SPDX-License-Identifier: Apache-2.0
#include "kuafu/record/provenance.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <regex>

#include "kuafu/base/build_folders.h"
#include "kuafu/base/build_info.h"
#include "kuafu/base/errors.h"
#include "kuafu/record/schema.h"

namespace kuafu {
namespace {

TEST(Provenance, NamesProgramLibrariesAndMachine) {
  const Json p = provenance();
  EXPECT_EQ(p["git_commit"], std::string(git_state().commit));
  EXPECT_EQ(p["git_dirty"], git_state().is_dirty);
  EXPECT_EQ(p["compiler"], std::string(build_info::kCompiler));
  EXPECT_EQ(p["kernels"], "own");
  EXPECT_EQ(p["host"], machine().host);
  EXPECT_GT(p["cores"].get<int64_t>(), 0);
  EXPECT_GT(p["memory_bytes"].get<int64_t>(), int64_t{1} << 28);
  EXPECT_FALSE(p["cpu_model"].get<std::string>().empty());
  for (const BuildFeature& feature : build_info::kFeatures) {
    const Json& version = p["libraries"][std::string(feature.name)];
    EXPECT_EQ(version.is_string(), feature.found) << feature.name;
  }
}

TEST(Provenance, NamesTheCommandAsItIsTypedAtTheRootOfTheTree) {
  const auto command = provenance()["command"].get<std::string>();
  EXPECT_NE(command.find("record_tests"), std::string::npos) << command;
  EXPECT_EQ(command.find(build_info::kSourceDir), std::string::npos) << command;
}

TEST(Provenance, ResultsThatAreKeptComeFromACleanTree) {
  const std::string root(build_info::kSourceDir), kept = root + "/results/benchmarks/new.json";
  const GitState clean{"1234567890abcdef", false}, changed{"1234567890abcdef", true};
  require_recordable(kept, clean);
  for (const char* elsewhere : {"/results/runs/new/run.jsonl", "/build/results/new.json"}) {
    require_recordable(root + elsewhere, changed);
  }
  require_recordable("/tmp/results/new.json", changed);
  require_recordable("", changed);  // nothing is written
  try {
    require_recordable(root + "/build/../results", changed);
    FAIL() << "was allowed";
  } catch (const ConfigError& e) {
    EXPECT_NE(std::string(e.what()).find("1234567890ab with local changes"), std::string::npos);
    EXPECT_NE(std::string(e.what()).find("KUAFU_EVEN_DIRTY"), std::string::npos);
  }
  EXPECT_THROW(require_recordable(kept, {"unknown", true}), ConfigError);
  ::setenv("KUAFU_EVEN_DIRTY", "1", 1);
  require_recordable(kept, changed);
  ::unsetenv("KUAFU_EVEN_DIRTY");
}

TEST(Provenance, TellsTheTimeInUtc) {
  EXPECT_TRUE(std::regex_match(utc_time(), std::regex(R"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ)")));
}

}  // namespace
}  // namespace kuafu
