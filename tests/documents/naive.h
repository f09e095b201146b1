// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "kuafu/tensor/tensor.h"

namespace kuafu::tests {

inline constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// Heads as a model cuts them, (2, N, S, D) over memory (2, S, N, D): values in [-1, 1) as a function of
/// index and `salt`.
inline Tensor some_heads(int64_t n, int64_t s, int64_t d, int64_t salt,
                         at::ScalarType type = at::kDouble) {
  const Tensor i = at::arange(2 * s * n * d, at::kLong) + 1;
  const Tensor mixed = (i * (7919 + 2 * salt) + salt * 104729).remainder(2003);
  return (mixed.to(at::kDouble) / 1001.5 - 1).view({2, s, n, d}).to(type).transpose(1, 2);
}

/// max |a - b| <= tolerance. Equal infinities are no distance apart.
inline void expect_near(const Tensor& a, const Tensor& b, double tolerance,
                        const std::string& what) {
  ASSERT_EQ(a.sizes(), b.sizes()) << what;
  const Tensor x = a.to(at::kDouble), y = b.to(at::kDouble);
  EXPECT_LE((x - y).abs().masked_fill(x.eq(y), 0).max().item<double>(), tolerance) << what;
}

struct Attended {
  Tensor out, lse, dq, dk, dv;
};

/// By definition, in f64, differentiated by LibTorch: every query head has its own copy of its keys.
/// hidden (B, 1, S, T) bool; a row that sees nothing gives 0.
inline Attended attended(const Tensor& q0, const Tensor& k0, const Tensor& v0, const Tensor& dout,
                         const Tensor& hidden) {
  const auto leaf = [](const Tensor& t) {
    return t.to(at::kDouble, false, true).requires_grad_(true);
  };
  const Tensor q = leaf(q0), k = leaf(k0), v = leaf(v0),
               sees = hidden.logical_not().to(at::kDouble);
  const int64_t group = q.size(1) / k.size(1);
  const Tensor keys = k.repeat_interleave(group, 1), values = v.repeat_interleave(group, 1);
  const Tensor scores =
      at::matmul(q, keys.transpose(2, 3)) / std::sqrt(static_cast<double>(q.size(3)));
  const Tensor most = scores.detach().amax(3, true);
  const Tensor e = (scores - most).exp() * sees, sum = e.sum(3, true);
  const Tensor out = at::matmul(e / (sum + sum.eq(0)), values);
  out.backward(dout.to(at::kDouble));
  return {out.detach(), (sum.log() + most).squeeze(3).detach(), q.grad(), k.grad(), v.grad()};
}

/// Which keys at positions j = 0 .. S - 1 are hidden from queries at the same positions, by the
/// definition: those behind, and those with an end token at j .. i - 1. tokens (B, S)
inline Tensor hidden_of(const std::vector<std::vector<int64_t>>& tokens, int64_t end) {
  const auto samples = std::ssize(tokens), s = std::ssize(tokens[0]);
  const Tensor hidden = at::ones({samples, 1, s, s}, at::kBool);
  for (int64_t b = 0; b < samples; ++b) {
    for (int64_t i = 0; i < s; ++i) {
      for (int64_t j = 0; j <= i; ++j) {
        bool ends = false;
        for (int64_t p = j; p < i; ++p)
          ends |= tokens[static_cast<size_t>(b)][static_cast<size_t>(p)] == end;
        if (!ends) hidden[b][0][i][j].fill_(false);
      }
    }
  }
  return hidden;
}

/// (B, S) i64: where the document of each position begins.
inline Tensor first_of(const std::vector<std::vector<int64_t>>& tokens, int64_t end) {
  std::vector<int64_t> all;
  for (const auto& row : tokens) {
    int64_t first = 0;
    for (size_t i = 0; i < row.size(); ++i) {
      if (i > 0 && row[i - 1] == end) first = static_cast<int64_t>(i);
      all.push_back(first);
    }
  }
  return at::tensor(all, at::kLong).view({static_cast<int64_t>(tokens.size()), -1});
}

/// Two samples of tokens 0 .. 4, a fifth of them 0.
inline std::vector<std::vector<int64_t>> two_rows(int64_t sequence) {
  std::vector<std::vector<int64_t>> rows(2);
  for (int64_t b = 0; b < 2; ++b) {
    for (int64_t i = 0; i < sequence; ++i) {
      rows[static_cast<size_t>(b)].push_back((i * i + 3 * b * i + b + 1) % 5);
    }
  }
  return rows;
}

}  // namespace kuafu::tests
