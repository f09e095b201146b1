// SPDX-License-Identifier: Apache-2.0
//
// Re-layout against gathering the whole tensor and cutting anew, for random pairs of layouts.

#include "kuafu/parallel/tensor/relayout.h"

#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "kuafu/base/philox.h"
#include "tests/support/ranks.h"
#include "tests/support/tensors.h"

namespace kuafu {
namespace {

using tests::is_same;
using tests::MeshRank;

const Shape kWhole = {24, 24, 24};  // every product of the axes below divides every dim

/// Numbers below a bound, one after the other, the same on every rank.
class Draw {
 public:
  explicit Draw(uint64_t site) : random_(7, site) {}
  size_t operator()(size_t bound) { return random_.bits(next_++) % bound; }

 private:
  CounterRandom random_;
  uint64_t next_ = 0;
};

/// Each axis on one of the dims or on none, in any order.
Layout random_layout(const std::vector<Axis>& axes, Draw& draw) {
  Layout layout = Layout::replicated(kWhole.size());
  Axes rest;
  for (const Axis& axis : axes) rest.push_back(axis.name);
  while (!rest.empty()) {
    const auto one = rest.begin() + static_cast<long>(draw(rest.size()));
    const size_t dim = draw(kWhole.size() + 1);
    if (dim < kWhole.size()) layout.dims[dim].push_back(*one);
    rest.erase(one);
  }
  return layout;
}

struct Grid {
  std::string name;
  std::vector<Axis> axes;
};

class Relayouts : public testing::TestWithParam<Grid> {
 protected:
  int ranks() const {
    int64_t n = 1;
    for (const Axis& axis : GetParam().axes) n *= axis.size;
    return static_cast<int>(n);
  }
};

TEST_P(Relayouts, EqualGatherThenSliceForwardAndBackwardAndCostWhatTheyPlan) {
  tests::run_ranks(ranks(), [&](Communicator& world) {
    MeshRank me(GetParam().axes, world);
    Draw draw(static_cast<uint64_t>(world.size()));
    for (int round = 0; round < 24; ++round) {
      const Layout from = random_layout(GetParam().axes, draw);
      const Layout to = random_layout(GetParam().axes, draw);
      SCOPED_TRACE(to_string(from, "BSH") + " -> " + to_string(to, "BSH"));
      const Param x = tests::shard("x", kWhole, from, me.mesh);
      const Param expected = tests::shard("x", kWhole, to, me.mesh);
      const Param dy = tests::shard("dy", kWhole, to, me.mesh);
      const Param dx = tests::shard("dy", kWhole, from, me.mesh);
      const RelayoutPlan plan = plan_relayout(me.mesh, shape_of(x.value), from, to);
      me.ledger.clear();
      const Tensor y = relayout(me.mesh, x.value, plan);
      EXPECT_EQ(me.received(), 8 * plan.forward) << to_string(plan);
      EXPECT_TRUE(is_same(y.detach(), expected.value.detach())) << to_string(plan);
      me.ledger.clear();
      if (y.is_same(x.value)) continue;
      y.backward(dy.value.detach());
      EXPECT_EQ(me.received(), 8 * plan.backward) << to_string(plan);
      EXPECT_TRUE(is_same(x.value.grad(), dx.value.detach())) << to_string(plan);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(All, Relayouts,
                         testing::Values(Grid{"r4", {{"a", 2}, {"b", 2}}},
                                         Grid{"r6", {{"a", 2}, {"b", 3}}},
                                         Grid{"r8", {{"a", 2}, {"b", 2}, {"c", 2}}},
                                         Grid{"r12", {{"a", 3}, {"b", 2}, {"c", 2}}}),
                         [](const auto& info) { return info.param.name; });

RelayoutPlan plan_on_grid(const Layout& from, const Layout& to, const Shape& local) {
  return plan_relayout(Mesh({{"row", 2}, {"col", 2}}, 0), local, from, to);
}

TEST(Relayout, SendsNothingForwardFromWholeToBlocks) {
  const RelayoutPlan plan =
      plan_on_grid(Layout::replicated(3), {{{"row"}, {}, {"col"}}}, {4, 2, 6});
  EXPECT_EQ(plan.forward, 0);
  EXPECT_EQ(plan.backward, 12 + 24);  // the halves of a half, then the other half
}

TEST(Relayout, MovesAnAxisByOneAllToAll) {
  const RelayoutPlan plan =
      plan_on_grid({{{"row"}, {}, {"col"}}}, {{{"row"}, {"col"}, {}}}, {2, 4, 3});
  ASSERT_EQ(plan.moves.size(), 1);
  EXPECT_EQ(to_string(plan), "exchange dim 2 for 1 by col");
  EXPECT_EQ(plan.forward, 12);
  EXPECT_EQ(plan.backward, 12);
}

TEST(Relayout, DoesNothingBetweenEqualLayouts) {
  const Mesh mesh({{"row", 2}, {"col", 2}}, 0, {{"tensor", {"row", "col"}}});
  const RelayoutPlan plan =
      plan_relayout(mesh, {1, 4, 6}, {{{"tensor"}, {}, {}}}, {{{"row", "col"}, {}, {}}});
  EXPECT_EQ(to_string(plan), "nothing to do");
}

TEST(Relayout, LeavesACommonAxisInFrontOfUnevenParts) {
  // 7 tokens on two ranks of "s": each plans on its own extent, and both plan the same moves.
  const Mesh mesh({{"s", 2}, {"a", 2}, {"b", 2}}, 0);
  const Layout from{{{}, {"s"}, {"a", "b"}}}, to{{{"b"}, {"s"}, {"a"}}};
  const RelayoutPlan long_part = plan_relayout(mesh, {4, 4, 6}, from, to);
  const RelayoutPlan short_part = plan_relayout(mesh, {4, 3, 6}, from, to);
  EXPECT_EQ(long_part.moves, short_part.moves);
  EXPECT_EQ(to_string(long_part), "exchange dim 2 for 0 by b");
}

TEST(Relayout, RefusesWhatDoesNotDivideBeforeAnyCommunication) {
  EXPECT_THROW(plan_on_grid(Layout::replicated(3), {{{"row", "col"}, {}, {}}}, {6, 2, 6}),
               NotDivisible);
}

}  // namespace
}  // namespace kuafu
