// SPDX-License-Identifier: Apache-2.0
#include "kuafu/mesh/mesh.h"

#include <gtest/gtest.h>

#include "kuafu/base/errors.h"
#include "tests/support/ranks.h"

namespace kuafu {
namespace {

using tests::run_ranks;

const std::vector<Axis> kCube = {{"dep", 2}, {"row", 2}, {"col", 2}};
const std::vector<Axis> kUneven = {{"data", 2}, {"row", 3}, {"one", 1}, {"col", 2}};

TEST(Mesh, LastAxisVariesFastest) {
  const Mesh mesh(kCube, 5);
  EXPECT_EQ(mesh.coord("dep"), 1);
  EXPECT_EQ(mesh.coord("row"), 0);
  EXPECT_EQ(mesh.coord("col"), 1);
  EXPECT_EQ(mesh.describe(), "dep2 x row2 x col2, rank 5 = (1,0,1)");
}

TEST(Mesh, CoordinatesOfAllAxesAreTheRank) {
  for (int rank = 0; rank < 12; ++rank) {
    const Mesh mesh(kUneven, rank);
    EXPECT_EQ(mesh.num_ranks(), 12);
    EXPECT_EQ(mesh.coord(Axes{"data", "row", "one", "col"}), rank);
    EXPECT_EQ(((mesh.coord("data") * 3 + mesh.coord("row")) * 1 + mesh.coord("one")) * 2 +
                  mesh.coord("col"),
              rank);
  }
}

TEST(Mesh, FlattenedAxesAreMajorFirst) {
  const Mesh mesh(kUneven, 9);  // data 1, row 1, col 1
  EXPECT_EQ(mesh.coord(Axes{"row", "data"}), 1 * 2 + 1);
  EXPECT_EQ(mesh.coord(Axes{"col", "row"}), 1 * 3 + 1);
  EXPECT_EQ(mesh.size(Axes{"row", "data"}), 6);
}

TEST(Mesh, AxesItLacksHaveOneRank) {
  const Mesh mesh(kCube, 3);
  EXPECT_EQ(mesh.size("tensor"), 1);
  EXPECT_EQ(mesh.coord("tensor"), 0);
  EXPECT_EQ(mesh.size(Axes{}), 1);
  EXPECT_EQ(mesh.coord(Axes{}), 0);
  EXPECT_EQ(mesh.size(Axes{"tensor", "row"}), 2);
  EXPECT_EQ(mesh.comm("tensor").size(), 1);
}

TEST(Mesh, WithoutAxesIsOneRank) {
  const Mesh mesh({}, 0);
  EXPECT_EQ(mesh.num_ranks(), 1);
  EXPECT_EQ(mesh.describe(), "one rank");
}

TEST(Mesh, RefusesBadAxes) {
  EXPECT_THROW(Mesh({{"row", 0}}, 0), ConfigError);
  EXPECT_THROW(Mesh({{"row", -2}}, 0), ConfigError);
  EXPECT_THROW(Mesh({{"row", 2}, {"row", 2}}, 0), ConfigError);
  EXPECT_THROW(Mesh(kCube, 8), ConfigError);
  EXPECT_THROW(Mesh(kCube, -1), ConfigError);
}

TEST(Mesh, UnconnectedAxisIsABug) {
  const Mesh mesh(kCube, 0);
  EXPECT_THROW(mesh.comm("row"), InternalError);
}

TEST(Mesh, CommHoldsRanksThatDifferInThatAxisOnly) {
  run_ranks(8, [](Communicator& world) {
    const tests::MeshRank me(kCube, world);
    const int r = world.rank();
    EXPECT_EQ(me.mesh.comm("col").members(), (std::vector<int>{r & ~1, r | 1}));
    EXPECT_EQ(me.mesh.comm("row").members(), (std::vector<int>{r & ~2, r | 2}));
    EXPECT_EQ(me.mesh.comm("dep").members(), (std::vector<int>{r & ~4, r | 4}));
  });
}

TEST(Mesh, CommRankIsTheCoordinate) {
  run_ranks(12, [](Communicator& world) {
    const tests::MeshRank me(kUneven, world);
    for (const Axis& axis : kUneven) {
      EXPECT_EQ(me.mesh.comm(axis.name).rank(), me.mesh.coord(axis.name)) << axis.name;
      EXPECT_EQ(me.mesh.comm(axis.name).size(), axis.size) << axis.name;
    }
  });
}

// Rank r gives 2^r; a sum is the set of the ranks that took part.
TEST(Mesh, SumsAlongAnAxisStayInItsGroup) {
  run_ranks(12, [](Communicator& world) {
    const tests::MeshRank me(kUneven, world);
    for (const Axis& axis : kUneven) {
      int64_t value = int64_t{1} << world.rank();
      me.mesh.comm(axis.name).all_reduce({&value, 1, DType::kI64}, ReduceOp::kSum).wait_host();
      int64_t expected = 0;
      for (int r = 0; r < 12; ++r) {
        const Mesh other(kUneven, r);
        bool is_member = true;
        for (const Axis& a : kUneven) {
          is_member &= a.name == axis.name || other.coord(a.name) == me.mesh.coord(a.name);
        }
        if (is_member) expected |= int64_t{1} << r;
      }
      EXPECT_EQ(value, expected) << axis.name << " on rank " << world.rank();
    }
  });
}

TEST(Mesh, TrafficIsBookedUnderTheAxisName) {
  run_ranks(4, [](Communicator& world) {
    const tests::MeshRank me({{"data", 2}, {"tensor", 2}}, world);
    double value = 1;
    me.mesh.comm("tensor").all_reduce({&value, 1, DType::kF64}, ReduceOp::kSum).wait_host();
    const auto& axes = me.ledger.axes();
    EXPECT_EQ(axes.at("tensor").calls[static_cast<size_t>(Verb::kAllReduce)], 1);
    EXPECT_EQ(axes.at("tensor").peers, (std::set<int>{world.rank() ^ 1}));
    EXPECT_EQ(axes.at("data"), AxisLedger{});
  });
}

TEST(Mesh, AnAliasStandsForItsAxesFlattened) {
  const std::vector<Axis> axes = {{"replica", 2}, {"expert", 3}, {"tensor", 2}};
  run_ranks(12, [&](Communicator& world) {
    Mesh mesh(axes, world.rank(), {{"data", {"replica", "expert"}}});
    EXPECT_EQ(mesh.canonical({"data", "tensor"}), (Axes{"replica", "expert", "tensor"}));
    EXPECT_EQ(mesh.size("data"), 6);
    EXPECT_EQ(mesh.coord("data"), world.rank() / 2);
    EXPECT_EQ(mesh.coord(Axes{"tensor", "data"}), world.rank() % 2 * 6 + world.rank() / 2);
    Ledger ledger;
    mesh.connect(world, &ledger);
    EXPECT_EQ(mesh.comm("data").rank(), world.rank() / 2);
    double sum = 1 << world.rank();
    mesh.comm("data").all_reduce({&sum, 1, DType::kF64}, ReduceOp::kSum).wait_host();
    EXPECT_EQ(sum, world.rank() % 2 == 0 ? 0b010101010101 : 0b101010101010);
    EXPECT_EQ(ledger.axes().at("data").peers.size(), 5u);
  });
}

TEST(Mesh, RefusesAliasesOfWhatItLacks) {
  EXPECT_THROW(Mesh({{"row", 2}}, 0, {{"data", {"replica"}}}), ConfigError);
  EXPECT_THROW(Mesh({{"row", 2}}, 0, {{"row", {"row"}}}), ConfigError);
}

TEST(Mesh, RefusesAWorldOfAnotherSize) {
  EXPECT_THROW(run_ranks(3,
                         [](Communicator& world) {
                           Mesh mesh({{"data", 2}, {"tensor", 2}}, world.rank());
                           mesh.connect(world, nullptr);
                         }),
               ConfigError);
}

}  // namespace
}  // namespace kuafu
