// SPDX-License-Identifier: Apache-2.0
//
// BERT: masked language model and next sentence.            [Devlin et al., arXiv 1810.04805]
//
//   tokens -> norm(embedding + positions + segments)
//          -> [ norm1(x + attention(x)); norm2(x + mlp(x)) ] x layers, every token sees every other
//          -> hidden tokens: norm(activation(x W)) table^T + bias (tied) -> cross entropy
//          -> next sentence: tanh(first token W) -> 2 classes      -> cross entropy
//
// The loss is the sum of the two means. The activation is the MLP's; beside SwiGLU it is gelu.

#include <algorithm>

#include <ATen/ATen.h>

#include "kuafu/model/blocks.h"
#include "kuafu/model/init.h"
#include "kuafu/parallel/tensor/first_token.h"
#include "kuafu/parallel/tensor/relayout.h"
#include "kuafu/tensor/collectives.h"
#include "kuafu/tensor/differentiable.h"

namespace kuafu {
namespace {

constexpr int64_t kSegments = 2, kAnswers = 2;

class BertEmbedding : public ModelBlock {
 public:
  BertEmbedding(const Context& ctx, const ModelPlan& plan)
      : ctx_(ctx),
        tokens_(ctx, plan),
        segments_(add(ctx.param("embedding.segments", {kSegments, plan.hidden},
                                Layout{{{}, ctx.activation(Stream::kOuter).dims[2]}},
                                RowUse::kOuterWidth, {.std = kStd}))),
        norm_(ctx, "embedding.norm", plan) {
    add_child(tokens_);
    add_child(norm_);
  }

  Flow forward(const Flow&, const Side& side) override {
    const TokenGrid grid = side.grid(ctx_.activation(Stream::kOuter));
    const Tensor x = add_rows(ctx_.mesh, tokens_.sum(side), segments_.value, side.segments, grid);
    return {drop(ctx_, norm_(x), "embedding", side)};
  }
  std::string name() const override { return "embedding"; }

  Param& table() const { return tokens_.table(); }

 private:
  const Context& ctx_;
  Embedding tokens_;
  Param& segments_;
  Norm norm_;
};

class BertHead : public ModelBlock {
 public:
  BertHead(const Context& ctx, const ModelPlan& plan, Param& table)
      : ctx_(ctx),
        vocab_(plan.vocab),
        table_(table),
        activation_(plan.mlp == "swiglu" ? Activation::kGelu : activation_of(plan)),
        transform_(ctx, "head.transform", plan.hidden, plan.hidden, Role::kExpand, kStd,
                   bias_of(plan)),
        norm_(ctx, "head.norm", plan),
        pooler_(ctx, "head.pooler", plan.hidden, plan.hidden, Role::kExpand, kStd, bias_of(plan)),
        answer_(ctx, "head.answer", plan, kAnswers, Stream::kInner) {
    for (Module* child : std::initializer_list<Module*>{&transform_, &norm_, &pooler_, &answer_}) {
      add_child(*child);
    }
    if (!plan.bias) return;
    bias_ = &add(ctx.param("head.bias", {plan.vocab}, Layout{{bias_axes()}}, RowUse::kLogits,
                           {.kind = Init::Kind::kZeros}));
  }

  Flow forward(const Flow& in, const Side& side) override {
    const Tensors x = fan_out(in[0], 2);
    const Tensor loss = hidden_tokens(x[0], side);
    return {loss + next_sentence(x[1], side)};
  }
  std::string name() const override { return "head"; }
  std::vector<Param*> borrowed() override { return {&table_}; }

 private:
  Tensor hidden_tokens(const Tensor& x, const Side& side) const {
    const Layout outer = ctx_.activation(Stream::kOuter), inner = ctx_.activation(Stream::kInner);
    const Tensor y = relayout(ctx_.mesh, activate(transform_(x), activation_), inner, outer);
    const Tensor logits = tied_head(ctx_.tensor, norm_(y), table_.value, bias());
    return cross_entropy(ctx_.mesh, logits, side.targets, side.loss_scale, vocab_,
                         side.grid(inner));
  }

  Tensor next_sentence(const Tensor& x, const Side& side) const {
    const Layout outer = ctx_.activation(Stream::kOuter), inner = ctx_.activation(Stream::kInner);
    const Tensor pooled = at::tanh(pooler_(first_token(ctx_.mesh, x, side.grid(outer))));
    return label_loss(ctx_.mesh, answer_(pooled), side.labels, side.sample_scale, inner,
                      ctx_.mesh.size(outer.dims[1]));
  }

  /// Those of the columns of logits. A scheme that cuts the rows of the table over more ranks pads
  /// them further: then also the axes that cut rows alone, so that both are padded alike.
  Axes bias_axes() const {
    const Axes columns = ctx_.activation(Stream::kInner).dims[2];
    const Axes& rows = table_.layout.dims[0];
    Axes axes = columns;
    if (ctx_.mesh.size(rows) == ctx_.mesh.size(columns)) return axes;
    for (const std::string& axis : rows) {
      if (std::count(columns.begin(), columns.end(), axis) == 0) axes.push_back(axis);
    }
    return axes;
  }

  /// Of the columns of my logits.
  Tensor bias() const {
    if (bias_ == nullptr) return {};
    const Axes& axes = bias_->layout.dims[0];
    const size_t columns = ctx_.activation(Stream::kInner).dims[2].size();
    Tensor mine = bias_->value;
    for (size_t i = axes.size(); i-- > columns;) {
      mine = kuafu::gather(mine, ctx_.mesh.comm(axes[i]), 0);
    }
    return mine;
  }

  const Context& ctx_;
  int64_t vocab_;
  Param& table_;
  Param* bias_ = nullptr;
  Activation activation_;
  Linear transform_;
  Norm norm_;
  Linear pooler_;
  Classifier answer_;
};

}  // namespace

Model make_bert(const ModelPlan& plan, const Context& ctx) {
  check_block(ctx, plan);
  Model model;
  auto embedding = std::make_unique<BertEmbedding>(ctx, plan);
  Param& table = embedding->table();
  model.blocks.push_back(std::move(embedding));
  append_layers(model, plan, ctx, {.mask = Mask::kNone, .norm = NormPlace::kAfterSum});
  model.blocks.push_back(std::make_unique<BertHead>(ctx, plan, table));
  model.loss_axes = loss_axes(ctx, Stream::kInner);
  return model;
}

}  // namespace kuafu
