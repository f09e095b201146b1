// SPDX-License-Identifier: Apache-2.0
#include "kuafu/model/blocks.h"

#include <cmath>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "kuafu/model/inference.h"
#include "kuafu/model/init.h"
#include "kuafu/model/key_value_cache.h"
#include "kuafu/model/relayout_block.h"
#include "kuafu/parallel/tensor/first_token.h"
#include "kuafu/tensor/differentiable.h"

namespace kuafu {
namespace {

/// Branches that end in the residual stream start smaller, by their number. [GPT-2, section 2.3]
double residual_std(const ModelPlan& plan) {
  return kStd / std::sqrt(2.0 * static_cast<double>(plan.layers));
}

bool is_projected(const ModelPlan& plan) { return plan.embedding_width() != plan.hidden; }

}  // namespace

Embedding::Embedding(const Context& ctx, const ModelPlan& plan)
    : ctx_(ctx),
      first_position_(plan.first_position()),
      tokens_(add(ctx.param("embedding.tokens", {plan.vocab, plan.embedding_width()},
                            ctx.weight(Role::kContract), RowUse::kTable, {.std = kStd}))) {
  if (is_projected(plan)) {
    add_child(project_.emplace(ctx, "embedding.project", plan, plan.embedding, plan.hidden));
  }
  if (plan.positions == "rotary") return;
  positions_ = &add(ctx.param("embedding.positions", {first_position_ + plan.sequence, plan.hidden},
                              Layout{{{}, ctx.activation(Stream::kOuter).dims[2]}},
                              RowUse::kOuterWidth, {.std = kStd}));
}

Flow Embedding::forward(const Flow&, const Side& side) {
  return {drop(ctx_, sum(side), "embedding", side)};
}

Tensor Embedding::sum(const Side& side) const {
  const TokenGrid grid = side.grid(ctx_.activation(Stream::kOuter));
  Tensor x = embedding(ctx_.mesh, side.tokens, tokens_.value, tokens_.layout, grid);
  if (project_) x = (*project_)(x);
  if (positions_ == nullptr) return x;
  if (is_behind_cache(side)) {
    return add_positions_behind_cache(
        x, positions_->value, positions_behind_cache(ctx_.mesh, grid, side), first_position_);
  }
  return add_positions(ctx_.mesh, x, positions_->value, grid, first_position_);
}

TransformerBlock::TransformerBlock(const Context& ctx, const ModelPlan& plan, int64_t index,
                                   BlockStyle style)
    : ctx_(ctx),
      style_(style),
      name_(text("blocks.", index)),
      norm1_(ctx, name_ + ".norm1", plan),
      attention_(ctx, name_ + ".attn", plan, residual_std(plan)) {
  add_child(norm1_);
  add_child(attention_);
  if (!plan.parallel_blocks) add_child(norm2_.emplace(ctx, name_ + ".norm2", plan));
  if (is_mixture(plan, index)) {
    add_child(mixture_.emplace(ctx, name_ + ".moe", plan, residual_std(plan)));
  } else {
    add_child(mlp_.emplace(ctx, name_ + ".mlp", plan, plan.ffn_width(), residual_std(plan)));
  }
}

Flow TransformerBlock::forward(const Flow& in, const Side& side) {
  const auto attend = [&](const Tensor& y) { return attention(y, side); };
  const auto feed = [&](const Tensor& y) { return feed_forward(y, side); };
  if (!norm2_) return {norm1_.residual(in[0], attend, feed)};
  if (style_.norm == NormPlace::kAfterSum) {
    Tensors uses = fan_out(in[0], 2);
    const Tensor x = norm1_(uses[0] + attend(uses[1]));
    uses = fan_out(x, 2);
    return {(*norm2_)(uses[0] + feed(uses[1]))};
  }
  return {norm2_->residual(norm1_.residual(in[0], attend), feed)};
}

Tensor TransformerBlock::attention(const Tensor& x, const Side& side) const {
  return drop(ctx_, attention_(x, style_.mask, side), name_ + ".attn", side);
}

Tensor TransformerBlock::feed_forward(const Tensor& x, const Side& side) {
  if (mlp_) return drop(ctx_, (*mlp_)(x), name_ + ".mlp", side);
  const Mixture::Out out = (*mixture_)(x, side);
  if (at::GradMode::is_enabled()) add_loss(out.loss);
  return drop(ctx_, out.y, name_ + ".mlp", side);
}

Head::Head(const Context& ctx, const ModelPlan& plan, Param& tokens)
    : ctx_(ctx),
      vocab_(plan.vocab),
      is_tied_(plan.tied),
      table_(plan.tied
                 ? tokens
                 : add(ctx.param("head.tokens", {plan.vocab, plan.embedding_width()},
                                 ctx.weight(Role::kContract), RowUse::kContract, {.std = kStd}))) {
  if (!plan.post_norm) add_child(norm_.emplace(ctx, "head.norm", plan));
  if (is_projected(plan)) {
    add_child(project_.emplace(ctx, "head.project", plan, plan.hidden, plan.embedding));
  }
}

std::vector<Param*> Head::borrowed() {
  return is_tied_ ? std::vector<Param*>{&table_} : std::vector<Param*>{};
}

Flow Head::forward(const Flow& in, const Side& side) {
  Tensor x = side.inference == nullptr ? in[0] : wanted_rows(ctx_, in[0], side);
  if (norm_) x = (*norm_)(x);
  if (project_) x = (*project_)(x);
  const Tensor logits = tied_head(ctx_.tensor, x, table_.value);
  const TokenGrid grid = side.grid(ctx_.activation(Stream::kInner));
  if (side.inference != nullptr) {
    keep_logits(ctx_.mesh, logits, grid, side);
    return {at::zeros({}, logits.options())};  // the last block hands on one number
  }
  return {cross_entropy(ctx_.mesh, logits, side.targets, side.loss_scale, vocab_, grid)};
}

Classifier::Classifier(const Context& ctx, const std::string& name, const ModelPlan& plan,
                       int64_t classes, Stream stream)
    : ctx_(ctx),
      axes_(ctx.activation(stream).dims[2]),
      weight_(add(ctx.param(name + ".weight", {plan.hidden, classes}, Layout{{axes_, {}}},
                            stream == Stream::kOuter ? RowUse::kFromOuter : RowUse::kFromInner,
                            {.std = kStd}))) {
  if (!plan.bias) return;
  bias_ = &add(ctx.param(name + ".bias", {classes}, Layout::replicated(1),
                         stream == Stream::kOuter ? RowUse::kOuterTokens : RowUse::kInnerTokens,
                         {.kind = Init::Kind::kZeros}));
}

Tensor Classifier::operator()(const Tensor& x) const {
  return classify(ctx_.mesh, x, weight_.value, bias_ == nullptr ? Tensor() : bias_->value, axes_);
}

void append_layers(Model& model, const ModelPlan& plan, const Context& ctx, BlockStyle style) {
  for (int64_t i = 0; i < plan.layers; ++i) {
    const Context& layer = ctx.layer(i);
    check_block(layer, plan);
    append_relayout(model, i == 0 ? ctx : ctx.layer(i - 1), layer);
    model.blocks.push_back(std::make_unique<TransformerBlock>(layer, plan, i, style));
  }
  append_relayout(model, ctx.layer(plan.layers - 1), ctx);
}

LossAxes loss_axes(const Context& ctx, Stream s) {
  Axes all;
  for (const size_t dim : {0, 1}) {
    const Axes axes = ctx.activation(s).dims[dim];
    all.insert(all.end(), axes.begin(), axes.end());
  }
  return {all, s};
}

}  // namespace kuafu
