// SPDX-License-Identifier: Apache-2.0
//
// Mixtures of experts inside a model: every layout computes what one rank computes.

#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include <algorithm>

#include "kuafu/simulate/simulate.h"
#include "tests/support/plans.h"
#include "tests/support/ranks.h"
#include "tests/support/tensors.h"

namespace kuafu {
namespace {

using tests::certificate_of;
using tests::run_plan;
using tests::small_plan;

/// Two layers of four experts, one sample a group of 12 tokens.
Plan moe_plan(const Overrides& more) {
  Overrides all = {{"model.kind", "moe_gpt"}, {"model.experts", "4"}};
  all.insert(all.end(), more.begin(), more.end());
  return small_plan(all);
}

struct Layouts {
  std::string name;
  Overrides overrides;
};
std::ostream& operator<<(std::ostream& out, const Layouts& l) { return out << l.name; }

Layouts layout(const std::string& mode, const std::string& size, const std::string& depth,
               const std::string& data, const std::string& expert) {
  Overrides o = {{"parallel.data", data}, {"parallel.expert.size", expert}};
  if (mode != "none") {
    o.emplace_back("parallel.tensor.mode", mode);
    o.emplace_back("parallel.tensor.size", size);
  }
  if (depth != "1") o.emplace_back("parallel.tensor.depth", depth);
  std::string name = text("t", mode, "_", size, "_data_", data, "_expert_", expert);
  std::replace(name.begin(), name.end(), '.', 'p');
  std::replace(name.begin(), name.end(), '-', '_');
  return {name, o};
}

/// Two ranks share each sequence.
Layouts with_sequence(Layouts l, const std::string& mode) {
  l.overrides.emplace_back("parallel.sequence.mode", mode);
  l.overrides.emplace_back("parallel.sequence.size", "2");
  l.name += "_" + mode;
  std::replace(l.name.begin(), l.name.end(), '-', '_');
  return l;
}

std::vector<Layouts> layouts() {
  return {layout("none", "1", "1", "2", "1"),
          layout("none", "1", "1", "2", "2"),
          layout("none", "1", "1", "4", "2"),
          layout("none", "1", "1", "4", "4"),
          layout("1d", "2", "1", "1", "1"),
          layout("1d", "2", "1", "2", "2"),
          layout("1d-sp", "2", "1", "1", "1"),
          layout("1d-sp", "2", "1", "2", "2"),
          layout("2d", "4", "1", "1", "1"),
          layout("2d", "4", "1", "2", "2"),
          layout("2.5d", "8", "2", "1", "1"),
          layout("3d", "8", "1", "1", "1"),
          with_sequence(layout("none", "1", "1", "2", "2"), "ring"),
          with_sequence(layout("none", "1", "1", "2", "1"), "ring-zigzag"),
          with_sequence(layout("1d-sp", "2", "1", "1", "1"), "ring-zigzag"),
          with_sequence(layout("1d", "2", "1", "1", "1"), "ulysses")};
}

void expect_equal(const Plan& plan, const std::string& what) {
  const Certificate c = certificate_of(plan);
  EXPECT_EQ(c.verdict, "equal") << what << ": " << c.describe() << "; native "
                                << c.native.describe();
  EXPECT_LE(c.gradient.error, c.gradient.bound);
}

class MoeGpt : public testing::TestWithParam<Layouts> {};

TEST_P(MoeGpt, EqualsOneRankWithEveryRouter) {
  for (const char* router : {"top1", "top2", "expert_choice"}) {
    Overrides more = GetParam().overrides;
    more.emplace_back("model.router", router);
    expect_equal(moe_plan(more), router);
  }
}

TEST_P(MoeGpt, EqualsOneRankWithEverythingOn) {
  Overrides more = GetParam().overrides;
  for (const auto& [key, value] : Overrides{{"model.random_second", "true"},
                                            {"model.shared_experts", "1"},
                                            {"model.dropout", "0.1"},
                                            {"model.capacity_factor", "0.8"},
                                            {"model.balance_loss", "0.5"},
                                            {"model.z_loss", "0.1"},
                                            {"memory.recompute", "full"},
                                            {"train.batch", "16"},
                                            {"train.micro_batch", "4"}}) {
    more.emplace_back(key, value);
  }
  expect_equal(moe_plan(more), "all options");
}

TEST_P(MoeGpt, LoadsAreTheSameUnderEveryLayout) {
  const auto loads = [](Overrides more) {
    more.emplace_back("model.capacity_factor", "0.9");
    return run_plan(moe_plan(more))[0].experts;
  };
  const auto expected = loads({});
  ASSERT_EQ(expected.size(), 2u);
  EXPECT_GT(expected[0].dropped, 0);
  EXPECT_EQ(loads(GetParam().overrides), expected);
}

int64_t flops_of(const Plan& plan) {
  int64_t sum = 0;
  for (const RankResult& r : simulate(plan, builtin_registries()).ranks) sum += r.flops;
  return sum;
}

// Beside the dense model: 6 B S H E for the router (on every rank that holds the tokens), and slots
// in place of tokens in the MLP.
TEST_P(MoeGpt, FlopsCountSlots) {
  const Plan plan = moe_plan(GetParam().overrides);
  const ModelPlan& m = plan.model;
  const int64_t b = plan.train.batch, slots = 8;  // ceil(1.25 x 2 x 12 / 4)
  const int64_t copies = plan.parallel.tensor.mode == "1d" ? plan.parallel.tensor.size : 1;
  const int64_t router = 6 * b * m.sequence * m.hidden * m.experts * copies;
  const int64_t experts = 12 * b * (m.experts * slots - m.sequence) * m.hidden * m.ffn_width();
  Plan dense = plan;
  dense.model = small_plan().model;
  if (dense.parallel.expert > 1) dense.parallel.expert = 1;
  EXPECT_EQ(flops_of(plan) - flops_of(dense), m.layers * (router + experts));
}

void expect_same_meters(const Plan& plan, const std::string& what) {
  const Prediction predicted = simulate(plan, builtin_registries());
  const auto real = run_plan(plan);
  for (size_t r = 0; r < real.size(); ++r) {
    const std::string where = text(what, ", rank ", r);
    ASSERT_EQ(predicted.ranks[r].traffic.size(), real[r].traffic.size()) << where;
    for (const auto& [axis, t] : real[r].traffic) {
      EXPECT_EQ(predicted.ranks[r].traffic.at(axis), t) << where << " on " << axis;
    }
    EXPECT_EQ(predicted.ranks[r].flops, real[r].flops) << where;
    EXPECT_EQ(predicted.ranks[r].flops_recomputed, real[r].flops_recomputed) << where;
    EXPECT_EQ(predicted.ranks[r].peak_bytes, real[r].peak_bytes) << where;
    for (int c = 0; c < kNumCategories; ++c) {
      const auto i = static_cast<size_t>(c);
      if (static_cast<Category>(c) == Category::kScratch) continue;
      EXPECT_EQ(predicted.ranks[r].peak_by_category[i], real[r].peak_by_category[i])
          << where << " " << to_string(static_cast<Category>(c));
    }
    EXPECT_TRUE(predicted.ranks[r].experts.empty());
  }
}

TEST_P(MoeGpt, SimulatedEqualsThreads) {
  for (const char* recompute : {"none", "full"}) {
    for (const char* dtype : {"f32", "bf16"}) {
      Overrides more = GetParam().overrides;
      more.emplace_back("model.dtype", dtype);
      more.emplace_back("model.shared_experts", "1");
      more.emplace_back("memory.recompute", recompute);
      expect_same_meters(moe_plan(more), text(dtype, " ", recompute));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, MoeGpt, testing::ValuesIn(layouts()),
                         [](const auto& info) { return info.param.name; });

// Parts of a sequence that differ in length: capacity is that of the whole sample all the same.
TEST(MoeGpt, UnevenPartsOfASequenceEqualOneRank) {
  struct Cut {
    const char *mode, *ranks, *tokens;
  };
  for (const Cut& cut :
       {Cut{"ring", "2", "13"}, Cut{"ring", "3", "11"}, Cut{"ring-zigzag", "3", "13"},
        Cut{"ulysses", "2", "7"}, Cut{"all-gather", "5", "12"}}) {
    const Overrides whole = {{"model.sequence", cut.tokens}, {"model.capacity_factor", "0.9"}};
    Overrides more = whole;
    more.emplace_back("parallel.sequence.mode", cut.mode);
    more.emplace_back("parallel.sequence.size", cut.ranks);
    const std::string what = text(cut.mode, " ", cut.ranks, ", ", cut.tokens, " tokens");
    for (const char* router : {"top2", "expert_choice"}) {
      more.emplace_back("model.router", router);
      expect_equal(moe_plan(more), text(what, " ", router));
      more.pop_back();
    }
    expect_same_meters(moe_plan(more), what);
    EXPECT_EQ(run_plan(moe_plan(more))[0].experts, run_plan(moe_plan(whole))[0].experts) << what;
  }
}

TEST(MoeGpt, LossFalls) {
  const auto losses = run_plan(moe_plan({{"parallel.data", "2"},
                                         {"parallel.expert.size", "2"},
                                         {"model.dtype", "f32"},
                                         {"train.steps", "30"}}))[0]
                          .losses;
  EXPECT_NEAR(losses.front(), 3.61, 0.1);  // ln(37)
  EXPECT_LT(losses.back(), losses.front() - 0.5);
}

TEST(MoeGpt, EveryLayerOrOneInTwo) {
  const auto blocks = [](const char* every) {
    std::vector<std::string> names;
    const auto results = run_plan(moe_plan({{"model.moe_every", every}}));
    for (const ExpertLoad& load : results[0].experts) names.push_back(load.block);
    return names;
  };
  EXPECT_EQ(blocks("1"), (std::vector<std::string>{"blocks.0", "blocks.1"}));
  EXPECT_EQ(blocks("2"), (std::vector<std::string>{"blocks.1"}));
}

// The series of a run are those of its steps run one by one, and add up.
TEST(MoeGpt, LoadsOfEveryStepAddUp) {
  const auto loads = [](const Overrides& more) { return run_plan(moe_plan(more))[0].experts; };
  const auto all = loads({});
  ASSERT_FALSE(all.empty());
  const auto first = loads({{"train.steps", "1"}});
  for (size_t b = 0; b < all.size(); ++b) {
    ASSERT_EQ(all[b].steps.size(), 3u);
    EXPECT_EQ(all[b].steps[0], first[b].steps[0]) << all[b].block;
    ExpertCounts sum;
    for (const ExpertCounts& step : all[b].steps) {
      sum.add(step);
      EXPECT_EQ(step.made, all[b].made / 3) << all[b].block;
    }
    EXPECT_EQ(sum, static_cast<const ExpertCounts&>(all[b]));
  }
}

// Scatter then gather of every parameter gives back the whole, bit for bit.
TEST(MoeGpt, ParametersAreGatheredExactly) {
  const auto initial = [](Overrides more) {
    const Plan plan = moe_plan(more);
    const Registries registries = builtin_registries();
    std::map<std::string, Tensor> all;
    tests::run_ranks(static_cast<int>(num_ranks(plan)), [&](Communicator& world) {
      const auto data = tests::data_of(plan);
      Engine engine(plan, registries, world, *data, {});
      for (Param* p : engine.params()) {
        const Tensor whole = gather_param(*p, p->value.detach(), engine.mesh());
        const Tensor again = scatter_param(*p, whole, engine.mesh());
        EXPECT_TRUE(tests::is_same(again, p->value.detach())) << p->name;
        if (world.rank() == 0) all[p->name] = whole.clone();
      }
    });
    return all;
  };
  const auto expected = initial({});
  ASSERT_TRUE(expected.contains("blocks.0.moe.experts.up.weight"));
  EXPECT_EQ(expected.at("blocks.0.moe.experts.up.weight").sizes(), (Shape{4, 32, 128}));
  for (const Layouts& l : layouts()) {
    const auto gathered = initial(l.overrides);
    ASSERT_EQ(gathered.size(), expected.size()) << l;
    for (const auto& [name, whole] : expected) {
      EXPECT_TRUE(tests::is_same(gathered.at(name), whole)) << l << " " << name;
    }
  }
}

}  // namespace
}  // namespace kuafu
