// SPDX-License-Identifier: Apache-2.0
//
// Plans that cannot be placed are refused before anything is sent.

#include <gtest/gtest.h>

#include "tests/support/plans.h"
#include "tests/support/ranks.h"

namespace kuafu {
namespace {

using tests::family;
using tests::plan_of;
using tests::small_plan;

struct Misfit {
  const char* what;
  const char* family;
  Overrides overrides;
  const char* dim;
  int64_t extent;
};

std::ostream& operator<<(std::ostream& out, const Misfit& m) { return out << m.what; }

// Each plan is well formed; only the grid does not divide it.
const std::vector<Misfit>& misfits() {
  static const std::vector<Misfit> all = {
      {"heads on 1d", "t1d_4", {{"model.heads", "2"}}, "0", 2},
      {"heads on 1d-sp", "t1d_sp_2", {{"model.heads", "1"}}, "0", 1},
      {"heads on the columns of 2d", "t2d_4", {{"model.heads", "1"}}, "0", 1},
      {"heads on the columns of 2.5d", "t2p5d_8", {{"model.heads", "1"}}, "0", 1},
      {"sequence on 1d-sp", "t1d_sp_2", {{"model.sequence", "13"}}, "1", 13},
      {"samples on the rows of 2d", "t2d_4", {{"train.batch", "9"}}, "0", 9},
      {"samples on layers and rows of 2.5d", "t2p5d_8", {{"train.batch", "6"}}, "0", 6},
      {"heads on 3d", "t3d_8", {{"model.heads", "1"}}, "0", 1},
      {"width on 3d", "t3d_8", {{"model.hidden", "34"}, {"model.heads", "2"}}, "0", 34},
      {"samples on 3d", "t3d_8", {{"train.batch", "6"}}, "0", 6},
      {"samples of a micro-batch", "data_2_t2d_4", {{"train.micro_batch", "1"}}, "0", 1},
  };
  return all;
}

class Misfits : public testing::TestWithParam<Misfit> {};

TEST_P(Misfits, AreNotDivisibleBeforeAnyCommunication) {
  const Plan plan = plan_of(family(GetParam().family), GetParam().overrides);
  const Registries registries = builtin_registries();
  tests::run_ranks(static_cast<int>(num_ranks(plan)), [&](Communicator& world) {
    Ledger of_world, of_mesh;
    world.meter(&of_world, "world");
    const auto data = tests::data_of(plan);
    try {
      Engine engine(plan, registries, world, *data, {.ledger = &of_mesh});
      ADD_FAILURE() << GetParam().what << " were placed";
    } catch (const NotDivisible& e) {
      EXPECT_EQ(e.dim, GetParam().dim) << e.what();
      EXPECT_EQ(e.extent, GetParam().extent) << e.what();
      EXPECT_FALSE(e.axes.empty());
      EXPECT_NE(std::string(e.what()).find("nearest that do"), std::string::npos) << e.what();
    }
    EXPECT_EQ(of_world.axis("world"), AxisLedger{});
    EXPECT_TRUE(of_mesh.axes().empty());
    world.meter(nullptr, "");
  });
}

TEST_P(Misfits, AreRefusedByTheCheckWithoutRanks) {
  const Plan plan = plan_of(family(GetParam().family), GetParam().overrides);
  EXPECT_THROW(check_placement(plan, builtin_registries()), Refused);
}

INSTANTIATE_TEST_SUITE_P(All, Misfits, testing::ValuesIn(misfits()));

TEST(Placement, OfEveryFamilyIsAccepted) {
  for (const tests::Family& f : tests::families()) {
    EXPECT_NO_THROW(check_placement(plan_of(f), builtin_registries())) << f;
  }
}

TEST(Placement, RefusesGridsThatAreNone) {
  EXPECT_THROW(small_plan({{"parallel.tensor.mode", "2d"}, {"parallel.tensor.size", "3"}}),
               Refused);
  EXPECT_THROW(small_plan({{"parallel.tensor.mode", "2.5d"}, {"parallel.tensor.size", "6"}}),
               Refused);
  EXPECT_THROW(small_plan({{"parallel.tensor.mode", "none"}, {"parallel.tensor.size", "2"}}),
               Refused);
}

/// Words of the refusal of a plan, with advice.
std::string advice_of(const Overrides& overrides) {
  try {
    check_placement(small_plan(overrides), builtin_registries(), Advice::kNearest);
  } catch (const Refused& e) {
    return e.what();
  }
  return "no refusal";
}

TEST(Advice, OfABatchKeepsAMicroBatchThatWasGiven) {
  const Overrides grid = {{"parallel.tensor.mode", "2.5d"},
                          {"parallel.tensor.size", "8"},
                          {"parallel.tensor.depth", "2"},
                          {"train.batch", "24"},
                          {"train.micro_batch", "1"}};
  const std::string words = advice_of(grid);
  EXPECT_NE(words.find("train.micro_batch = 4"), std::string::npos) << words;
  EXPECT_EQ(words.find("train.batch = "), std::string::npos) << words;  // no batch mends it
}

TEST(Advice, NamesNoPipelineOfOneRank) {
  const auto words = [](const char* size) {
    return advice_of({{"model.layers", "3"},
                      {"parallel.pipeline.size", size},
                      {"parallel.pipeline.chunks", "2"},
                      {"parallel.pipeline.schedule", "interleaved"}});
  };
  EXPECT_NE(words("4").find("nearest: size = 2, or layers = 6"), std::string::npos) << words("4");
  const std::string three = advice_of({{"model.layers", "3"},
                                       {"parallel.pipeline.size", "4"},
                                       {"parallel.pipeline.chunks", "3"},
                                       {"parallel.pipeline.schedule", "interleaved"}});
  EXPECT_NE(three.find("nearest: layers = 10"), std::string::npos) << three;
}

TEST(Placement, RefusesTwoParametersOfOneName) {
  class Doubled : public ModelBlock {
   public:
    Doubled(std::unique_ptr<ModelBlock> inner, const Param& like) : inner_(std::move(inner)) {
      add_child(*inner_);
      add(Param(like));
    }
    Flow forward(const Flow& in, const Side& side) override { return inner_->forward(in, side); }
    std::string name() const override { return inner_->name(); }

   private:
    std::unique_ptr<ModelBlock> inner_;
  };
  Registries registries = builtin_registries();
  const MakeModel gpt = registries.models.find("gpt");
  registries.models.add(
      "doubled", "GPT with a name twice", [&](const ModelPlan& plan, const Context& ctx) {
        Model model = gpt(plan, ctx);
        const Param* first = model.blocks[0]->params()[0];
        model.blocks[2] = std::make_unique<Doubled>(std::move(model.blocks[2]), *first);
        return model;
      });
  Plan plan = small_plan({});
  plan.model.kind = "doubled";
  try {
    check_placement(plan, registries);
    FAIL() << "the model was placed";
  } catch (const ConfigError& e) {
    const std::string words = e.what();
    EXPECT_TRUE(words.starts_with("two parameters are named \"embedding.")) << words;
    EXPECT_NE(words.find("one of block \"embedding\" and one of block \"blocks.1\""),
              std::string::npos)
        << words;
  }
}

// Which matrices a rule takes whole it knows by their names.
TEST(Placement, RefusesARuleOfMatricesForAModelThatNamesNone) {
  Registries registries = builtin_registries();
  const MakeModel gpt = registries.models.find("gpt");
  registries.models.add("renamed", "GPT whose blocks are called layers",
                        [&](const ModelPlan& plan, const Context& ctx) {
                          Model model = gpt(plan, ctx);
                          for (const auto& block : model.blocks) {
                            for (Param* p : block->params()) {
                              if (p->name.starts_with("blocks.")) p->name.replace(0, 6, "layers");
                            }
                          }
                          return model;
                        });
  Plan plan = small_plan({{"optimizer.kind", "muon"}});
  check_placement(plan, registries);
  plan.model.kind = "renamed";
  try {
    check_placement(plan, registries);
    FAIL() << "every matrix would be AdamW's";
  } catch (const Refused& e) {
    EXPECT_NE(std::string(e.what()).find("whose names begin with \"blocks.\""), std::string::npos)
        << e.what();
  }
  plan.optimizer.kind = optimizer_kinds::kAdamW;
  check_placement(plan, registries);
}

TEST(Engine, RefusesAWorldOfAnotherSize) {
  const Plan plan = plan_of(family("data_2"));
  const Registries registries = builtin_registries();
  const auto data = tests::data_of(plan);
  const auto alone = make_self();
  EXPECT_THROW(Engine(plan, registries, *alone, *data, {}), ConfigError);
}

TEST(Engine, UnknownModeListsTheKnownOnes) {
  Plan plan = small_plan();
  plan.parallel.tensor.mode = "4d";
  try {
    check_placement(plan, builtin_registries());
    FAIL() << "mode 4d was placed";
  } catch (const ConfigError& e) {
    EXPECT_NE(std::string(e.what()).find("2.5d"), std::string::npos) << e.what();
  }
}

TEST(Engine, FaultOnOneRankEndsAllWithItsCause) {
  class Unreadable : public Dataset {
   public:
    Unreadable(std::unique_ptr<Dataset> inner, int rank) : inner_(std::move(inner)), rank_(rank) {}
    int64_t vocab() const override { return inner_->vocab(); }
    int64_t num_train_samples() const override { return 1; }
    int64_t num_validation_samples() const override { return 1; }
    Tokens train(int64_t first, int64_t count) const override {
      KUAFU_REQUIRE(rank_ != 1 || first < 8, "the disk of rank 1 is gone");
      return inner_->train(first, count);
    }
    Tokens validation(int64_t first, int64_t count) const override { return train(first, count); }
    std::string describe() const override { return "unreadable"; }

   private:
    std::unique_ptr<Dataset> inner_;
    int rank_;
  };
  const Plan plan = plan_of(family("data_2_t1d_2"));
  const Registries registries = builtin_registries();
  try {
    tests::run_ranks(4, [&](Communicator& world) {
      const Unreadable data(tests::data_of(plan), world.rank());
      Engine engine(plan, registries, world, data, {});
      for (int step = 0; step < 3; ++step) engine.step();
    });
    FAIL() << "the run ended well";
  } catch (const ConfigError& e) {
    EXPECT_NE(std::string(e.what()).find("the disk of rank 1 is gone"), std::string::npos);
  }
}

}  // namespace
}  // namespace kuafu
