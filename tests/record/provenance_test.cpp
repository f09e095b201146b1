// SPDX-License-Identifier: Apache-2.0
#include "kuafu/record/provenance.h"

#include <gtest/gtest.h>

#include <regex>

#include "kuafu/base/build_info.h"
#include "kuafu/record/schema.h"

namespace kuafu {
namespace {

TEST(Provenance, NamesProgramLibrariesAndMachine) {
  const Json p = provenance();
  EXPECT_EQ(p["git_commit"], std::string(git_state().commit));
  EXPECT_EQ(p["git_dirty"], git_state().is_dirty);
  EXPECT_EQ(p["compiler"], std::string(build_info::kCompiler));
  EXPECT_EQ(p["host"], machine().host);
  EXPECT_GT(p["cores"].get<int64_t>(), 0);
  EXPECT_GT(p["memory_bytes"].get<int64_t>(), int64_t{1} << 28);
  EXPECT_FALSE(p["cpu_model"].get<std::string>().empty());
  for (const BuildFeature& feature : build_info::kFeatures) {
    const Json& version = p["libraries"][std::string(feature.name)];
    EXPECT_EQ(version.is_string(), feature.found) << feature.name;
  }
}

TEST(Provenance, TellsTheTimeInUtc) {
  EXPECT_TRUE(std::regex_match(utc_time(), std::regex(R"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ)")));
}

}  // namespace
}  // namespace kuafu
