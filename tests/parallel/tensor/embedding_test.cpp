// SPDX-License-Identifier: Apache-2.0
//
// A table that several axes shard is gathered or looked up in parts, whichever moves less.
// Letters: q side of a cube, T = B S tokens.

#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include "kuafu/comm/trace.h"
#include "kuafu/parallel/tensor/interface.h"
#include "kuafu/parallel/tensor/layers.h"
#include "tests/support/ranks.h"
#include "tests/support/tensors.h"

namespace kuafu {
namespace {

using tests::MeshRank;

struct Sizes {
  int64_t b, s, h, v;
};

std::vector<Axis> cube(int64_t q) { return {{"x", q}, {"y", q}, {"z", q}}; }

/// Output and gradient of the table, both shards.
struct Outcome {
  Param table;
  Tensor y;
};

Outcome look_up(const TensorParallel& tp, const Sizes& e, at::Device device) {
  const Layout layout = tp.weight(Role::kContract);
  const TokenGrid grid{tp.activation(Stream::kOuter), e.b, e.s};
  Outcome out{tests::shard("table", {e.v, e.h}, layout, tp.mesh(), {}, device), {}};
  const Tensor ids = tests::ids(e.b, e.s, e.v, 1, device);
  out.y = embedding(tp.mesh(), ids, out.table.value, layout, grid);
  const Param dy = tests::shard("dy", {e.b, e.s, e.h}, grid.activation, tp.mesh(), {}, device);
  torch::autograd::backward({out.y}, {dy.value.detach()});
  return out;
}

/// Elements received forward and backward where the table is gathered over x.
int64_t when_gathered(int64_t q, const Sizes& e) {
  return 2 * (q - 1) * (e.b * e.s + e.v) * e.h / (q * q * q);
}
/// And where every rank looks up the tokens of all.
int64_t when_summed(int64_t q, const Sizes& e) {
  return 2 * (q * q - 1) * e.b * e.s * e.h / (q * q * q);
}

TEST(EmbeddingOfACube, IsThatOfOneRankHoweverItMoves) {
  const Mesh alone({}, 0);
  for (const Sizes& e : {Sizes{4, 3, 6, 8}, Sizes{4, 3, 6, 7}, Sizes{4, 3, 6, 24},
                         Sizes{4, 3, 6, 97}, Sizes{8, 1, 2, 3}}) {
    const Outcome expected = look_up(*make_serial(alone), e, at::kCPU);
    tests::run_ranks(8, [&](Communicator& world) {
      MeshRank me(cube(2), world);
      const Outcome mine = look_up(*make_cube_3d(me.mesh), e, at::kCPU);
      const int64_t received = me.received();
      const Param y = tests::shard("dy", {e.b, e.s, e.h}, Layout{{{"x", "y"}, {}, {"z"}}}, me.mesh);
      const at::NoGradGuard no_grad;
      EXPECT_TRUE(tests::is_same(gather_param(y, mine.y.detach(), me.mesh), expected.y)) << e.v;
      const Tensor dtable = gather_param(mine.table, mine.table.value.grad(), me.mesh);
      EXPECT_LT(tests::relative_error(dtable, expected.table.value.grad()), 1e-14) << e.v;
      const int64_t rows = padded(e.v, {"y", "x"}, me.mesh);
      const Sizes whole{e.b, e.s, e.h, rows};
      EXPECT_EQ(received / 8, std::min(when_gathered(2, whole), when_summed(2, whole))) << e.v;
    });
  }
}

/// Elements that rank 0 of q^3 simulated ranks receives.
int64_t received(int64_t q, const Sizes& e) {
  SimulatedWorld world(static_cast<int>(q * q * q));
  const auto first = world.communicator(0);
  MeshRank me(cube(q), *first);
  look_up(*make_cube_3d(me.mesh), e, at::kMeta);
  return me.received() / 8;
}

TEST(EmbeddingOfACube, NeverMovesMoreThanTheOtherWay) {
  for (const int64_t q : {2, 3, 5}) {
    const int64_t tokens = q * q * 4;
    for (const int64_t rows :
         {tokens / 4, tokens, q * tokens - q * q, q * tokens, q * tokens + q * q, 9 * q * tokens}) {
      const Sizes e{q * q, 4, q, rows};
      EXPECT_EQ(received(q, e), std::min(when_gathered(q, e), when_summed(q, e)))
          << q << ", " << rows;
    }
  }
}

// At V = q T both cost the same; the choice changes there and nowhere else.
TEST(EmbeddingOfACube, ChangesItsWayWhereBothCostTheSame) {
  const Sizes at{9, 4, 3, 3 * 36};
  EXPECT_EQ(when_gathered(3, at), when_summed(3, at));
  EXPECT_LT(received(3, {9, 4, 3, 3 * 36 - 9}), received(3, at));
  EXPECT_EQ(received(3, {9, 4, 3, 3 * 36 + 9}), received(3, at));
}

}  // namespace
}  // namespace kuafu
