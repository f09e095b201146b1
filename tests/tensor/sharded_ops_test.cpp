// SPDX-License-Identifier: Apache-2.0
//
// Ops over a dim that is sharded: the shards' results, put together, equal the unsharded op.
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <cmath>

#include "kuafu/base/errors.h"
#include "kuafu/tensor/ops.h"
#include "tests/tensor/support.h"

namespace kuafu {
namespace {

using testing::closed_form;
using testing::expect_close;

using testing::kEps;

/// Part i of n of the last dim.
Tensor part(const Tensor& x, int64_t i, int64_t n) {
  const int64_t extent = x.size(-1) / n;
  return x.narrow(-1, i * extent, extent).contiguous();
}

/// The gradient of the input's use beside the norm.
Tensor residual_of(const Tensor& x) { return closed_form(x.sizes(), 9, x.scalar_type()); }

struct ShardedNorm {
  Tensor y, dx, dweight, dbias;
};

/// Layer norm by its halves over n shards, moments added as an all-reduce would.
ShardedNorm norm_in_parts(const Tensor& x, const Tensor& w, const Tensor& b, const Tensor& dy,
                          int64_t n) {
  const int64_t hidden = x.size(-1);
  const auto summed = [n](auto moments_of) {
    Tensor sum = moments_of(0);
    for (int64_t i = 1; i < n; ++i) sum = sum + moments_of(i);
    return sum;
  };
  const Tensor moments = summed([&](int64_t i) { return ops::norm_moments(part(x, i, n)); });
  std::vector<ops::NormOut> outs;
  for (int64_t i = 0; i < n; ++i) {
    outs.push_back(
        ops::norm_apply(part(x, i, n), moments, part(w, i, n), part(b, i, n), hidden, 1e-5));
  }
  const Tensor back = summed([&](int64_t i) {
    return ops::norm_backward_moments(part(dy, i, n), part(x, i, n), outs[0].mean, outs[0].rstd,
                                      part(w, i, n));
  });
  Tensors y, dx, dw, db;
  for (int64_t i = 0; i < n; ++i) {
    const ops::NormGrads g =
        ops::norm_backward_apply(part(dy, i, n), part(x, i, n), outs[0].mean, outs[0].rstd,
                                 part(w, i, n), back, hidden, part(residual_of(x), i, n));
    y.push_back(outs[static_cast<size_t>(i)].y);
    dx.push_back(g.dx);
    dw.push_back(g.dweight);
    db.push_back(g.dbias);
  }
  return {at::cat(y, -1), at::cat(dx, -1), at::cat(dw, -1), at::cat(db, -1)};
}

TEST(ShardedNorm, EqualsTheUnshardedOne) {
  const Tensor x = closed_form({3, 5, 60}, 1) * 2 + 0.5, dy = closed_form({3, 5, 60}, 2);
  const Tensor w = closed_form({60}, 3), b = closed_form({60}, 4);
  const ops::NormOut out = ops::layer_norm(x, w, b, 1e-5);
  const ops::NormGrads g = ops::layer_norm_backward(dy, x, out.mean, out.rstd, w, residual_of(x));
  for (const int64_t n : {1, 2, 3, 5}) {
    const ShardedNorm s = norm_in_parts(x, w, b, dy, n);
    expect_close(s.y, out.y, 1e-12, "y");
    expect_close(s.dx, g.dx, 1e-12, "dx");
    expect_close(s.dweight, g.dweight, 1e-12, "dweight");
    expect_close(s.dbias, g.dbias, 1e-12, "dbias");
  }
}

TEST(ShardedNorm, IsStableInF32AtMeansOfAThousandDeviations) {
  const Tensor x = (closed_form({4, 64}, 1) + 600).to(at::kFloat);  // std 0.58
  const Tensor one = at::ones({64}, at::kFloat), zero = at::zeros({64}, at::kFloat);
  const Tensor expected = at::layer_norm(x.to(at::kDouble), {64}, {}, {}, 1e-5);
  const ShardedNorm s = norm_in_parts(x, one, zero, x, 2);
  // The mean is kept in f32: 600 eps / std.
  expect_close(s.y, expected, 600 * 0x1.0p-23 / 0.5);
}

TEST(ShardedNorm, WorksInBf16) {
  const Tensor x = closed_form({4, 64}, 1, at::kBFloat16), w = closed_form({64}, 2, at::kBFloat16);
  const ShardedNorm s = norm_in_parts(x, w, w, x, 2);
  EXPECT_EQ(s.dweight.scalar_type(), at::kBFloat16);
  const Tensor expected =
      at::layer_norm(x.to(at::kDouble), {64}, w.to(at::kDouble), w.to(at::kDouble), 1e-5);
  expect_close(s.y, expected, 4 * 0x1.0p-8);  // results up to 3, rounded once
}

TEST(ShardedRmsNorm, EqualsTheUnshardedOne) {
  const int64_t h = 60;
  const Tensor x = closed_form({3, 5, h}, 1) * 2 + 0.5, dy = closed_form({3, 5, h}, 2);
  const Tensor w = closed_form({h}, 3);
  const ops::RmsOut out = ops::rms_norm(x, w, 1e-5);
  const ops::RmsGrads g = ops::rms_norm_backward(dy, x, out.rstd, w, residual_of(x));
  for (const int64_t n : {1, 2, 3, 5}) {
    Tensor moments = at::zeros({15}, at::kDouble), back = at::zeros({15}, at::kDouble);
    for (int64_t i = 0; i < n; ++i) moments += ops::rms_moments(part(x, i, n));
    Tensors y, dx, dw;
    for (int64_t i = 0; i < n; ++i) {
      const ops::RmsOut o = ops::rms_apply(part(x, i, n), moments, part(w, i, n), h, 1e-5);
      expect_close(o.rstd, out.rstd, 8 * kEps * h, "rstd");
      y.push_back(o.y);
      back += ops::rms_backward_moments(part(dy, i, n), part(x, i, n), o.rstd, part(w, i, n));
    }
    for (int64_t i = 0; i < n; ++i) {
      const ops::RmsGrads p =
          ops::rms_backward_apply(part(dy, i, n), part(x, i, n), out.rstd, part(w, i, n), back, h,
                                  part(residual_of(x), i, n));
      dx.push_back(p.dx);
      dw.push_back(p.dweight);
    }
    // Sums of 60 terms up to 6.
    expect_close(at::cat(y, -1), out.y, 8 * 6 * kEps * h, "y");
    expect_close(at::cat(dx, -1), g.dx, 8 * 6 * kEps * h, "dx");
    expect_close(at::cat(dw, -1), g.dweight, 8 * 6 * kEps * h, "dweight");
  }
}

TEST(ShardedEmbedding, PartsAddUpToTheLookupAndItsGradient) {
  const Tensor table = closed_form({12, 5}, 1), dy = testing::whole_numbers({2, 7, 5}, 3);
  const Tensor ids = (at::arange(14, at::kLong) * 5).remainder(12).view({2, 7});
  const Tensor expected = table.index_select(0, ids.view(-1)).view({2, 7, 5});
  const Tensor grad = at::zeros_like(table).index_add(0, ids.view(-1), dy.view({14, 5}));
  for (const int64_t n : {1, 2, 3}) {
    const int64_t rows = 12 / n;
    Tensor sum = at::zeros_like(expected);
    Tensors grads;
    for (int64_t i = 0; i < n; ++i) {
      sum = sum + ops::embedding(ids, table.narrow(0, i * rows, rows), i * rows);
      grads.push_back(ops::embedding_backward(dy, ids, i * rows, rows));
    }
    EXPECT_TRUE(at::equal(sum, expected));
    EXPECT_TRUE(at::equal(at::cat(grads), grad));
  }
}

struct Loss {
  Tensor loss, dlogits;
};

/// Cross entropy over n shards of a vocabulary padded to n * columns, combined as layers combine
/// it.
Loss loss_in_parts(const Tensor& padded, const Tensor& targets, int64_t vocab, int64_t n) {
  const int64_t columns = padded.size(-1) / n;
  std::vector<ops::LossStats> stats;
  for (int64_t i = 0; i < n; ++i) {
    stats.push_back(ops::cross_entropy_stats(part(padded, i, n), targets, i * columns, vocab));
  }
  Tensor max = stats[0].max;
  for (const ops::LossStats& s : stats) max = at::maximum(max, s.max);
  Tensor sumexp = at::zeros_like(max), target = at::zeros_like(max);
  for (const ops::LossStats& s : stats) {
    sumexp += s.sumexp * (s.max - max).exp();
    target += s.target;
  }
  Tensors grads;
  for (int64_t i = 0; i < n; ++i) {
    grads.push_back(ops::cross_entropy_backward(part(padded, i, n), targets, max, sumexp, 0.25,
                                                i * columns, vocab));
  }
  return {(sumexp.log() + max - target).sum() * 0.25, at::cat(grads, -1)};
}

TEST(ShardedCrossEntropy, EqualsTheUnshardedOneWithPaddingAndIgnoredTargets) {
  const int64_t vocab = 13;
  const Tensor logits = (closed_form({2, 5, vocab}, 1) * 6).requires_grad_(true);
  const Tensor targets = (at::arange(10, at::kLong) * 4).remainder(vocab).view({2, 5});
  targets[0][3] = -1;
  targets[1][4] = vocab - 1;
  const Tensor expected = at::nll_loss(at::log_softmax(logits.view({10, vocab}), 1),
                                       targets.view(-1), {}, at::Reduction::Sum, -1) *
                          0.25;
  expected.backward();
  const at::NoGradGuard no_grad;
  for (const int64_t n : {1, 2, 3, 5, 8}) {  // 8 parts of 2: the last holds padding only
    const int64_t width = (vocab + n - 1) / n * n;
    Tensor padded = at::full({2, 5, width}, 50.0, at::kDouble);  // padding must not be seen
    padded.narrow(2, 0, vocab).copy_(logits);
    const Loss l = loss_in_parts(padded, targets, vocab, n);
    expect_close(l.loss, expected, 64 * kEps * 10 * 6, "loss");
    expect_close(l.dlogits.narrow(2, 0, vocab), logits.grad(), 64 * kEps, "dlogits");
    EXPECT_EQ(l.dlogits.narrow(2, vocab, width - vocab).abs().sum().item<double>(), 0);
  }
}

TEST(CrossEntropy, SpansManyBlocksOfRows) {
  const Tensor logits = closed_form({3, 100, 1000}, 1) * 3;
  const Tensor targets = at::arange(300, at::kLong).view({3, 100});
  const Loss l = loss_in_parts(logits, targets, 1000, 1);
  const Tensor expected = at::log_softmax(logits, 2).gather(2, targets.unsqueeze(2)).sum() * -0.25;
  expect_close(l.loss, expected, 8 * kEps * 300 * 10);
}

// Its maximum is not known, so that exp of its logits would overflow.
TEST(CrossEntropy, IgnoredRowsOfLargeLogitsHaveNoGradient) {
  for (const at::ScalarType type : {at::kDouble, at::kFloat, at::kBFloat16}) {
    const Tensor logits = at::full({1, 3, 4}, 1000.0, type);
    const Tensor targets = at::full({1, 3}, -1, at::kLong);
    targets[0][1] = 2;
    const Tensor grad = loss_in_parts(logits, targets, 4, 1).dlogits;
    EXPECT_TRUE(at::isfinite(grad).all().item<bool>()) << grad;
    EXPECT_EQ(grad.select(1, 0).abs().sum().item<double>(), 0) << grad;
    EXPECT_EQ(grad.select(1, 1).sum().item<double>(), 0) << grad;
  }
}

TEST(CrossEntropy, RefusesTargetsOutsideTheVocabulary) {
  const Tensor logits = closed_form({1, 2, 4}, 1);
  for (const int64_t bad : {4, -2}) {
    const Tensor targets = at::full({1, 2}, bad, at::kLong);
    EXPECT_THROW(ops::cross_entropy_stats(logits, targets, 0, 4), ConfigError) << bad;
  }
}

TEST(Dropout, HasTheSameMaskUnderAnySlicing) {
  const int64_t b = 4, s = 6, h = 10;
  ops::DropoutKey key{.seed = 7, .site = 3, .step = 2, .global = {b, s, h}, .offset = {0, 0, 0}};
  const Tensor x = closed_form({b, s, h}, 1);
  const Tensor whole = ops::dropout(x, 0.3, key);
  for (const Shape& parts : {Shape{2, 1, 1}, Shape{1, 3, 1}, Shape{1, 1, 5}, Shape{4, 2, 2}}) {
    const Shape e = {b / parts[0], s / parts[1], h / parts[2]};
    for (int64_t i = 0; i < parts[0] * parts[1] * parts[2]; ++i) {
      key.offset = {i / (parts[1] * parts[2]) * e[0], i / parts[2] % parts[1] * e[1],
                    i % parts[2] * e[2]};
      const auto cut = [&](const Tensor& t) {
        return t.narrow(0, key.offset[0], e[0])
            .narrow(1, key.offset[1], e[1])
            .narrow(2, key.offset[2], e[2]);
      };
      EXPECT_TRUE(at::equal(ops::dropout(cut(x), 0.3, key), cut(whole)));
    }
  }
}

TEST(Dropout, KeepsOneMinusPAndScalesWhatItKeeps) {
  const ops::DropoutKey key{
      .seed = 1, .site = 1, .step = 0, .global = {8, 64, 64}, .offset = {0, 0, 0}};
  const Tensor x = at::ones({8, 64, 64}, at::kDouble);
  const Tensor y = ops::dropout(x, 0.25, key);
  const Tensor kept = y.ne(0);
  EXPECT_TRUE(at::equal(y.masked_select(kept), at::full_like(y.masked_select(kept), 1 / 0.75)));
  const double share = kept.to(at::kDouble).mean().item<double>();
  EXPECT_NEAR(share, 0.75, 5 * std::sqrt(0.25 * 0.75 / 32768));  // five standard errors
}

TEST(Dropout, DropsAllButNothingOfSharesNearOne) {
  const ops::DropoutKey key{
      .seed = 1, .site = 1, .step = 0, .global = {8, 64, 64}, .offset = {0, 0, 0}};
  const Tensor x = at::ones({8, 64, 64}, at::kDouble);
  for (const double p : {1 - 0x1p-32, 1 - 0x1p-33, 1 - 0x1p-34, 1 - 0x1p-53}) {
    EXPECT_EQ(ops::dropout(x, p, key).count_nonzero().item<int64_t>(), 0) << 1 - p;
  }
}

TEST(Dropout, ChangesWithSeedSiteAndStep) {
  const Tensor x = at::ones({1, 1, 256}, at::kDouble);
  const ops::DropoutKey key{
      .seed = 1, .site = 1, .step = 1, .global = {1, 1, 256}, .offset = {0, 0, 0}};
  const Tensor y = ops::dropout(x, 0.5, key);
  EXPECT_TRUE(at::equal(y, ops::dropout(x, 0.5, key)));
  for (int change = 0; change < 3; ++change) {
    ops::DropoutKey other = key;
    if (change == 0) other.seed = 2;
    if (change == 1) other.site = 2;
    if (change == 2) other.step = 2;
    EXPECT_FALSE(at::equal(y, ops::dropout(x, 0.5, other))) << change;
  }
  EXPECT_TRUE(at::equal(ops::dropout(x, 0, key), x));
  EXPECT_THROW(ops::dropout(x, 1, key), ConfigError);
}

}  // namespace
}  // namespace kuafu
