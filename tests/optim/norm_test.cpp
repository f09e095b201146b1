// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>

#include "kuafu/base/errors.h"
#include "kuafu/comm/simulated.h"
#include "kuafu/comm/worlds.h"
#include "kuafu/optim/optimizer.h"
#include "tests/optim/axes.h"
#include "tests/tensor/support.h"

namespace kuafu {
namespace {

using testing::whole_numbers;

struct Piece {
  std::string name;
  Shape global;
  Layout layout;
  Axes split;  ///< axes that cut dim 0 of the shard further
};

/// Replicated, sharded over one axis, over two, and split further over data.
std::vector<Piece> pieces() {
  const Axes none, row = {"row"}, col = {"col"}, data = {"data"};
  const Axes both(std::initializer_list<std::string>{"col", "row"});
  const auto layout = [](std::vector<Axes> dims) { return Layout{std::move(dims)}; };
  return {{"norm", {7}, layout({none}), none},
          {"up", {12, 8}, layout({row, col}), none},
          {"bias", {8}, layout({col}), none},
          {"zero", {12, 8}, layout({none, col}), data},
          {"down", {24, 8}, layout({both, none}), data}};
}

Tensor whole_grad(size_t i) {
  return whole_numbers(pieces()[i].global, static_cast<int64_t>(i) + 1);
}

double unsharded_norm() {
  double sum = 0;
  for (size_t i = 0; i < pieces().size(); ++i) sum += whole_grad(i).square().sum().item<double>();
  return std::sqrt(sum);
}

/// My shards of all pieces. `params` keeps what they point to.
std::vector<ParamShard> shards_of(const Mesh& mesh, std::vector<Param>& params, at::Device device) {
  std::vector<ParamShard> shards;
  params.reserve(pieces().size());
  for (size_t i = 0; i < pieces().size(); ++i) {
    const Piece piece = pieces()[i];
    Param& p = params.emplace_back();
    p.name = piece.name;
    p.global = p.padded = piece.global;
    p.layout = piece.layout;
    const Tensor mine = scatter_param(p, whole_grad(i), mesh);
    const int64_t parts = mesh.size(piece.split), extent = mine.size(0) / parts;
    const Tensor grad = mine.narrow(0, mesh.coord(piece.split) * extent, extent).clone().to(device);
    shards.push_back({grad, grad, &p, piece.split});
  }
  return shards;
}

std::vector<std::vector<Axis>> norm_meshes() {
  return {{},
          {{"data", 2}},
          {{"data", 3}, {"row", 1}, {"col", 2}},
          {{"row", 2}, {"col", 2}},
          {{"data", 2}, {"row", 2}, {"col", 2}}};
}

// Sums of squares of whole numbers are exact, so the norms are equal to the last bit.
TEST(GlobalGradNorm, OfShardsIsThatOfTheWholeOnEveryRank) {
  for (const auto& axes : norm_meshes()) {
    run_on_threads(ranks_of(axes), [&](Communicator& world) {
      Mesh mesh(axes, world.rank());
      mesh.connect(world, nullptr);
      std::vector<Param> params;
      const auto shards = shards_of(mesh, params, at::kCPU);
      EXPECT_EQ(global_grad_norm(shards, mesh), unsharded_norm()) << mesh.describe();
    });
  }
}

TEST(GlobalGradNorm, SendsOneSmallAllReduceAnAxisAndTheSameOnMeta) {
  for (const auto& axes : norm_meshes()) {
    const int n = ranks_of(axes);
    SimulatedWorld simulated(n);
    for (int r = 0; r < n; ++r) {
      Ledger ledger;
      const auto world = simulated.communicator(r);
      Mesh mesh(axes, r);
      mesh.connect(*world, &ledger);
      std::vector<Param> params;
      const auto shards = shards_of(mesh, params, at::kMeta);
      EXPECT_EQ(global_grad_norm(shards, mesh), 1);
      for (const auto& [label, row] : ledger.axes()) {
        const auto calls = row.calls[static_cast<size_t>(Verb::kAllReduce)];
        EXPECT_EQ(calls, 1) << label << " of " << mesh.describe();
        EXPECT_LE(row.bytes_received, 2 * 8 * static_cast<int64_t>(pieces().size()));
      }
    }
  }
}

TEST(ClipFactor, ScalesToTheNormAllowed) {
  EXPECT_EQ(clip_factor(3, 6), 1);
  EXPECT_EQ(clip_factor(3, 3), 1);
  EXPECT_EQ(clip_factor(3, 0), 1);
  EXPECT_EQ(clip_factor(4, 1), 0.25);
  EXPECT_THROW(clip_factor(3, -1), ConfigError);
}

TEST(ClipFactor, LeavesGradientsOfANormThatIsNoNumber) {
  EXPECT_EQ(clip_factor(std::nan(""), 1), 1);
}

}  // namespace
}  // namespace kuafu
