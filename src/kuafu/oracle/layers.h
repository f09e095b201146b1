// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>

#include "kuafu/oracle/oracle.h"

// Layers that models of the oracle are written with, also those that a plug-in brings. Each is a
// function of a call and of tensors; autograd is ATen's.
// B batch, S sequence, H hidden, N heads, D head dim, V vocab.
namespace kuafu::oracle {

using at::Tensor;

/// One call of one block: what its layers read and fill in.
struct Call {
  const ModelPlan& plan;
  uint64_t seed;
  const Tensors& weights;
  const Samples& samples;
  Extra& extra;

  /// Throws ConfigError naming a weight that was not handed in.
  const Tensor& weight(const std::string& name) const;
  /// 1 / predicted tokens, and 1 / samples, of the global batch.
  double per_token() const;
  double per_sample() const;
};

/// (B, S) i64 of one of the fields of the samples.
Tensor ids(const Samples& samples, const std::vector<int64_t>& field);

/// f64 stays f64, every other type becomes f32: statistics, losses and routers are computed so.
Tensor widened(const Tensor& x);

/// Adds terms(dy) to extra.absolute[name] when backward knows the gradient dy of y; nothing where
/// nobody asks. `terms` gives sums of absolute values, shaped like the weight.
void note_terms(const Call& call, const Tensor& y, const std::string& name,
                const std::function<Tensor(const Tensor& dy)>& terms);

/// y = x W, W (in, out). Weight "name.weight".
Tensor product(const Call& call, const Tensor& x, const std::string& name);
/// y = x W + b; b where the plan has biases. Weights "name.weight", "name.bias".
Tensor linear(const Call& call, const Tensor& x, const std::string& name);
/// y = x table^T: a table of embeddings as the last product (tied).
Tensor tied_linear(const Call& call, const Tensor& x, const std::string& table);
/// y + b over the last dim, for a bias that stands by itself.
Tensor add_bias(const Call& call, const Tensor& y, const std::string& name);
/// Rows of a table by id: (B, S) -> (B, S, H).
Tensor lookup(const Call& call, const Tensor& rows, const std::string& table);
/// x (B, S, H) + table (first + S, H), from row `first` on.
Tensor add_positions(const Call& call, const Tensor& x, const std::string& table,
                     int64_t first = 0);
/// Layer norm or RMS norm, as the plan says, over the last dim.
Tensor norm(const Call& call, const Tensor& x, const std::string& name);
/// What stands between the linears of an MLP, by plan.mlp; of swiglu column 2 f is a gate and
/// 2 f + 1 its value.
Tensor activation(const ModelPlan& plan, const Tensor& x);
/// gelu by its tanh formula.
Tensor gelu_tanh(const Tensor& x);
/// Over the last dim, in the steps of its formula: its derivative is then a difference of two terms,
/// each rounded by itself, for RandomRounding to see.
Tensor softmax(const Tensor& x);
Tensor log_softmax(const Tensor& x);
enum class Sees : uint8_t { kEarlier, kAll };
/// Self-attention with all options of the plan: (B, S, H) -> (B, S, H).
Tensor attention(const Call& call, const Tensor& x, const std::string& name, Sees sees);
/// linear, activation, linear.
Tensor mlp(const Call& call, const Tensor& x, const std::string& name);
/// x * mask / (1 - p) in training; the site is the layer's name.
Tensor dropout(const Call& call, const Tensor& x, const std::string& site);
/// scale * sum of -log softmax(logits)[target] over the targets that are not -1.
Tensor cross_entropy(const Tensor& logits, const Tensor& targets, double scale);

/// Standard deviation of first weights, and of those whose product ends in the residual stream:
/// 0.02 / sqrt(2 layers).                                 [Radford et al., 2019, section 2.3]
constexpr double kStd = 0.02;
double residual_std(const ModelPlan& plan);

/// What a layer of that name reads.
/// `fused` linears side by side, `run` columns of each in turns; stacked with extents (E, in, out).
struct Fused {
  int64_t fused = 1, run = 1;
};
void add_linear(Weights& to, const ModelPlan& plan, const std::string& name,
                const std::vector<int64_t>& extents, double std = kStd, Fused of = {});
void add_norm(Weights& to, const ModelPlan& plan, const std::string& name);
void add_attention(Weights& to, const ModelPlan& plan, const std::string& name);
void add_mlp(Weights& to, const ModelPlan& plan, const std::string& name, int64_t width);

}  // namespace kuafu::oracle
