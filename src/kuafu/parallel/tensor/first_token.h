// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kuafu/parallel/tensor/layers.h"

// Classes of whole samples, read off their first token, without bringing the sequence together:
// each rank that shards the sequence keeps a slot of its own, and only that of the rank that holds
// the first token counts.
namespace kuafu {

/// x (B, S/axes, H/..) -> (B, 1, H/..): my token of position 0, zeros on ranks that lack it. Over
/// the ranks (B, parts, H) in the layout of x, parts = the ranks that shard S; slot 0 counts.
Tensor first_token(const Mesh& mesh, const Tensor& x, const TokenGrid& grid);

/// y = sum over `axes` of x w, plus bias: x (B, S, K/axes), w (K/axes, C), bias (C) or undefined;
/// y (B, S, C), the same on every rank of `axes`. Received: 2 (p-1)/p |y| in forward.
Tensor classify(const Mesh& mesh, const Tensor& x, const Tensor& w, const Tensor& bias,
                const Axes& axes);

/// My part of the sum of -log softmax(logits)[label] over samples, times `scale`. logits
/// (B, parts, C) whole in their last dim, laid out as `activation` in the others; labels (B) i64 of
/// all samples. Partial over the axes that shard dims 0 and 1.
Tensor label_loss(const Mesh& mesh, const Tensor& logits, const Tensor& labels, double scale,
                  const Layout& activation, int64_t parts);

}  // namespace kuafu
