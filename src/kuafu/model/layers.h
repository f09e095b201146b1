// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "kuafu/model/context.h"

// Layers with their parameters: what models are written with.
namespace kuafu {

class Linear : public Module {
 public:
  /// in, out: global widths; weight is laid out by the role, bias as the output's last dim.
  Linear(const Context& ctx, const std::string& name, int64_t in, int64_t out, Role role,
         double std);
  Tensor operator()(const Tensor& x) const;  // input layout of the role -> its output layout

 private:
  const Context& ctx_;
  Role role_;
  Param& weight_;
  Param& bias_;
};

class LayerNorm : public Module {
 public:
  LayerNorm(const Context& ctx, const std::string& name, int64_t hidden);
  Tensor operator()(const Tensor& x) const;  // outer -> outer

 private:
  const Context& ctx_;
  int64_t hidden_;
  Param& weight_;
  Param& bias_;
};

/// Multi-head self-attention: expand to interleaved (q, k, v) per head, attend, contract.
class Attention : public Module {
 public:
  Attention(const Context& ctx, const std::string& name, const ModelPlan& plan, double out_std);
  Tensor operator()(const Tensor& x, Mask mask) const;  // outer -> outer

 private:
  const Context& ctx_;
  int64_t head_dim_;
  Linear qkv_, out_;
};

/// expand, gelu, contract. `width` is that of the contract's input.
class Mlp : public Module {
 public:
  Mlp(const Context& ctx, const std::string& name, const ModelPlan& plan, int64_t width,
      double out_std);
  Tensor operator()(const Tensor& x) const;  // outer -> outer

 private:
  Linear up_, down_;
};

/// gelu with the tanh approximation, differentiable.
Tensor gelu(const Tensor& x);

}  // namespace kuafu
