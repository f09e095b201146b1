// SPDX-License-Identifier: Apache-2.0
//
// Suites of every model and of plug-ins, from the front to the record of real workers.

#include <gtest/gtest.h>
#include <unistd.h>

#include "kuafu/record/run_log.h"
#include "kuafu/record/schema.h"
#include "tests/app/process.h"
#include "tests/record/support.h"

namespace kuafu {
namespace {

using test::built;
using test::front;
using test::Output;
using test::TemporaryFolder;

class SuiteModels : public testing::Test {
 protected:
  void SetUp() override {
    if (::access(built("kuafu-worker").c_str(), X_OK) != 0) {
      GTEST_SKIP() << "this build has no kuafu-worker, which needs LibTorch";
    }
  }

  /// `kuafu suite` of these rows on two ranks each; results in out().
  Output run(const std::string& head, const std::string& rows,
             const std::vector<std::string>& options = {}) const {
    test::write_text(folder_ / "suite.toml",
                     "[suite]\nname = \"models\"\n" + head +
                         "\n[base]\ndata.kind = \"synthetic\"\n[base.model]\nlayers = 1\nhidden = "
                         "16\nheads = 2\n[base.train]\nbatch = 4\nsteps = 2\n" +
                         rows);
    std::vector<std::string> words = {"suite", folder_ / "suite.toml", "--out", out(),
                                      "--no-report"};
    words.insert(words.end(), options.begin(), options.end());
    return front(words);
  }

  std::string out() const { return folder_ / "out"; }
  static std::string plugin(const std::string& name) { return built("../plugins/" + name + ".so"); }

 private:
  TemporaryFolder folder_;
};

TEST_F(SuiteModels, AllSixAreSweptAndCertified) {
  const Output output = run("plugins = [\"" + plugin("macaron") + "\"]", R"toml(
[[family]]
name = "gpt"
model.kind = "gpt"
[[family]]
name = "moe_gpt"
model = { kind = "moe_gpt", experts = 2 }
[[family]]
name = "opt"
model = { kind = "opt", mlp = "relu", embedding = 8 }
[[family]]
name = "bert"
model.kind = "bert"
[[family]]
name = "vit"
model = { kind = "vit", image = 8 }
[[family]]
name = "macaron"
model.kind = "macaron"
[base.parallel]
tensor = { mode = "1d", size = "= 4 / 2" }
[[column]]
name = "FLOPs a sample and rank"
formula = "flops_per_step / ranks / train.batch"
[[column]]
name = "over gpt"
formula = "parameters.total / at(family = 'gpt', parameters.total)"
[[claim]]
name = "a mixture has more parameters"
formula = "`over gpt` > 1"
where = { family = "moe_gpt" }
source = "two experts for one MLP"
)toml");
  EXPECT_NE(output.out.find("holds       a mixture has more parameters: 1 of 1"), std::string::npos)
      << output.out;
  EXPECT_EQ(output.err.find("has no value"), std::string::npos) << output.err;
  EXPECT_EQ(output.code, 0) << output.out << output.err;
  EXPECT_NE(output.out.find("6 ok; certificates: 6 equal, 0 different, 0 not run"),
            std::string::npos)
      << output.out;
  std::vector<std::string> kinds;
  for (const Json& line : read_run(out() + "/" + kRunFile).cases) {
    kinds.push_back(value_at(line, "document.plan.model.kind").get<std::string>());
    EXPECT_EQ(value_at(line, "document.data.kind"), "synthetic");
  }
  EXPECT_EQ(kinds, (std::vector<std::string>{"gpt", "moe_gpt", "opt", "bert", "vit", "macaron"}));
}

TEST_F(SuiteModels, TensorModeOfAPluginIsSweptBesideItsOwnKind) {
  const Output output = run("", R"(
[[strategy]]
name = "1D"
parallel.tensor = { mode = "1d", size = 2 }
[[strategy]]
name = "chain"
parallel.tensor = { mode = "1d-chain", size = 2 }
)",
                            {"--plugin", plugin("chain_1d")});
  EXPECT_EQ(output.code, 0) << output.out << output.err;
  EXPECT_NE(output.out.find("2 ok; certificates: 2 equal"), std::string::npos) << output.out;
}

TEST_F(SuiteModels, ARefutedSchemeFailsTheSuite) {
  const Output output = run("plugins = [\"" + plugin("broken_1d") + "\"]", R"(
[[case]]
name = "broken"
parallel.tensor = { mode = "1d-broken", size = 2 }
)");
  EXPECT_EQ(output.code, 1) << output.out << output.err;
  EXPECT_NE(output.out.find("1 different; certificates: 0 equal, 1 different, 0 not run"),
            std::string::npos)
      << output.out;
}

TEST_F(SuiteModels, MisspeltNamesAreToldBeforeAnythingRuns) {
  const Output output = run("plugins = [\"" + plugin("macaron") + "\"]",
                            "[[case]]\nname = \"c\"\nmodel.kind = \"macarone\"\n");
  EXPECT_EQ(output.code, 2);
  EXPECT_NE(output.err.find("nearest: \"macaron\"; plug-in "), std::string::npos) << output.err;
  EXPECT_NE(output.err.find("macaron.so has none of that name"), std::string::npos) << output.err;
  const Output broken = run("plugins = [\"" + plugin("no_symbol") + "\"]",
                            "[[case]]\nname = \"c\"\nmodel.kind = \"gpt\"\n");
  EXPECT_EQ(broken.code, 2);
  EXPECT_NE(broken.err.find("no_symbol.so"), std::string::npos) << broken.err;
}

}  // namespace
}  // namespace kuafu
