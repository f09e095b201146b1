// SPDX-License-Identifier: Apache-2.0
//
// Memory policies through the programs: one of a plug-in as those of this build, `optimal`, and what a
// record says of their moves.

#include <gtest/gtest.h>

#include <regex>

#include "kuafu/base/build_info.h"
#include "kuafu/record/schema.h"
#include "tests/app_worker/process.h"

namespace kuafu {
namespace {

using tests::Arguments;
using tests::built;
using tests::kSmallPlan;
using tests::Ran;
using tests::run_worker;
using tests::set;

const Arguments kPlugin = {"--plugin", built("plugins/my_policy.so")};

/// A run of two replicas in chunks of a few parameters.
Ran ran(const Arguments& settings, Arguments more = {}) {
  Arguments all = {"parallel.data=2", "parallel.data.order=fixed", "train.micro_batch=1",
                   "train.steps=4"};
  all.insert(all.end(), settings.begin(), settings.end());
  more.insert(more.end(), kPlugin.begin(), kPlugin.end());
  const Ran out = run_worker(kSmallPlan, set(all, more));
  EXPECT_EQ(out.code, 0) << out.output;
  return out;
}

/// The most live bytes where nothing is on the device between its uses.
std::string scarce() {
  const Ran host = ran({"memory.policy=host", "memory.prefetch=0", "memory.chunk_size=3000"},
                       {"--world", "simulated"});
  return host.document["memory"]["peak_bytes"][0].dump();
}

Arguments under(const std::string& policy, const std::string& device) {
  return {"memory.policy=" + policy, "memory.device=" + device, "memory.chunk_size=3000"};
}

int64_t step_bytes(const Ran& r) {
  return value_at(r.document, "moves.step_to_device_bytes.0").get<int64_t>();
}

TEST(OwnPolicy, TrainsAsThoseOfThisBuildAndHasItsRegretRecorded) {
  const std::string device = scarce();
  const Ran plain = ran({"parallel.data.bucket=3000"});
  EXPECT_TRUE(plain.document["moves"].is_null());
  std::vector<std::string> policies = {"my_policy", "lru"};
  if (build_info::kCbc.found) policies.push_back("optimal");
  for (const std::string& policy : policies) {
    const Ran mine = ran(under(policy, device));
    EXPECT_EQ(mine.document["loss"], plain.document["loss"]) << policy;
    const Json& moves = mine.document["moves"];
    EXPECT_EQ(moves["to_device_bytes"], moves["foretold_bytes"]) << policy;
    if (!build_info::kCbc.found) {
      EXPECT_TRUE(moves["regret_bytes"].is_null());
      EXPECT_EQ(moves["regret_reason"].get<std::string>().find("this build has no CBC"), 0u);
      continue;
    }
    EXPECT_TRUE(moves["regret_reason"].is_null()) << moves;
    const int64_t least = value_at(mine.document, "moves.least_bytes.0");
    EXPECT_EQ(value_at(mine.document, "moves.regret_bytes.0"), step_bytes(mine) - least) << policy;
    EXPECT_GE(step_bytes(mine), least);
    if (policy == "optimal") {
      EXPECT_EQ(step_bytes(mine), least);
    } else if (policy == "lru") {
      EXPECT_GT(step_bytes(mine), least);  // a micro-batch begins where the last one ended
    }
    EXPECT_TRUE(std::regex_search(mine.output, std::regex("  moves  .* used; .* a step over the")))
        << mine.output;
  }
}

TEST(OwnPolicy, MovesAsSimulated) {
  for (const std::string policy : {"my_policy", "optimal"}) {
    if (policy == "optimal" && !build_info::kCbc.found) continue;
    const Arguments settings = under(policy, scarce());
    const Ran predicted = ran(settings, {"--world", "simulated"});
    Json real = ran(settings).document["moves"], simulated = predicted.document["moves"];
    EXPECT_NE(predicted.output.find("step time       ~"), std::string::npos) << predicted.output;
    for (Json* moves : {&real, &simulated}) moves->erase("wait_s");
    EXPECT_EQ(real, simulated) << policy;
  }
}

// A policy chooses from the first step on, or is measured in it: its regret is known after one.
TEST(OwnPolicy, OfOneStepHasARegret) {
  if (!build_info::kCbc.found) GTEST_SKIP() << "no CBC: nobody knows the least";
  for (const std::string policy : {"host", "auto"}) {
    Arguments settings = under(policy, scarce());
    settings.push_back("train.steps=1");
    const Json moves = ran(settings).document["moves"];
    EXPECT_TRUE(moves["regret_reason"].is_null()) << moves["regret_reason"];
    EXPECT_EQ(moves["warm_up_steps"][0], policy == "auto" ? 1 : 0);
    EXPECT_GE(moves["regret_bytes"][0], 0);
  }
}

TEST(OwnPolicy, IsNamedInListsSuitesAndErrors) {
  const auto said = [](const Arguments& command, int code) {
    const tests::Ended ended = tests::Child(command).wait();
    EXPECT_EQ(ended.code, code) << ended.output;
    return ended.output;
  };
  const auto has = [](const std::string& whole, const std::string& part) {
    EXPECT_NE(whole.find(part), std::string::npos) << "no " << part << " in " << whole;
  };
  const std::string kuafu = built("bin/kuafu");
  has(said({kuafu, "list", "--plugin", kPlugin[1]}, 0), "my_policy");
  has(said({kuafu, "list", "policies"}, 0), "static_share");
  const tests::Folder folder;
  const auto suite_of = [&](const std::string& policy) {
    return folder.write(policy + ".toml", R"([suite]
name = "own"
plugins = [")" + kPlugin[1] + R"("]
[base]
data.kind = "synthetic"
[base.model]
layers = 1
hidden = 16
heads = 2
[base.train]
batch = 4
steps = 2
[[case]]
name = "own"
memory = { policy = ")" + policy + R"(", device = "1 GB", prefetch = 2 }
)");
  };
  has(said({kuafu, "suite", suite_of("my_policy"), "--out", folder.path("out"), "--no-report"}, 0),
      "certificates: 1 equal");
  has(said({kuafu, "suite", suite_of("my_polity"), "--out", folder.path("no")}, 2),
      "nearest: \"my_policy\"");
  // The front cannot know which keys a policy reads, the worker does.
  Arguments idle = under("my_policy", "1 GB");
  idle.push_back("memory.margin=0.5");
  const Ran told = run_worker(kSmallPlan, set(idle, kPlugin));
  EXPECT_EQ(told.code, 2);
  has(told.output, "no effect with memory.policy = \"my_policy\"");
}

}  // namespace
}  // namespace kuafu
