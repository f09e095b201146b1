// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "kuafu/parallel/tensor/interface.h"
#include "kuafu/tensor/tensor.h"

// What every model is made of, derived once from the two layouts and three products of a scheme.
// All tensors are shards; all functions are differentiable.
namespace kuafu {

/// y = x w + bias. x in the role's input layout, y in its output layout; bias laid out as y's last
/// dim, undefined where there is none.
Tensor linear(const TensorParallel& tp, const Tensor& x, const Tensor& w, const Tensor& bias,
              Role r);

/// logits = x table^T + bias: the tied output head. table (V, H) is laid out as a contract weight,
/// x is outer, the logits are inner: the scheme's three products with their roles exchanged. bias
/// is laid out as the logits' last dim; undefined where there is none.
Tensor tied_head(const TensorParallel& tp, const Tensor& x, const Tensor& table,
                 const Tensor& bias = {});

/// Layer norm over H of the outer stream, whatever axes shard it. weight, bias (H/axes).
Tensor layer_norm(const TensorParallel& tp, const Tensor& x, const Tensor& weight,
                  const Tensor& bias, int64_t hidden, double epsilon);

/// RMS norm over H of the outer stream, whatever axes shard it. weight (H/axes).
Tensor rms_norm(const TensorParallel& tp, const Tensor& x, const Tensor& weight, int64_t hidden,
                double epsilon);

/// Where a shard of the token grid (batch, sequence) lies.
struct TokenGrid {
  Layout activation;                ///< (B, S, *): the layout tokens are wanted in
  int64_t batch = 0, sequence = 0;  ///< global extents of the ids given
  /// The position in the sample of each place of the ids given; null: place = position.
  const std::vector<int64_t>* order = nullptr;
};

/// Tokens that lie beside each other on this rank and in the sample.
struct TokenRun {
  int64_t place, position, length;  ///< first place in my shard, its position, tokens
  bool operator==(const TokenRun&) const = default;
};
/// My tokens in the order I hold them, as few runs as there are.
std::vector<TokenRun> token_runs(const Mesh& mesh, const TokenGrid& grid);
/// The position in the sample of each of my tokens.
std::vector<int64_t> local_positions(const Mesh& mesh, const TokenGrid& grid);

/// Rows of a vocabulary-parallel table (V, H), laid out as a contract weight; ids (B, S) are whole
/// on every rank; the result has grid.activation. Axes that shard both V and the tokens end in a
/// reduce-scatter, axes that shard only V in an all-reduce. Where several shard V, the table is
/// gathered over the innermost one if that receives no more (embedding.cpp): 3D then moves
/// 2 (q-1)/q^3 (B S H + V H) elements forward and backward, which falls as P^(-2/3).
Tensor embedding(const Mesh& mesh, const Tensor& ids, const Tensor& table,
                 const Layout& table_layout, const TokenGrid& grid);

/// Adds the rows of my tokens' positions of a table (first + S, H/axes) to x: position s has row
/// first + s. Rows before have no gradient.
Tensor add_positions(const Mesh& mesh, const Tensor& x, const Tensor& table, const TokenGrid& grid,
                     int64_t first = 0);

/// Adds row ids[b, s] of a small table (N, H/axes), whole in its rows, to each token of x; ids
/// (B, S) are whole on every rank.
Tensor add_rows(const Mesh& mesh, const Tensor& x, const Tensor& table, const Tensor& ids,
                const TokenGrid& grid);

/// Tokens of images: `first` (H/axes) at position 0, then patches w + bias. images (B, patches, K)
/// whole on every rank, w (K, H/axes), bias (H/axes) or undefined; the result has grid.activation.
Tensor embed_patches(const Mesh& mesh, const Tensor& images, const Tensor& w, const Tensor& bias,
                     const Tensor& first, const TokenGrid& grid);

/// My part of the sum of -log softmax(logits)[target] over tokens, times `scale`, for logits
/// (B, S, V) in grid.activation; columns from `vocab` on are padding. The result is a scalar,
/// partial over the axes that shard tokens and equal on all others.
Tensor cross_entropy(const Mesh& mesh, const Tensor& logits, const Tensor& targets, double scale,
                     int64_t vocab, const TokenGrid& grid);

/// Dropout whose mask depends on (seed, site, step, global element) only.
struct DropoutSite {
  double p = 0;
  uint64_t seed = 0, site = 0;
  int64_t step = 0;
  int64_t first_sample = 0;  ///< global index of sample 0 of this micro-batch
};
Tensor dropout(const Mesh& mesh, const Tensor& x, const DropoutSite& site, int64_t hidden,
               const TokenGrid& grid);

/// The part of ids (B, S), whole on every rank, that belongs to grid.activation.
/// Where it lies among the ids given is local_slice.
Tensor local_tokens(const Mesh& mesh, const Tensor& ids, const TokenGrid& grid);
Slice local_slice(const Mesh& mesh, const TokenGrid& grid);

}  // namespace kuafu
