// SPDX-License-Identifier: Apache-2.0
//
// Own ops against the same mathematics in plain ATen, differentiated by LibTorch, in f64.
// Tolerances are c eps K: K the longest sum, values of magnitude one, c covers a few roundings
// each.
#include "kuafu/tensor/ops.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <cmath>

#include "kuafu/base/errors.h"
#include "kuafu/comm/worlds.h"
#include "kuafu/meter/book.h"
#include "kuafu/meter/flops.h"
#include "kuafu/meter/op_kinds.h"
#include "tests/tensor/support.h"

namespace kuafu {
namespace {

// MKL splits so long a sum where it has two threads (a machine of one core shows nothing).
TEST(ThreadRanks, MultiplyOnOneThreadFromTheirFirstProductOn) {
  const auto options = at::TensorOptions(at::kDouble);
  const Tensor a = at::linspace(-1, 1, 3510 * 7, options).sin().view({3510, 7});
  const Tensor b = at::linspace(0, 3, 3510 * 5, options).cos().view({3510, 5});
  const Tensor expected = at::mm(a.t(), b);
  run_on_threads(3, [&](Communicator& world) {
    EXPECT_TRUE(at::equal(at::mm(a.t(), b), expected)) << "rank " << world.rank();
  });
}

using testing::closed_form;
using testing::expect_close;
using testing::kEps;
using testing::tolerance;

TEST(Matmul, TakesEveryCombinationOfTransposedViews) {
  const Tensor a = closed_form({5, 7}, 1), b = closed_form({7, 3}, 2);
  const Tensor at = a.t().contiguous().t(), bt = b.t().contiguous().t();
  const Tensor expected = at::matmul(a, b);
  for (const Tensor& x : {a, at}) {
    for (const Tensor& y : {b, bt}) expect_close(ops::matmul(x, y), expected, tolerance(7));
  }
  const Tensor strided = closed_form({5, 14}, 3).slice(1, 0, 14, 2);
  expect_close(ops::matmul(strided, b), at::matmul(strided.contiguous(), b), tolerance(7));
  EXPECT_THROW(ops::matmul(a, a), InternalError);
}

TEST(Matmul, AddsBiasAndAccumulates) {
  const Tensor a = closed_form({5, 7}, 1), b = closed_form({7, 3}, 2), bias = closed_form({3}, 3);
  expect_close(ops::matmul_bias(a, b, bias), at::matmul(a, b) + bias, tolerance(7));
  Tensor into = closed_form({5, 3}, 4);
  const Tensor expected = into + at::matmul(a, b);
  ops::matmul_add(into, a, b);
  expect_close(into, expected, tolerance(8));
}

TEST(LayerNorm, EqualsItsDefinitionWithGradients) {
  const int64_t h = 33;
  const Tensor x = closed_form({2, 5, h}, 1).requires_grad_(true);
  const Tensor w = closed_form({h}, 2).requires_grad_(true),
               b = closed_form({h}, 3).requires_grad_(true);
  const Tensor dy = closed_form({2, 5, h}, 4);
  const Tensor mean = x.mean({2}, true), var = (x - mean).square().mean({2}, true);
  const Tensor y = (x - mean) / (var + 1e-5).sqrt() * w + b;
  y.backward(dy);

  const at::NoGradGuard no_grad;
  const ops::NormOut out = ops::layer_norm(x, w, b, 1e-5);
  expect_close(out.y, y, tolerance(h), "y");
  expect_close(out.mean, mean.reshape(-1), tolerance(h), "mean");
  const ops::NormGrads g = ops::layer_norm_backward(dy, x, out.mean, out.rstd, w);
  expect_close(g.dx, x.grad(), tolerance(2 * h), "dx");
  expect_close(g.dweight, w.grad(), tolerance(2 * h), "dweight");
  expect_close(g.dbias, b.grad(), tolerance(h), "dbias");
}

TEST(LayerNorm, KeepsWideStatisticsOfHalfPrecision) {
  const Tensor x = closed_form({4, 64}, 1, at::kBFloat16), w = at::ones({64}, at::kBFloat16);
  const ops::NormOut out = ops::layer_norm(x, w, at::zeros_like(w), 1e-5);
  EXPECT_EQ(out.mean.scalar_type(), at::kFloat);
  EXPECT_EQ(out.y.scalar_type(), at::kBFloat16);
  expect_close(out.mean, x.to(at::kDouble).mean({1}), 1e-6);  // f32 sums of 64 terms
  const ops::NormGrads g = ops::layer_norm_backward(x, x, out.mean, out.rstd, w);
  EXPECT_EQ(g.dweight.scalar_type(), at::kBFloat16);
}

/// Whether t has the bits of `norm` + `residual`, added in the accumulator type and rounded once.
void expect_sum(const Tensor& t, const Tensor& norm, const Tensor& residual) {
  if (t.scalar_type() != at::kBFloat16) {
    EXPECT_TRUE(at::equal(t, norm + residual)) << t.scalar_type();
  } else {  // `norm` was rounded too; values up to 8
    expect_close(t, norm.to(at::kFloat) + residual.to(at::kFloat), 8 * 0x1.0p-8);
  }
}

TEST(LayerNorm, AddsTheGradientThatPassesItByAndBooksItsBytes) {
  for (const at::ScalarType type : {at::kDouble, at::kFloat, at::kBFloat16}) {
    for (const int64_t h : {1, 16, 37}) {
      const Tensor x = closed_form({3, 5, h}, 1, type), w = closed_form({h}, 2, type);
      const Tensor dy = closed_form({3, 5, h}, 3, type), residual = closed_form({3, 5, h}, 4, type);
      const ops::NormOut out = ops::layer_norm(x, w, w, 1e-1);
      RankBook books[] = {RankBook(0), RankBook(1)};
      ops::NormGrads plain, sum;
      {
        const BookScope scope(&books[0]);
        plain = ops::layer_norm_backward(dy, x, out.mean, out.rstd, w);
      }
      {
        const BookScope scope(&books[1]);
        sum = ops::layer_norm_backward(dy, x, out.mean, out.rstd, w, residual);
      }
      expect_sum(sum.dx, plain.dx, residual);
      EXPECT_TRUE(at::equal(sum.dweight, plain.dweight));
      EXPECT_TRUE(at::equal(sum.dbias, plain.dbias));
      EXPECT_EQ(books[1].bytes_moved() - books[0].bytes_moved(),
                static_cast<int64_t>(residual.nbytes()));
      EXPECT_EQ(books[1].peak(), books[0].peak());
    }
  }
}

// Rounded a few times in f32, the sums of h or of 15 terms in f64.
TEST(LayerNorm, HasGradientsOfF32ThatAreRoundedAFewTimes) {
  const double eps = 0x1.0p-23;
  for (const int64_t h : {1, 33, 1024}) {
    const Tensor x = closed_form({3, 5, h}, 1), dy = closed_form({3, 5, h}, 2);
    const Tensor w = closed_form({h}, 3), f32 = x.to(at::kFloat);
    const ops::NormOut out = ops::layer_norm(f32, w.to(at::kFloat), w.to(at::kFloat), 1e-1);
    const ops::NormGrads g =
        ops::layer_norm_backward(dy.to(at::kFloat), f32, out.mean, out.rstd, w.to(at::kFloat));
    const ops::NormGrads wide =
        ops::layer_norm_backward(dy, x, out.mean.to(at::kDouble), out.rstd.to(at::kDouble), w);
    // rstd is at most 1 / sqrt(0.1); xhat, w and dy are below 4.
    expect_close(g.dx, wide.dx, 8 * 4 * 4 * 3.2 * eps, "dx");
    expect_close(g.dweight, wide.dweight, 15 * 4 * 4 * 4 * eps, "dweight");
    expect_close(g.dbias, wide.dbias, 15 * 4 * eps, "dbias");
  }
}

TEST(SumRows, AddsEveryRow) {
  for (const at::ScalarType type : {at::kDouble, at::kFloat, at::kBFloat16}) {
    for (const int64_t columns : {1, 7, 64}) {
      const Tensor x = closed_form({2, 301, columns}, 1, type);
      const Tensor sum = ops::sum_rows(x);
      EXPECT_EQ(sum.scalar_type(), type);
      const Tensor expected = x.to(at::kDouble).view({602, columns}).sum(0);
      // 602 terms of at most one. In narrower types eight rows at a time in f32, and one rounding of a sum.
      const double sizes = x.to(at::kDouble).abs().view({602, columns}).sum(0).max().item<double>();
      const double largest = expected.abs().max().item<double>();
      const double eps = type == at::kFloat ? 0x1.0p-24 : 0x1.0p-9;
      expect_close(sum, expected,
                   type == at::kDouble ? 602 * 602 * kEps : 7 * 0x1.0p-24 * sizes + eps * largest);
    }
  }
  EXPECT_TRUE(at::equal(ops::sum_rows(at::ones({0, 3}, at::kFloat)), at::zeros({3}, at::kFloat)));
  const Tensor cut = closed_form({6, 9}, 2).t();  // columns of another matrix
  EXPECT_TRUE(at::equal(ops::sum_rows(cut), ops::sum_rows(cut.contiguous())));
}

TEST(Gelu, IsTheTanhFormWithItsGradient) {
  const Tensor x = (closed_form({4, 11}, 1) * 4).requires_grad_(true);
  x.retain_grad();
  const Tensor y = 0.5 * x * (1 + at::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x.pow(3))));
  const Tensor dy = closed_form({4, 11}, 2);
  y.backward(dy);
  const at::NoGradGuard no_grad;
  expect_close(ops::gelu(x), y, tolerance(8));
  expect_close(ops::gelu_backward(dy, x), x.grad(), tolerance(32));
}

TEST(GeluExact, IsTheErrorFunctionsWithItsGradient) {
  for (const at::ScalarType type : {at::kDouble, at::kFloat, at::kBFloat16}) {
    const Tensor x = (closed_form({4, 11}, 1) * 4).to(type), dy = closed_form({4, 11}, 2, type);
    const Tensor wide = x.to(at::kDouble).requires_grad_(true);
    const Tensor y = 0.5 * wide * (1 + at::erf(wide / std::sqrt(2.0)));
    y.backward(dy.to(at::kDouble));
    const at::NoGradGuard no_grad;
    const double eps = type == at::kDouble ? kEps : type == at::kFloat ? 0x1.0p-23 : 0x1.0p-8;
    expect_close(ops::gelu_exact(x), y, 8 * 4 * eps);
    expect_close(ops::gelu_exact_backward(dy, x), wide.grad(), 8 * 4 * eps);
    EXPECT_EQ(ops::gelu_exact(x).scalar_type(), type);
  }
}

TEST(Relu, IsWhatLiesAboveZeroWithItsGradientByTheOutput) {
  const Tensor x = at::tensor({-2.0, -0.0, 0.0, 1e-300, 3.0}, at::kDouble);
  const Tensor dy = at::tensor({1.0, 2.0, 3.0, 4.0, 5.0}, at::kDouble), y = ops::relu(x);
  EXPECT_TRUE(at::equal(y, at::tensor({0.0, 0.0, 0.0, 1e-300, 3.0}, at::kDouble)));
  EXPECT_TRUE(
      at::equal(ops::relu_backward(dy, y), at::tensor({0.0, 0.0, 0.0, 4.0, 5.0}, at::kDouble)));
}

TEST(RmsNorm, EqualsItsDefinitionWithGradients) {
  const int64_t h = 33;
  const Tensor x = closed_form({2, 5, h}, 1).requires_grad_(true);
  const Tensor w = closed_form({h}, 2).requires_grad_(true), dy = closed_form({2, 5, h}, 4);
  const Tensor rstd = (x.square().mean({2}, true) + 1e-5).rsqrt();
  const Tensor y = x * rstd * w;
  y.backward(dy);

  const at::NoGradGuard no_grad;
  const ops::RmsOut out = ops::rms_norm(x, w, 1e-5);
  expect_close(out.y, y, tolerance(h), "y");
  expect_close(out.rstd, rstd.reshape(-1), tolerance(h), "rstd");
  const ops::RmsGrads g = ops::rms_norm_backward(dy, x, out.rstd, w);
  expect_close(g.dx, x.grad(), tolerance(2 * h), "dx");
  expect_close(g.dweight, w.grad(), tolerance(2 * h), "dweight");
}

TEST(RmsNorm, KeepsWideStatisticsOfHalfPrecision) {
  const Tensor x = closed_form({4, 64}, 1, at::kBFloat16), w = closed_form({64}, 2, at::kBFloat16);
  const ops::RmsOut out = ops::rms_norm(x, w, 1e-5);
  EXPECT_EQ(out.rstd.scalar_type(), at::kFloat);
  EXPECT_EQ(out.y.scalar_type(), at::kBFloat16);
  const Tensor wide = x.to(at::kDouble), rstd = (wide.square().mean({1}, true) + 1e-5).rsqrt();
  expect_close(out.y, wide * rstd * w.to(at::kDouble), 2 * 0x1.0p-8);  // results < 2, rounded once
  const ops::RmsGrads g = ops::rms_norm_backward(x, x, out.rstd, w);
  EXPECT_EQ(g.dweight.scalar_type(), at::kBFloat16);
}

TEST(RmsNorm, AddsTheGradientThatPassesItBy) {
  for (const at::ScalarType type : {at::kDouble, at::kFloat, at::kBFloat16}) {
    for (const int64_t h : {1, 16, 37}) {
      const Tensor x = closed_form({3, 5, h}, 1, type), w = closed_form({h}, 2, type);
      const Tensor dy = closed_form({3, 5, h}, 3, type), residual = closed_form({3, 5, h}, 4, type);
      const ops::RmsOut out = ops::rms_norm(x, w, 1e-1);
      const ops::RmsGrads plain = ops::rms_norm_backward(dy, x, out.rstd, w);
      const ops::RmsGrads sum = ops::rms_norm_backward(dy, x, out.rstd, w, residual);
      expect_sum(sum.dx, plain.dx, residual);
      EXPECT_TRUE(at::equal(sum.dweight, plain.dweight));
    }
  }
}

TEST(Swiglu, IsSiluOfEvenColumnsTimesOddOnesWithItsGradient) {
  for (const at::ScalarType type : {at::kDouble, at::kFloat, at::kBFloat16}) {
    const Tensor x = (closed_form({4, 22}, 1) * 4).to(type), dy = closed_form({4, 11}, 2, type);
    const Tensor wide = x.to(at::kDouble).requires_grad_(true);
    const Tensor y = at::silu(wide.slice(1, 0, 22, 2)) * wide.slice(1, 1, 22, 2);
    y.backward(dy.to(at::kDouble));
    const at::NoGradGuard no_grad;
    // Values up to 16, a few roundings each of the accumulator, one of the type.
    const double eps = type == at::kDouble ? kEps : type == at::kFloat ? 0x1.0p-23 : 0x1.0p-8;
    expect_close(ops::swiglu(x), y, 8 * 16 * eps);
    expect_close(ops::swiglu_backward(dy, x), wide.grad(), 8 * 16 * eps);
    EXPECT_EQ(ops::swiglu(x).scalar_type(), type);
  }
  EXPECT_THROW(ops::swiglu(closed_form({4, 3}, 1)), InternalError);
}

TEST(AdamW, MovesOneStepByItsFormula) {
  Tensor w = closed_form({7}, 1), m = closed_form({7}, 3) * 0.1, v = closed_form({7}, 4).square();
  const Tensor g = closed_form({7}, 2);
  const Tensor m1 = 0.8 * m + 0.2 * g, v1 = 0.95 * v + 0.05 * g * g;
  const Tensor expected =
      w - 0.1 * 0.3 * w -
      0.1 * (m1 / (1 - std::pow(0.8, 3))) / ((v1 / (1 - std::pow(0.95, 3))).sqrt() + 1e-8);
  ops::adamw(w, g, m, v, {0.1, 0.8, 0.95, 1e-8, 0.3, 3});
  expect_close(w, expected, tolerance(16));
  expect_close(m, m1, tolerance(2));
  expect_close(v, v1, tolerance(2));
}

TEST(Sgd, MovesOneStepByItsFormula) {
  Tensor w = closed_form({7}, 1), u = closed_form({7}, 3);
  const Tensor g = closed_form({7}, 2);
  const Tensor u1 = 0.9 * u + g + 0.01 * w, expected = w - 0.1 * u1;
  ops::sgd(w, g, u, {0.1, 0.9, 0.01});
  expect_close(u, u1, tolerance(3));
  expect_close(w, expected, tolerance(4));
}

TEST(SumOfSquares, IsAnF64ScalarWhateverTheStrides) {
  const Tensor x = testing::whole_numbers({6, 5}, 1, at::kFloat);
  const Tensor sum = ops::sum_of_squares(x.t());
  EXPECT_EQ(sum.scalar_type(), at::kDouble);
  EXPECT_EQ(sum.dim(), 0);
  EXPECT_EQ(sum.item<double>(), x.to(at::kDouble).square().sum().item<double>());
}

TEST(Work, IsBookedByFormula) {
  RankBook book(0);
  const BookScope scope(&book);
  const Tensor a = closed_form({5, 7}, 1), b = closed_form({7, 3}, 2);
  ops::matmul(a, b);
  EXPECT_EQ(book.flops(), 2 * 5 * 7 * 3);
  EXPECT_EQ(book.bytes_moved(), (35 + 21 + 15) * 8);
  book.restart();
  const Tensor q = closed_form({2, 3, 8, 4}, 1);
  const ops::AttentionOut out = ops::attention(q, q, q, true);
  ops::attention_backward(q, q, q, q, out, true);
  EXPECT_EQ(book.flops(), 3 * flops::attention({2, 3, 8, 8, 4, true}));
  book.restart();
  ops::gelu(a);
  EXPECT_EQ(book.flops(), 0);
  EXPECT_EQ(book.bytes_moved(), 2 * 35 * 8);
}

// Else no trace could say what it does.
TEST(Work, EveryOwnOpHasAKind) {
  int64_t num_own = 0;
  for (const c10::OperatorName& op : c10::Dispatcher::singleton().getAllOpNames()) {
    if (!op.name.starts_with("kuafu::")) continue;
    ++num_own;
    EXPECT_NE(kind_of_op(op.name), OpKind::kUnbooked) << op.name;
  }
  EXPECT_GE(num_own, 30);
}

TEST(Work, IsTheSameThatTheDispatcherSees) {
  RankBook book(0);
  const BookScope scope(&book);
  const FlopWatcher watcher;
  const Tensor a = closed_form({6, 8}, 1), b = closed_form({8, 4}, 2);
  Tensor y = ops::matmul_bias(a, b, closed_form({4}, 3));
  ops::matmul_add(y, a, b);
  ops::matmul(a.t(), y);
  const Tensor q = closed_form({2, 3, 8, 4}, 1);
  for (const bool causal : {false, true}) {
    ops::attention_backward(q, q, q, q, ops::attention(q, q, q, causal), causal);
  }
  EXPECT_EQ(watcher.total(), book.flops());
  ops::newton_schulz(closed_form({6, 24}, 1), {{3.4445, -4.775, 2.0315, 2, -1.5, 0.5}, 1e-7, 3, 2});
  EXPECT_EQ(watcher.total(), book.flops() + book.flops_optimizer());
  EXPECT_GT(book.flops_optimizer(), 0);
}

}  // namespace
}  // namespace kuafu
