// SPDX-License-Identifier: Apache-2.0
//
// The three products of every scheme against the serial ones, and their traffic against cost().
// Letters: B batch, S sequence, K in, M out.

#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "tests/parallel/tensor/schemes.h"
#include "tests/support/ranks.h"
#include "tests/support/tensors.h"

namespace kuafu {
namespace {

using tests::is_same;
using tests::kEps;
using tests::MeshRank;
using tests::relative_error;
using tests::SchemeCase;

struct Extents {
  int64_t b, s, k, m;
};
// What every grid of the table divides; the second has shards of width 4 and of one row.
constexpr Extents kExtents[] = {{36, 12, 36, 72}, {36, 6, 36, 36}};

Stream in_stream(Role r) { return r == Role::kExpand ? Stream::kOuter : Stream::kInner; }
Stream out_stream(Role r) { return r == Role::kExpand ? Stream::kInner : Stream::kOuter; }

/// One linear layer's tensors on one rank.
struct Linear {
  Linear(const TensorParallel& tp, const Extents& e, Role role)
      : r(role),
        x(tests::shard("x", {e.b, e.s, e.k}, tp.activation(in_stream(r)), tp.mesh())),
        w(tests::shard("w", {e.k, e.m}, tp.weight(r), tp.mesh(),
                       grad_axes(tp.activation(in_stream(r)), tp.weight(r)))),
        dy(tests::shard("dy", {e.b, e.s, e.m}, tp.activation(out_stream(r)), tp.mesh())) {}

  Role r;
  Param x, w, dy;
  at::NoGradGuard no_grad;  // schemes are never called under recording
};

/// Whole results, gradients summed over the ranks they are partial over.
struct Whole {
  Tensor y, dx, dw;
};
Whole run_linear(const TensorParallel& tp, const Extents& e, Role r) {
  const Linear l(tp, e, r);
  const Tensor y = tp.forward(l.x.value, l.w.value, r);
  const LinearGrads g = tp.backward(l.x.value, l.w.value, l.dy.value, r);
  tests::sum_over(tp.mesh(), l.w.grad_axes, g.dw);
  return {gather_param(l.dy, y, tp.mesh()), gather_param(l.x, g.dx, tp.mesh()),
          gather_param(l.w, g.dw, tp.mesh())};
}

/// A sum of `length` products in two orders differs by at most 2 (length - 1) eps times the sum of
/// their absolute values [Higham, Accuracy and Stability, section 4.2]; for normal numbers that sum
/// is below 4 times the largest result here, which relative_error divides by.
double tolerance(int64_t length) { return 8 * kEps * static_cast<double>(length); }

class TensorSchemes : public testing::TestWithParam<SchemeCase> {
 protected:
  /// On every rank of the case: f(scheme, rank).
  void on_ranks(const std::function<void(const TensorParallel&, MeshRank&)>& f) const {
    tests::run_ranks(GetParam().ranks(), [&](Communicator& world) {
      MeshRank me(GetParam().axes(), world);
      const auto scheme = GetParam().make(me.mesh);
      f(*scheme, me);
    });
  }
};

TEST_P(TensorSchemes, MatchSerialProducts) {
  const Mesh alone({}, 0);
  const auto serial = make_serial(alone);
  for (const Extents& e : kExtents) {
    for (const Role r : {Role::kExpand, Role::kContract}) {
      const Whole expected = run_linear(*serial, e, r);
      on_ranks([&](const TensorParallel& tp, MeshRank& me) {
        const Whole mine = run_linear(tp, e, r);
        EXPECT_LE(relative_error(mine.y, expected.y), tolerance(e.k)) << me.mesh.describe();
        EXPECT_LE(relative_error(mine.dx, expected.dx), tolerance(e.m)) << me.mesh.describe();
        EXPECT_LE(relative_error(mine.dw, expected.dw), tolerance(e.b * e.s)) << me.mesh.describe();
      });
    }
  }
}

TEST_P(TensorSchemes, GradientsApartEqualGradientsTogether) {
  for (const Role r : {Role::kExpand, Role::kContract}) {
    on_ranks([&](const TensorParallel& tp, MeshRank&) {
      const Linear l(tp, kExtents[0], r);
      const LinearGrads both = tp.backward(l.x.value, l.w.value, l.dy.value, r);
      EXPECT_TRUE(is_same(tp.input_grad(l.dy.value, l.w.value, r), both.dx));
      EXPECT_TRUE(is_same(tp.weight_grad(l.x.value, l.dy.value, r), both.dw));
    });
  }
}

TEST_P(TensorSchemes, TwoRunsGiveTheSameBits) {
  on_ranks([&](const TensorParallel& tp, MeshRank&) {
    const Linear l(tp, kExtents[0], Role::kContract);
    const Tensor once = tp.forward(l.x.value, l.w.value, l.r);
    EXPECT_TRUE(is_same(tp.forward(l.x.value, l.w.value, l.r), once));
  });
}

TEST_P(TensorSchemes, LeaveTheirInputsUntouched) {
  for (const Role r : {Role::kExpand, Role::kContract}) {
    on_ranks([&](const TensorParallel& tp, MeshRank&) {
      const Linear l(tp, kExtents[1], r);
      const Tensor x = l.x.value.clone(), w = l.w.value.clone(), dy = l.dy.value.clone();
      tp.forward(l.x.value, l.w.value, r);
      tp.backward(l.x.value, l.w.value, l.dy.value, r);
      EXPECT_TRUE(is_same(l.x.value, x) && is_same(l.w.value, w) && is_same(l.dy.value, dy));
    });
  }
}

TEST_P(TensorSchemes, ReceiveExactlyTheirCost) {
  for (const Extents& e : kExtents) {
    for (const Role r : {Role::kExpand, Role::kContract}) {
      on_ranks([&](const TensorParallel& tp, MeshRank& me) {
        const Linear l(tp, e, r);
        const Cost cost = tp.cost({l.x.value.numel(), l.w.value.numel(), l.dy.value.numel()}, r);
        const auto elements = [&](const auto& product) {
          me.ledger.clear();
          product();
          return me.received() / 8;
        };
        const Tensor &x = l.x.value, &w = l.w.value, &dy = l.dy.value;
        EXPECT_EQ(elements([&] { tp.forward(x, w, r); }), cost.forward) << me.mesh.describe();
        EXPECT_EQ(elements([&] { tp.backward(x, w, dy, r); }), cost.backward) << me.mesh.describe();
        EXPECT_EQ(elements([&] { tp.input_grad(dy, w, r); }), cost.input_grad);
        EXPECT_EQ(elements([&] { tp.weight_grad(x, dy, r); }), cost.weight_grad);
      });
    }
  }
}

TEST_P(TensorSchemes, ScatterThenGatherIsExact) {
  const Extents& e = kExtents[0];
  on_ranks([&](const TensorParallel& tp, MeshRank&) {
    const at::NoGradGuard no_grad;
    const Mesh alone({}, 0);
    const auto round_trip = [&](const Shape& global, const Layout& layout) {
      const Layout whole = Layout::replicated(global.size());
      const Tensor expected = tests::shard("p", global, whole, alone).value;
      const Param p = tests::shard("p", global, layout, tp.mesh());
      EXPECT_TRUE(is_same(gather_param(p, p.value, tp.mesh()), expected));
      EXPECT_TRUE(is_same(scatter_param(p, expected, tp.mesh()), p.value));
    };
    for (const Role r : {Role::kExpand, Role::kContract}) round_trip({e.k, e.m}, tp.weight(r));
    for (const Stream s : {Stream::kOuter, Stream::kInner}) {
      round_trip({e.b, e.s, e.k}, tp.activation(s));
      round_trip({e.k}, {{tp.activation(s).dims[2]}});
    }
    round_trip({29, e.k}, tp.weight(Role::kContract));  // padded
  });
}

INSTANTIATE_TEST_SUITE_P(All, TensorSchemes, testing::ValuesIn(tests::scheme_cases()),
                         [](const auto& info) { return tests::name_of(info.param); });

TEST(Tesseract, NeedsASquareGrid) {
  const Mesh mesh({{"dep", 1}, {"row", 2}, {"col", 3}}, 0);
  EXPECT_THROW(make_tesseract_2p5d(mesh), ConfigError);
}

// The paper's table: for a fixed rank count a deeper grid moves less.
TEST(Tesseract, MovesLessWhenDeeper) {
  const auto forward = [](int64_t side, int64_t depth) {
    const Mesh mesh({{"dep", depth}, {"row", side}, {"col", side}}, 0);
    const int64_t ranks = side * side * depth;
    return make_tesseract_2p5d(mesh)
        ->cost({64 * 128 * 1024 / ranks, 1024 * 1024 / (side * side), 0}, Role::kExpand)
        .forward;
  };
  EXPECT_LT(forward(4, 4), forward(8, 1));
}

}  // namespace
}  // namespace kuafu
