// SPDX-License-Identifier: Apache-2.0
//
// Attention and rotary embeddings against the same mathematics in plain ATen, differentiated by
// LibTorch, in f64. Tolerances as in ops_test.cpp.
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "kuafu/base/errors.h"
#include "kuafu/meter/book.h"
#include "kuafu/meter/flops.h"
#include "kuafu/tensor/ops.h"
#include "tests/tensor/support.h"

namespace kuafu {
namespace {

using testing::closed_form;
using testing::expect_close;
using testing::kEps;
using testing::tolerance;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// Heads as a model cuts them: (B, N, S, D) over memory (B, S, N, D).
Tensor heads(int64_t n, int64_t s, int64_t salt, at::ScalarType type = at::kDouble) {
  return closed_form({2, s, n, 6}, salt, type).transpose(1, 2);
}

struct Expected {
  Tensor out, lse, dq, dk, dv;
};

/// By definition: every query head with its own copy of its key-value head.
Expected by_definition(const Tensor& q0, const Tensor& k0, const Tensor& v0, const Tensor& dout,
                       bool is_causal) {
  const auto leaf = [](const Tensor& t) {
    return t.to(at::kDouble, false, true).requires_grad_(true);
  };
  const Tensor q = leaf(q0), k = leaf(k0), v = leaf(v0);
  const int64_t group = q.size(1) / k.size(1);
  const Tensor keys = k.repeat_interleave(group, 1), values = v.repeat_interleave(group, 1);
  Tensor scores = at::matmul(q, keys.transpose(2, 3)) / std::sqrt(static_cast<double>(q.size(3)));
  if (is_causal) {
    const Tensor hidden = at::ones({q.size(2), k.size(2)}, at::kBool).triu(1);
    scores = scores.masked_fill(hidden, -kInfinity);
  }
  const Tensor out = at::matmul(scores.softmax(3), values);
  out.backward(dout.to(at::kDouble));
  return {out.detach(), scores.detach().logsumexp({3}), q.grad(), k.grad(), v.grad()};
}

void expect_attention(const Tensor& q, const Tensor& k, const Tensor& v, bool is_causal,
                      double bound, const std::string& what) {
  const Tensor dout = heads(q.size(1), q.size(2), 4, q.scalar_type());
  const Expected e = by_definition(q, k, v, dout, is_causal);
  const ops::AttentionOut out = ops::attention(q, k, v, is_causal);
  expect_close(out.out, e.out, bound, what + " out");
  expect_close(out.lse, e.lse, bound, what + " lse");
  const ops::AttentionGrads g = ops::attention_backward(dout, q, k, v, out, is_causal);
  expect_close(g.dq, e.dq, bound, what + " dq");
  expect_close(g.dk, e.dk, bound, what + " dk");
  expect_close(g.dv, e.dv, bound, what + " dv");
  EXPECT_EQ(g.dk.sizes(), k.sizes());
}

TEST(Attention, IsSoftmaxOfScaledScoresWithItsGradients) {
  for (const bool causal : {false, true}) {
    expect_attention(heads(3, 9, 1), heads(3, 9, 2), heads(3, 9, 3), causal, tolerance(9 * 6),
                     causal ? "causal" : "full");
  }
}

TEST(Attention, SharesKeyValueHeadsAmongGroupsOfQueryHeads) {
  for (const int64_t kv : {1, 2, 3, 6}) {
    for (const bool causal : {false, true}) {
      expect_attention(heads(6, 9, 1), heads(kv, 9, 2), heads(kv, 9, 3), causal,
                       tolerance(6 * 9 * 6), "kv heads " + std::to_string(kv));
    }
  }
}

TEST(Attention, TakesKeysOfAnotherLength) {
  for (const int64_t keys : {1, 5, 40}) {
    expect_attention(heads(4, 9, 1), heads(2, keys, 2), heads(2, keys, 3), false,
                     tolerance(2 * 40 * 6), "keys " + std::to_string(keys));
  }
}

TEST(Attention, SpansManyBlocksOfTheFlashKernel) {
  for (const bool causal : {false, true}) {
    expect_attention(heads(2, 700, 1), heads(1, 700, 2), heads(1, 700, 3), causal,
                     tolerance(2 * 700), "700");
  }
}

TEST(Attention, WorksInBf16WithSumsInF32) {
  const Tensor q = heads(4, 32, 1, at::kBFloat16), k = heads(1, 32, 2, at::kBFloat16),
               v = heads(1, 32, 3, at::kBFloat16);
  // Values up to 8 rounded to 8 bits, and weights that the kernel rounds to 8 bits.
  expect_attention(q, k, v, true, 8 * 4 * 0x1.0p-8, "bf16");
}

TEST(Attention, OfNoKeysOrNoQueriesIsZero) {
  const Tensor q = heads(4, 5, 1), none = heads(2, 0, 2);
  const ops::AttentionOut out = ops::attention(q, none, none, false);
  EXPECT_TRUE(at::equal(out.out, at::zeros_like(q)));
  EXPECT_TRUE(at::equal(out.lse, at::full({2, 4, 5}, -kInfinity, at::kDouble)));
  const ops::AttentionGrads g = ops::attention_backward(q, q, none, none, out, false);
  EXPECT_TRUE(at::equal(g.dq, at::zeros_like(q)));
  EXPECT_EQ(g.dk.sizes(), none.sizes());

  const Tensor no_query = heads(4, 0, 1), k = heads(2, 5, 2);
  const ops::AttentionOut empty = ops::attention(no_query, k, k, false);
  EXPECT_EQ(empty.out.sizes(), no_query.sizes());
  const ops::AttentionGrads zero = ops::attention_backward(no_query, no_query, k, k, empty, false);
  EXPECT_TRUE(at::equal(zero.dk, at::zeros_like(k)));
  EXPECT_TRUE(at::equal(zero.dv, at::zeros_like(k)));
}

TEST(Attention, RefusesHeadsThatDoNotDivideAndCausalMasksThatAreNotSquare) {
  const Tensor q = heads(4, 5, 1);
  EXPECT_THROW(ops::attention(q, heads(3, 5, 2), heads(3, 5, 2), false), InternalError);
  EXPECT_THROW(ops::attention(q, heads(4, 6, 2), heads(4, 6, 2), true), InternalError);
}

TEST(Attention, BooksFlopsOfEveryQueryHead) {
  RankBook book(0);
  const BookScope scope(&book);
  const FlopWatcher watcher;
  const Tensor q = heads(4, 5, 1), k = heads(2, 7, 2);
  ops::attention_backward(q, q, k, k, ops::attention(q, k, k, false), false);
  EXPECT_EQ(book.flops(), 3 * 4 * 2 * 4 * 5 * 7 * 6);
  EXPECT_EQ(book.flops(), watcher.total());
}

/// Blocks [begin, end) of the sequence dim.
Tensor block(const Tensor& t, int64_t begin, int64_t end) {
  return t.narrow(2, begin, end - begin);
}

TEST(AttentionMerge, OfBlocksOfKeysIsAttentionToAllOfThem) {
  const Tensor q = heads(4, 7, 1) * 5, k = heads(2, 20, 2) * 5, v = heads(2, 20, 3);
  const Tensor dout = heads(4, 7, 4);
  const Expected e = by_definition(q, k, v, dout, false);
  const std::vector<int64_t> cuts = {0, 3, 3, 11, 20};  // the second block is empty
  for (const bool reversed : {false, true}) {
    ops::AttentionOut all;
    for (size_t i = 0; i + 1 < cuts.size(); ++i) {
      const size_t j = reversed ? cuts.size() - 2 - i : i;
      const Tensor kb = block(k, cuts[j], cuts[j + 1]), vb = block(v, cuts[j], cuts[j + 1]);
      ops::attention_merge(all, ops::attention(q, kb, vb, false));
    }
    expect_close(all.out, e.out, tolerance(20 * 6));
    expect_close(all.lse, e.lse, tolerance(20 * 6 * 10));  // up to 150 / sqrt(6)
    Tensor dq = at::zeros_like(q);
    Tensors dk, dv;
    for (size_t i = 0; i + 1 < cuts.size(); ++i) {
      const Tensor kb = block(k, cuts[i], cuts[i + 1]), vb = block(v, cuts[i], cuts[i + 1]);
      const ops::AttentionGrads g = ops::attention_backward(dout, q, kb, vb, all, false);
      dq += g.dq;
      dk.push_back(g.dk);
      dv.push_back(g.dv);
    }
    expect_close(dq, e.dq, tolerance(20 * 6 * 10), "dq");
    expect_close(at::cat(dk, 2), e.dk, tolerance(20 * 6 * 10), "dk");
    expect_close(at::cat(dv, 2), e.dv, tolerance(20 * 6 * 10), "dv");
  }
}

// What a ring does: each block of queries meets the blocks of keys before it whole and its own
// under the causal mask; backward sees each pair with the final result of its queries.
TEST(AttentionMerge, OfCausalBlocksIsCausalAttentionWithItsGradients) {
  const int64_t length = 24, n = 3, part = length / n;
  const Tensor q = heads(4, length, 1), k = heads(2, length, 2), v = heads(2, length, 3);
  const Tensor dout = heads(4, length, 4);
  const Expected e = by_definition(q, k, v, dout, true);
  Tensor dq = at::zeros_like(q), dk = at::zeros_like(k), dv = at::zeros_like(v);
  for (int64_t i = 0; i < n; ++i) {
    const auto mine = [&](const Tensor& t) { return block(t, i * part, (i + 1) * part); };
    const auto theirs = [&](const Tensor& t, int64_t j) {
      return block(t, j * part, (j + 1) * part);
    };
    ops::AttentionOut all;
    for (int64_t j = i; j >= 0; --j) {
      ops::attention_merge(all, ops::attention(mine(q), theirs(k, j), theirs(v, j), i == j));
    }
    expect_close(all.out, mine(e.out), tolerance(length * 6), "out");
    expect_close(all.lse, mine(e.lse), tolerance(length * 6), "lse");
    for (int64_t j = 0; j <= i; ++j) {
      const ops::AttentionGrads g =
          ops::attention_backward(mine(dout), mine(q), theirs(k, j), theirs(v, j), all, i == j);
      mine(dq).add_(g.dq);
      theirs(dk, j).add_(g.dk);
      theirs(dv, j).add_(g.dv);
    }
  }
  expect_close(dq, e.dq, tolerance(length * 6), "dq");
  expect_close(dk, e.dk, tolerance(2 * length * 6), "dk");
  expect_close(dv, e.dv, tolerance(2 * length * 6), "dv");
}

TEST(AttentionMerge, TakesInfinitiesAndScoresFarApart) {
  const auto result = [](double value, double lse) {
    return ops::AttentionOut{at::full({1, 1, 2, 3}, value, at::kDouble),
                             at::full({1, 1, 2}, lse, at::kDouble)};
  };
  ops::AttentionOut all = result(0, -kInfinity);
  ops::attention_merge(all, result(0, -kInfinity));
  EXPECT_EQ(all.lse.max().item<double>(), -kInfinity);
  EXPECT_EQ(all.out.abs().max().item<double>(), 0);
  ops::attention_merge(all, result(3, -800));  // e^-800 is no f64
  EXPECT_TRUE(at::equal(all.out, result(3, 0).out));
  ops::attention_merge(all, result(7, -kInfinity));
  EXPECT_TRUE(at::equal(all.out, result(3, 0).out));
  EXPECT_TRUE(at::equal(all.lse, result(3, -800).lse));
  ops::attention_merge(all, result(5, 900));
  EXPECT_TRUE(at::equal(all.out, result(5, 0).out));
  EXPECT_TRUE(at::equal(all.lse, result(5, 900).lse));
  ops::attention_merge(all, result(1, 900));
  EXPECT_TRUE(at::equal(all.out, result(3, 0).out));
}

TEST(AttentionMerge, AccumulatesBf16InF32) {
  const Tensor q = heads(2, 8, 1, at::kBFloat16), k = heads(2, 64, 2, at::kBFloat16);
  ops::AttentionOut all;
  for (int64_t i = 0; i < 64; i += 4) {
    ops::attention_merge(all, ops::attention(q, block(k, i, i + 4), block(k, i, i + 4), false));
  }
  EXPECT_EQ(all.out.scalar_type(), at::kFloat);
  // Each part is rounded to bf16 once, whatever their number.
  expect_close(all.out, by_definition(q, k, k, q, false).out, 4 * 0x1.0p-9);
}

TEST(Rope, TurnsPairsByTheirAnglesWithItsGradient) {
  const Tensor positions = at::tensor({0, 5, 1, 1000, 64, 63, 7}, at::kLong);
  const Tensor x = heads(3, 7, 1).requires_grad_(true), dy = heads(3, 7, 2);
  x.retain_grad();
  const Tensor frequency = at::pow(500.0, at::arange(3, at::kDouble) * (-2.0 / 6));
  const Tensor angles = positions.unsqueeze(1) * frequency;
  const Tensor a = x.narrow(3, 0, 3), b = x.narrow(3, 3, 3);
  const Tensor y =
      at::cat({a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()}, 3);
  y.backward(dy);
  const at::NoGradGuard no_grad;
  for (const bool contiguous : {false, true}) {
    const auto ordered = [=](const Tensor& t) { return contiguous ? t.contiguous() : t; };
    const Tensor turned = ops::rope(ordered(x), positions, 500, false);
    expect_close(turned, y, 8 * kEps * 1000);  // angles up to 1000, rounded
    EXPECT_EQ(turned.strides(), ordered(x).strides());
    expect_close(ops::rope(ordered(dy), positions, 500, true), x.grad(), 8 * kEps * 1000);
  }
}

TEST(Rope, GivesAShardOfTheSequenceTheBitsOfTheWhole) {
  const Tensor x = heads(3, 130, 1, at::kFloat), positions = at::arange(130, at::kLong);
  const Tensor whole = ops::rope(x, positions, 10000, false);
  for (const int64_t begin : {0, 1, 63, 100}) {
    const Tensor shard =
        ops::rope(block(x, begin, begin + 30), positions.narrow(0, begin, 30), 10000, false);
    EXPECT_TRUE(at::equal(shard, block(whole, begin, begin + 30))) << begin;
  }
}

TEST(Rope, RefusesOddHeadsAndOtherPositions) {
  const Tensor x = heads(3, 5, 1), positions = at::arange(5, at::kLong);
  EXPECT_THROW(ops::rope(x.narrow(3, 0, 5), positions, 10000, false), InternalError);
  EXPECT_THROW(ops::rope(x, positions.narrow(0, 0, 4), 10000, false), InternalError);
  EXPECT_THROW(ops::rope(x, positions.to(at::kDouble), 10000, false), InternalError);
}

}  // namespace
}  // namespace kuafu
