// SPDX-License-Identifier: Apache-2.0
//
// Attention under a mask, and the mask of documents, against definitions in f64.
#include <gtest/gtest.h>

#include <numeric>

#include "kuafu/meter/book.h"
#include "kuafu/meter/flops.h"
#include "kuafu/tensor/ops.h"
#include "tests/documents/naive.h"

namespace kuafu {
namespace {

using tests::expect_near;
using tests::some_heads;

struct Extents {
  int64_t heads, kv_heads, queries, keys;
  bool is_causal;
};

/// A third of all, all of the middle query, the first 600 keys of the last but one.
Tensor some_hidden(const Extents& e) {
  const Tensor salted = (at::arange(2 * e.queries * e.keys, at::kLong) * 7919).remainder(1009);
  const Tensor hidden = salted.remainder(3).eq(0).view({2, 1, e.queries, e.keys}).clone();
  if (e.is_causal) hidden.logical_or_(at::ones({e.queries, e.keys}, at::kBool).triu(1));
  hidden.select(2, e.queries / 2).fill_(true);
  if (e.keys > 600) hidden.select(2, e.queries - 2).narrow(2, 0, 600).fill_(true);
  return hidden;
}

/// `unit`: the spacing of the type. Scores are of 6 products, out and dq sums over keys, dk and dv
/// over queries and the heads of a group; half precision rounds weights and results of at most 8.
void expect_attention(const Extents& e, at::ScalarType type, double unit) {
  const std::string what =
      text(c10::toString(type), " ", e.queries, " x ", e.keys, " heads ", e.heads, "/", e.kv_heads);
  const Tensor q = some_heads(e.heads, e.queries, 6, 1, type),
               k = some_heads(e.kv_heads, e.keys, 6, 2, type),
               v = some_heads(e.kv_heads, e.keys, 6, 3, type),
               dout = some_heads(e.heads, e.queries, 6, 4, type);
  const Tensor hidden = some_hidden(e);
  const Tensor mask = at::zeros(hidden.sizes(), type).masked_fill_(hidden, -tests::kInfinity);
  const tests::Attended expected = tests::attended(q, k, v, dout, hidden);
  const bool is_half = unit > 0x1.0p-20;
  const auto length = static_cast<double>(std::max(e.keys, e.queries * e.heads / e.kv_heads));
  const double bound = is_half ? 32 * unit : 8 * unit * length;
  const ops::AttentionOut out = ops::attention(q, k, v, e.is_causal, mask);
  expect_near(out.out, expected.out, bound, what + " out");
  expect_near(out.lse, expected.lse, is_half ? 0x1.0p-12 : bound, what + " lse");
  EXPECT_EQ(out.lse.select(2, e.queries / 2).max().item<double>(), -tests::kInfinity) << what;
  EXPECT_EQ(out.out.select(2, e.queries / 2).abs().max().item<double>(), 0) << what;
  const ops::AttentionGrads g = ops::attention_backward(dout, q, k, v, out, e.is_causal, mask);
  expect_near(g.dq, expected.dq, bound, what + " dq");
  expect_near(g.dk, expected.dk, bound, what + " dk");
  expect_near(g.dv, expected.dv, bound, what + " dv");
  EXPECT_EQ(g.dq.select(2, e.queries / 2).abs().max().item<double>(), 0) << what;
}

TEST(MaskedAttention, IsByDefinitionInEveryType) {
  const std::pair<at::ScalarType, double> types[] = {{at::kDouble, 0x1.0p-52},
                                                     {at::kFloat, 0x1.0p-23},
                                                     {at::kBFloat16, 0x1.0p-8},
                                                     {at::kHalf, 0x1.0p-11}};
  for (const auto& [type, unit] : types) {
    for (const Extents& e : {Extents{3, 3, 9, 9, true}, {4, 2, 9, 9, true}, {4, 1, 7, 12, false}}) {
      expect_attention(e, type, unit);
    }
  }
}

TEST(MaskedAttention, SpansManyBlocksOfTheFlashKernel) {
  expect_attention({2, 1, 700, 700, true}, at::kDouble, 0x1.0p-52);
  expect_attention({2, 2, 130, 1300, false}, at::kFloat, 0x1.0p-23);
}

// A part without keys changes nothing of the rows that see others.
TEST(MaskedAttention, OfABlockWithoutKeysMergesAsNothing) {
  const Tensor q = some_heads(2, 8, 6, 1, at::kDouble), k = some_heads(2, 8, 6, 2, at::kDouble);
  const Tensor none = at::full({2, 1, 8, 8}, -tests::kInfinity, at::kDouble);
  ops::AttentionOut sum;
  ops::attention_merge(sum, ops::attention(q, k, k, true));
  const Tensor before = sum.out.clone(), lse = sum.lse.clone();
  const ops::AttentionOut nothing = ops::attention(q, k, k, false, none);
  EXPECT_TRUE(at::equal(nothing.out, at::zeros_like(q)));
  ops::attention_merge(sum, nothing);
  EXPECT_TRUE(at::equal(sum.out, before));
  EXPECT_TRUE(at::equal(sum.lse, lse));
  const ops::AttentionGrads g = ops::attention_backward(q, q, k, k, sum, false, none);
  for (const Tensor& t : {g.dq, g.dk, g.dv}) EXPECT_TRUE(at::equal(t, at::zeros_like(t)));
}

TEST(DocumentMask, HidesOtherDocumentsAndLaterKeys) {
  const auto rows = tests::two_rows(11);
  const Tensor first = tests::first_of(rows, 0), hidden = tests::hidden_of(rows, 0);
  EXPECT_GT(first.max().item<int64_t>(), 5);
  std::vector<int64_t> all(11);
  std::iota(all.begin(), all.end(), 0);
  const std::vector<int64_t> queries = {9, 0, 4}, keys = {7, 8, 3, 4};
  for (const auto type : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf}) {
    const Tensor mask = ops::document_mask(first, all, all, type);
    EXPECT_EQ(mask.scalar_type(), type);
    EXPECT_TRUE(at::equal(mask.isneginf(), hidden));
    EXPECT_TRUE(at::equal(mask.eq(0), hidden.logical_not()));
    const Tensor part = ops::document_mask(first, queries, keys, type).isneginf();
    EXPECT_TRUE(at::equal(part, hidden.index_select(2, at::tensor(queries, at::kLong))
                                    .index_select(3, at::tensor(keys, at::kLong))));
  }
}

// Hidden keys are multiplied too; the mask is read.
TEST(MaskedAttention, BooksTheWholeRectangleAndTheMask) {
  const Tensor q = some_heads(3, 8, 4, 1);
  const Tensor mask = at::zeros({2, 1, 8, 8}, at::kDouble);
  const auto booked = [&](const Tensor& with) {
    RankBook book(0);
    const BookScope scope(&book);
    ops::attention(q, q, q, true, with);
    return std::pair{book.flops(), book.bytes_moved()};
  };
  EXPECT_EQ(booked(mask).first, flops::attention({2, 3, 8, 8, 4, true}));
  EXPECT_EQ(booked(mask).first, booked({}).first);
  EXPECT_EQ(booked(mask).second, booked({}).second + 2 * 8 * 8 * 8);
}

}  // namespace
}  // namespace kuafu
