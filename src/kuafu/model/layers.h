// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include "kuafu/model/context.h"
#include "kuafu/parallel/tensor/norms.h"
#include "kuafu/tensor/differentiable.h"

// Layers with their parameters: what models are written with. Inputs and outputs are shards.
namespace kuafu {

enum class WithBias : uint8_t { kNo, kYes };

class Linear : public Module {
 public:
  /// in, out: global widths; weight is laid out by the role, bias as the output's last dim;
  /// `layers`: linears of the published model that are one here.
  Linear(const Context& ctx, const std::string& name, int64_t in, int64_t out, Role role,
         double std, WithBias with_bias = WithBias::kYes, LayerSplit layers = {});
  Tensor operator()(const Tensor& x) const;  // input layout of the role -> its output layout

 private:
  const Context& ctx_;
  Role role_;
  Param& weight_;
  Param* bias_ = nullptr;
};

/// Layer norm, or RMS norm where the plan says so.
class Norm : public Module {
 public:
  Norm(const Context& ctx, const std::string& name, const ModelPlan& plan);
  Tensor operator()(const Tensor& x) const;  // outer -> outer
  /// x + branch(norm(x)), or of several branches x + branch_1(norm(x)) + branch_2(norm(x)) ...: a
  /// residual stream, outer -> outer.
  template <class... Branches>
  Tensor residual(const Tensor& x, const Branches&... branches) const;

 private:
  Normed with_input(const Tensor& x) const;

  const Context& ctx_;
  int64_t hidden_;
  double epsilon_;
  bool is_rms_;
  Param& weight_;
  Param* bias_ = nullptr;
  const Tensor* no_bias_ = nullptr;  // zeros, for a layer norm without bias
};

template <class... Branches>
Tensor Norm::residual(const Tensor& x, const Branches&... branches) const {
  const Normed n = with_input(x);
  const Tensors uses = sizeof...(branches) == 1 ? Tensors{n.y} : fan_out(n.y, sizeof...(branches));
  Tensor sum = n.x;
  size_t i = 0;
  ((sum = sum.add(branches(uses[i++]))), ...);
  return sum;
}

/// Columns [first, first + count) of a parameter that is whole on this rank.
struct Columns {
  int64_t first = 0, count = 0;
};

/// H -> key and value of each key-value head, side by side. Where the ranks that share the inner
/// width outnumber the heads, each has the columns of the one head its queries read, and the weight
/// is replicated over them: the product is the expand of a virtual weight with a head for each
/// rank, and gradients sum over the replicas.
/// [Shazeer, arXiv 1911.02150; Ainslie et al., arXiv 2305.13245]
class KeyValues : public Module {
 public:
  KeyValues(const Context& ctx, const std::string& name, const ModelPlan& plan);
  Tensor operator()(const Tensor& x) const;  // outer -> (B, S, my heads x 2 D), inner

 private:
  const Context& ctx_;
  std::optional<Columns> weight_columns_, bias_columns_;  // of replicated heads
  Param& weight_;
  Param* bias_ = nullptr;
};

/// Self-attention: expand to heads, rotate queries and keys where positions are rotary, attend,
/// contract. As many key-value heads as heads: one expand to (q, k, v), interleaved per head.
class Attention : public Module {
 public:
  Attention(const Context& ctx, const std::string& name, const ModelPlan& plan, double out_std);
  Tensor operator()(const Tensor& x, Mask mask, const Side& side) const;  // outer -> outer

 private:
  Tensors heads(const Tensor& x) const;

  const Context& ctx_;
  int64_t head_dim_;
  std::optional<double> rotary_base_;  // where positions are rotary
  std::optional<Linear> qkv_, q_;
  std::optional<KeyValues> kv_;
  Linear out_;
};

/// What stands between the linears of an MLP, by plan.mlp. Gelu is the tanh form, SwiGLU
/// silu(gate) * up of interleaved columns (gate, up).
enum class Activation : uint8_t { kGelu, kGeluExact, kRelu, kSwiglu };
Activation activation_of(const ModelPlan& plan);
/// Linears of the published model that are one before it: columns are as many times its own.
int64_t fused_columns(Activation kind);

/// Differentiable. Backward keeps the input, of relu the output, which the linear behind it keeps
/// too.
Tensor activate(const Tensor& x, Activation kind);

/// expand, activation, contract. `width` is that of the contract's input.
class Mlp : public Module {
 public:
  Mlp(const Context& ctx, const std::string& name, const ModelPlan& plan, int64_t width,
      double out_std);
  Tensor operator()(const Tensor& x) const;  // outer -> outer

 private:
  Activation activation_;
  Linear up_, down_;
};

/// Between the width of the table of tokens, E, and that of the residual stream, H, without a bias:
/// an expand whose output is laid out as the outer stream again.
class Projection : public Module {
 public:
  /// Throws NotDivisible where the scheme cuts plan.embedding unevenly.
  Projection(const Context& ctx, const std::string& name, const ModelPlan& plan, int64_t in,
             int64_t out);
  Tensor operator()(const Tensor& x) const;  // outer, (B, S, in) -> outer, (B, S, out)

 private:
  const Context& ctx_;
  Linear expand_;
};

/// Dropout on the outer stream; the site is the layer's name.
Tensor drop(const Context& ctx, const Tensor& x, const std::string& site, const Side& side);

/// Whether the plan's linears and layer norms have biases.
WithBias bias_of(const ModelPlan& plan);

/// Throws NotDivisible where the scheme cuts heads or the widths of a block's linears unevenly:
/// what the shapes of parameters, which may be padded, do not say.
void check_block(const Context& ctx, const ModelPlan& plan);

}  // namespace kuafu
