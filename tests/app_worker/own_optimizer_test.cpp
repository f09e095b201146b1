// SPDX-License-Identifier: Apache-2.0
//
// An optimizer out of tree, the one that `kuafu new` writes, in every door of the program.

#include <gtest/gtest.h>

#include "kuafu/base/errors.h"
#include "tests/app_worker/process.h"

namespace kuafu {
namespace {

using tests::Arguments;
using tests::built;
using tests::kSmallPlan;
using tests::Ran;
using tests::run_worker;
using tests::set;

Arguments with_plugin(Arguments more) {
  more.insert(more.end(), {"--plugin", built("plugins/my_optimizer.so")});
  return more;
}
Ran trained(const Arguments& settings, const Arguments& more = {}) {
  Arguments all = {"optimizer.kind=my_optimizer", "optimizer.beta2=0.9"};
  all.insert(all.end(), settings.begin(), settings.end());
  return run_worker(kSmallPlan, set(all, with_plugin(more)));
}

TEST(OwnOptimizer, IsCertifiedAndSimulatedAndResumed) {
  const Arguments sharded = {"parallel.data=2", "parallel.zero=2", "train.steps=4"};
  const Ran whole = trained(sharded, {"--certify"});
  ASSERT_EQ(whole.code, 0) << whole.output;
  EXPECT_EQ(whole.document["certificate"]["verdict"], "equal") << whole.output;
  const Ran simulated = trained(sharded, {"--world", "simulated"});
  ASSERT_EQ(simulated.code, 0) << simulated.output;
  EXPECT_EQ(simulated.document["ledger"]["data"]["bytes_received"],
            whole.document["ledger"]["data"]["bytes_received"]);

  const tests::Folder folder;
  const Arguments saved = {"--checkpoint", folder.path("saved")};
  Arguments first = saved, second = saved;
  first.insert(first.end(), {"--stop-at", "2"});
  second.push_back("--resume");
  EXPECT_EQ(trained(sharded, first).code, 0);
  const Ran resumed = trained(sharded, second);
  ASSERT_EQ(resumed.code, 0) << resumed.output;
  EXPECT_EQ(resumed.document["loss"].back(), whole.document["loss"].back()) << resumed.output;
}

// Its ops may take other scratch where there is memory than where there is none.
TEST(OwnOptimizer, TrainsOnTiersOfMemory) {
  const Arguments replicas = {"parallel.data=2", "parallel.zero=3", "train.steps=3"};
  const Ran plain = trained(replicas);
  ASSERT_EQ(plain.code, 0) << plain.output;
  for (const Arguments& tiers :
       {Arguments{"memory.policy=host"}, Arguments{"memory.policy=lru", "memory.device=8 MB"}}) {
    Arguments all = replicas;
    all.insert(all.end(), tiers.begin(), tiers.end());
    const Ran ran = trained(all, {"--certify"});
    ASSERT_EQ(ran.code, 0) << ran.output;
    EXPECT_EQ(ran.document["loss"], plain.document["loss"]) << tiers[0];
    EXPECT_EQ(ran.document["certificate"]["verdict"], "equal") << ran.output;
  }
}

TEST(OwnOptimizer, IsNamedInListsSuitesAndErrors) {
  const auto said = [](const Arguments& command, int code) {
    const tests::Ended ended = tests::Child(command).wait();
    EXPECT_EQ(ended.code, code) << ended.output;
    return ended.output;
  };
  const std::string kuafu = built("bin/kuafu");
  const auto has = [](const std::string& whole, const std::string& part) {
    EXPECT_NE(whole.find(part), std::string::npos) << "no " << part << " in " << whole;
  };
  has(said(with_plugin({kuafu, "list"}), 0), "my_optimizer");
  has(said({kuafu, "list", "optimizers"}, 0), "ratio_max");
  const tests::Folder folder;
  const auto suite_of = [&](const std::string& kind) {
    return folder.write(kind + ".toml", R"([suite]
name = "own"
plugins = [")" + built("plugins/my_optimizer.so") +
                                            R"("]
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
optimizer = { kind = ")" + kind + R"(", beta2 = 0.9 }
)");
  };
  has(said({kuafu, "suite", suite_of("my_optimizer"), "--out", folder.path("out"), "--no-report"},
           0),
      "certificates: 1 equal");
  has(said({kuafu, "suite", suite_of("my_optimiser"), "--out", folder.path("no")}, 2),
      "nearest: \"my_optimizer\"");
  // The front cannot know which keys a rule reads, the worker does.
  const Ran idle = trained({"optimizer.momentum=0.5"});
  EXPECT_EQ(idle.code, 2);
  has(idle.output, "no effect with optimizer.kind = \"my_optimizer\"");
}

TEST(OwnOptimizer, PassesConformanceOnOneAndTwoRanks) {
  const tests::Ended ended =
      tests::Child(with_plugin({built("bin/kuafu"), "conformance", "--optimizer", "my_optimizer",
                                "--sizes", "1,2"}))
          .wait(std::chrono::seconds(280));
  EXPECT_EQ(ended.code, 0) << ended.output;
}

}  // namespace
}  // namespace kuafu
