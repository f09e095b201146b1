// SPDX-License-Identifier: Apache-2.0
//
// A table that several axes shard is gathered or looked up in parts, whichever moves less.
// Letters: q side of a cube, T = B S tokens.

#include "kuafu/parallel/tensor/embedding.h"

#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cmath>

#include "kuafu/comm/simulated.h"
#include "kuafu/meter/book.h"
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
int ranks_of(int64_t q) { return static_cast<int>(q * q * q); }

/// Shards of the output and of the table's gradient.
struct Outcome {
  Param table;
  Tensor y, dtable;
};

Outcome look_up(const TensorParallel& tp, const Sizes& e, at::Device device,
                at::ScalarType dtype = at::kDouble) {
  const CategoryScope scope(Category::kActivation);
  const Layout layout = tp.weight(Role::kContract);
  const TokenGrid grid{tp.activation(Stream::kOuter), e.b, e.s};
  const auto part = [&](const char* name, const Shape& global, const Layout& own) {
    return tests::shard(name, global, own, tp.mesh(), {}, device);
  };
  Outcome out{part("table", {e.v, e.h}, layout), {}, {}};
  const Tensor table = out.table.value.detach().to(dtype).requires_grad_();
  const Tensor ids = tests::ids(e.b, e.s, e.v, 1, device);
  out.y = embedding(tp.mesh(), ids, table, layout, grid);
  const Tensor dy = part("dy", {e.b, e.s, e.h}, grid.activation).value.detach().to(dtype);
  torch::autograd::backward({out.y}, {dy});
  out.y = out.y.detach();
  out.dtable = table.grad();
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

/// On q^3 thread ranks the output has the bits of one rank, and the gradient differs by no more
/// than sums of up to T numbers of type `dtype` in another order do.
void expect_equals_one_rank(int64_t q, const Sizes& e, at::ScalarType dtype, double eps) {
  const Mesh alone({}, 0);
  const Outcome expected = look_up(*make_serial(alone), e, at::kCPU, dtype);
  const double limit = eps * static_cast<double>(2 * e.b * e.s);
  tests::run_ranks(ranks_of(q), [&](Communicator& world) {
    MeshRank me(cube(q), world);
    const Outcome mine = look_up(*make_cube_3d(me.mesh), e, at::kCPU, dtype);
    const auto received = me.received() / static_cast<int64_t>(at::elementSize(dtype));
    const at::NoGradGuard no_grad;
    const Layout outer{{{"x", "y"}, {}, {"z"}}};
    const Param y = tests::shard("y", {e.b, e.s, e.h}, outer, me.mesh);
    EXPECT_TRUE(tests::is_same(gather_param(y, mine.y, me.mesh), expected.y)) << e.v;
    const Tensor dtable = gather_param(mine.table, mine.dtable, me.mesh);
    EXPECT_LE(tests::relative_error(dtable, expected.dtable), limit) << e.v;
    const Sizes whole{e.b, e.s, e.h, padded(e.v, {"y", "x"}, me.mesh)};
    EXPECT_EQ(received, std::min(when_gathered(q, whole), when_summed(q, whole))) << e.v;
  });
}

// Vocabularies that divide and that do not, smaller than the ranks that share them, gathered (up to
// q T rows) and not.
TEST(EmbeddingOfACube, IsThatOfOneRankOnEight) {
  for (const Sizes& e : {Sizes{4, 3, 6, 8}, Sizes{4, 3, 6, 7}, Sizes{4, 3, 6, 24},
                         Sizes{4, 3, 6, 97}, Sizes{8, 1, 2, 3}}) {
    expect_equals_one_rank(2, e, at::kDouble, tests::kEps);
    expect_equals_one_rank(2, e, at::kFloat, 0x1.0p-23);
  }
}

TEST(EmbeddingOfACube, IsThatOfOneRankOnTwentySeven) {
  for (const Sizes& e :
       {Sizes{9, 2, 6, 5}, Sizes{9, 2, 6, 50}, Sizes{9, 2, 6, 54}, Sizes{9, 2, 3, 101}}) {
    expect_equals_one_rank(3, e, at::kDouble, tests::kEps);
  }
  expect_equals_one_rank(3, {9, 2, 6, 50}, at::kFloat, 0x1.0p-23);
}

// Axes that shard tokens and no vocabulary may stand outside, between and inside those that do.
TEST(Embedding, LeavesEveryRankItsOwnTokensWhateverTheOrderOfAxes) {
  const int64_t b = 8, s = 8, h = 4, v = 16;
  const Tensor ids = tests::ids(b, s, v, 1);
  const Mesh alone({}, 0);
  const Param whole = tests::shard("table", {v, h}, Layout{{{}, {}}}, alone);
  const Tensor expected = at::embedding(whole.value.detach(), ids);
  const std::vector<std::pair<Layout, Layout>> cases = {
      {{{{}, {"x", "y"}, {}}}, {{{"x", "y"}, {}}}},          // gathered over y, summed over x
      {{{{}, {"y", "x"}, {}}}, {{{"x", "y"}, {}}}},          // and the other way round
      {{{{"x", "y", "z"}, {}, {}}}, {{{"y"}, {}}}},          // between two that are not summed
      {{{{"x"}, {"y", "z"}, {}}}, {{{"x", "y"}, {}}}},       // in both dims
      {{{{"z", "x"}, {"y"}, {}}}, {{{"x", "z", "y"}, {}}}},  // all three
  };
  for (const auto& [activation, table_layout] : cases) {
    tests::run_ranks(8, [&, activation = activation, layout = table_layout](Communicator& world) {
      MeshRank me(cube(2), world);
      const Param table = tests::shard("table", {v, h}, layout, me.mesh);
      const TokenGrid grid{activation, b, s};
      const at::NoGradGuard no_grad;
      const Tensor y = embedding(me.mesh, ids, table.value, layout, grid);
      const Slice own = local_slice(me.mesh, grid);
      const Tensor mine =
          expected.narrow(0, own.offset[0], own.extent[0]).narrow(1, own.offset[1], own.extent[1]);
      EXPECT_TRUE(at::equal(y, mine)) << to_string(activation, "BSH") << ", rank " << world.rank();
    });
  }
}

TEST(Embedding, TakesUnevenPartsOfASequenceBesideSummedSamples) {
  const int64_t b = 4, s = 7, h = 4, v = 16;
  const Tensor ids = tests::ids(b, s, v, 1);
  const Param whole = tests::shard("table", {v, h}, Layout{{{}, {}}}, Mesh({}, 0));
  const Tensor expected = at::embedding(whole.value.detach(), ids);
  tests::run_ranks(6, [&](Communicator& world) {
    MeshRank me({{"sequence", 3}, {"x", 2}}, world);
    const Param table = tests::shard("table", {v, h}, Layout{{{"x"}, {}}}, me.mesh);
    const TokenGrid grid{{{{"x"}, {"sequence"}, {}}}, b, s};
    const at::NoGradGuard no_grad;
    const Tensor y = embedding(me.mesh, ids, table.value, table.layout, grid);
    const Slice own = local_slice(me.mesh, grid);
    EXPECT_TRUE(at::equal(
        y,
        expected.narrow(0, own.offset[0], own.extent[0]).narrow(1, own.offset[1], own.extent[1])));
  });
}

/// What a rank books.
struct Counts {
  std::map<std::string, AxisLedger> axes;
  int64_t flops = 0, peak = 0;
  BytesByCategory at_peak{};
  bool operator==(const Counts&) const = default;
};

Counts count(Communicator& world, int64_t q, const Sizes& e, at::Device device) {
  RankBook book(world.rank());
  const BookScope booked(&book);
  MeshRank me(cube(q), world);
  look_up(*make_cube_3d(me.mesh), e, device);
  return {me.ledger.axes(), book.flops(), book.peak(), book.at_peak()};
}

TEST(EmbeddingOfACube, CountsTheSameSimulated) {
  for (const auto& [q, e] : {std::pair{2, Sizes{4, 3, 6, 23}}, std::pair{2, Sizes{4, 3, 6, 97}},
                             std::pair{3, Sizes{9, 2, 6, 50}}, std::pair{3, Sizes{9, 2, 3, 101}}}) {
    tests::run_ranks(ranks_of(q), [&, q = q, e = e](Communicator& world) {
      SimulatedWorld simulated(ranks_of(q));  // its ranks run one at a time
      const auto twin = simulated.communicator(world.rank());
      const Counts expected = count(*twin, q, e, at::kMeta);
      EXPECT_GT(expected.peak, 0);
      EXPECT_EQ(count(world, q, e, at::kCPU), expected) << e.v << ", rank " << world.rank();
    });
  }
}

/// Elements that rank 0 of q^3 simulated ranks receives.
int64_t received(int64_t q, const Sizes& e) {
  SimulatedWorld world(ranks_of(q));
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

// A ring's parts of 5 elements on 3 ranks: what a rank receives depends on which it is.
TEST(EmbeddingCost, OfOneDimensionIsAnAllReduceForwardOnly) {
  const std::vector<Cost> expected = {{.forward = 6}, {.forward = 7}, {.forward = 7}};
  for (int rank = 0; rank < 3; ++rank) {
    const Mesh mesh({{"tensor", 3}}, rank);
    const auto tp = make_megatron_1d(mesh);
    const TokenGrid grid{tp->activation(Stream::kOuter), 1, 1};
    EXPECT_EQ(embedding_cost(mesh, {7, 5}, tp->weight(Role::kContract), grid), expected[rank])
        << rank;
  }
}

// log(sum) + (largest - target), in this order: after log(sum) + largest nothing is left of 2.5e-6.
TEST(CrossEntropy, OfASureTargetIsNotRoundedToItsLogit) {
  const Mesh alone({}, 0);
  const auto tp = make_serial(alone);
  const TokenGrid grid{tp->activation(Stream::kInner), 1, 1};
  const Tensor logits = at::full({1, 1, 4}, 986.0, at::kFloat);
  logits.select(2, 2).fill_(1000.0);
  const Tensor target = at::full({1, 1}, 2, at::kLong);
  const double loss = cross_entropy(alone, logits, target, 1, 4, grid).item<double>();
  EXPECT_NEAR(loss, std::log1p(3 * std::exp(-14.0)), 0x1p-23);
}

}  // namespace
}  // namespace kuafu
