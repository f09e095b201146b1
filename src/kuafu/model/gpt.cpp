// SPDX-License-Identifier: Apache-2.0
//
// GPT-2.                                       [Radford et al., 2019; 12 H^2 + 13 H parameters a
// layer]
//
//   tokens -> embedding + positions -> [ x + attention(norm1(x)); x + mlp(norm2(x)) ] x layers
//          -> final norm -> logits = x table^T (tied) -> cross entropy
//
// Written once: it asks for expand and contract and knows no scheme.

#include <cmath>
#include <optional>

#include "kuafu/base/philox.h"
#include "kuafu/model/layers.h"
#include "kuafu/model/moe.h"
#include "kuafu/model/relayout_block.h"

namespace kuafu {
namespace {

constexpr double kStd = 0.02;

/// Dropout on the residual stream; the site is the layer's name.
Tensor drop(const Context& ctx, const Tensor& x, const std::string& site, int64_t hidden,
            const Side& side) {
  return dropout(ctx.mesh, x,
                 {.p = side.is_training ? ctx.dropout : 0,
                  .seed = ctx.params.seed,
                  .site = hash_name(site),
                  .step = side.step,
                  .first_sample = side.first_sample},
                 hidden, side.grid(ctx.activation(Stream::kOuter)));
}

class Embedding : public ModelBlock {
 public:
  Embedding(const Context& ctx, const ModelPlan& plan)
      : ctx_(ctx),
        hidden_(plan.hidden),
        tokens_(add(ctx.param("embedding.tokens", {plan.vocab, plan.hidden},
                              ctx.tensor.weight(Role::kContract), Stream::kOuter, {.std = kStd}))),
        positions_(add(ctx.param("embedding.positions", {plan.sequence, plan.hidden},
                                 Layout{{{}, ctx.activation(Stream::kOuter).dims[2]}},
                                 Stream::kOuter, {.std = kStd}))) {}

  Flow forward(const Flow&, const Side& side) override {
    const TokenGrid grid = side.grid(ctx_.activation(Stream::kOuter));
    const Tensor x = embedding(ctx_.mesh, side.tokens, tokens_.value, tokens_.layout, grid);
    const Tensor placed = add_positions(ctx_.mesh, x, positions_.value, grid);
    return {drop(ctx_, placed, "embedding", hidden_, side)};
  }
  std::string name() const override { return "embedding"; }

  const Param& table() const { return tokens_; }

 private:
  const Context& ctx_;
  int64_t hidden_;
  Param& tokens_;
  Param& positions_;
};

class TransformerBlock : public ModelBlock {
 public:
  TransformerBlock(const Context& ctx, const ModelPlan& plan, int64_t index)
      : ctx_(ctx),
        hidden_(plan.hidden),
        name_(text("blocks.", index)),
        norm1_(ctx, name_ + ".norm1", plan.hidden),
        attention_(ctx, name_ + ".attn", plan, residual_std(plan)),
        norm2_(ctx, name_ + ".norm2", plan.hidden) {
    for (Module* child : std::initializer_list<Module*>{&norm1_, &attention_, &norm2_}) {
      add_child(*child);
    }
    if (is_mixture(plan, index)) {
      add_child(mixture_.emplace(ctx, name_ + ".moe", plan, residual_std(plan)));
    } else {
      add_child(mlp_.emplace(ctx, name_ + ".mlp", plan, plan.ffn_width(), residual_std(plan)));
    }
  }

  Flow forward(const Flow& in, const Side& side) override {
    Tensor x = in[0];
    x = x + drop(ctx_, attention_(norm1_(x), Mask::kCausal), name_ + ".attn", hidden_, side);
    return {x + drop(ctx_, feed(norm2_(x), side), name_ + ".mlp", hidden_, side)};
  }
  std::string name() const override { return name_; }
  const RouterTally* router_tally() const override {
    return mixture_ ? &mixture_->tally() : nullptr;
  }

 private:
  /// MLP or mixture: outer -> outer.
  Tensor feed(const Tensor& x, const Side& side) {
    if (mlp_) return (*mlp_)(x);
    const Mixture::Out out = (*mixture_)(x, side);
    if (at::GradMode::is_enabled()) add_loss(out.loss);
    return out.y;
  }

  /// Branches that end in the residual stream start smaller, by their number. [GPT-2, section 2.3]
  static double residual_std(const ModelPlan& plan) {
    return kStd / std::sqrt(2.0 * static_cast<double>(plan.layers));
  }

  const Context& ctx_;
  int64_t hidden_;
  std::string name_;
  LayerNorm norm1_;
  Attention attention_;
  LayerNorm norm2_;
  std::optional<Mlp> mlp_;
  std::optional<Mixture> mixture_;
};

class Head : public ModelBlock {
 public:
  Head(const Context& ctx, const ModelPlan& plan, const Param& table)
      : ctx_(ctx), vocab_(plan.vocab), table_(table), norm_(ctx, "head.norm", plan.hidden) {
    add_child(norm_);
  }

  Flow forward(const Flow& in, const Side& side) override {
    const Tensor logits = tied_head(ctx_.tensor, norm_(in[0]), table_.value);
    return {cross_entropy(ctx_.mesh, logits, side.targets, side.loss_scale, vocab_,
                          side.grid(ctx_.activation(Stream::kInner)))};
  }
  std::string name() const override { return "head"; }

 private:
  const Context& ctx_;
  int64_t vocab_;
  const Param& table_;
  LayerNorm norm_;
};

Model make_gpt(const ModelPlan& plan, const Context& ctx) {
  Model model;
  auto embedding = std::make_unique<Embedding>(ctx, plan);
  const Param& table = embedding->table();
  model.blocks.push_back(std::move(embedding));
  for (int64_t i = 0; i < plan.layers; ++i) {
    const Context& layer = ctx.layer(i);
    // What the parameters' own shapes do not say: whole heads on every rank.
    local_shape(Layout{{layer.activation(Stream::kInner).dims[2]}}, {plan.heads}, ctx.mesh,
                "model.heads");
    append_relayout(model, i == 0 ? ctx : ctx.layer(i - 1), layer);
    model.blocks.push_back(std::make_unique<TransformerBlock>(layer, plan, i));
  }
  append_relayout(model, ctx.layer(plan.layers - 1), ctx);
  model.blocks.push_back(std::make_unique<Head>(ctx, plan, table));
  for (const Axes& axes :
       {ctx.activation(Stream::kInner).dims[0], ctx.activation(Stream::kInner).dims[1]}) {
    model.loss_axes.insert(model.loss_axes.end(), axes.begin(), axes.end());
  }
  return model;
}

}  // namespace

void register_models(Registry<MakeModel>& models) {
  models.add("gpt", "GPT-2: learned positions, pre-norm, biases, tanh GELU, tied output", make_gpt);
  models.add("moe_gpt", "GPT whose every moe_every-th MLP is a mixture of experts", make_gpt);
}

}  // namespace kuafu
