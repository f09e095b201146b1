// SPDX-License-Identifier: Apache-2.0
//
// Vision transformer.                               [Dosovitskiy et al., arXiv 2010.11929]
//
//   image -> patches W + positions, a class token in front
//         -> [ x + attention(norm1(x)); x + mlp(norm2(x)) ] x layers, every patch sees every other
//         -> class token -> norm -> classes -> cross entropy

#include <ATen/ATen.h>

#include "kuafu/model/blocks.h"
#include "kuafu/model/init.h"
#include "kuafu/parallel/tensor/first_token.h"

namespace kuafu {
namespace {

class PatchEmbedding : public ModelBlock {
 public:
  PatchEmbedding(const Context& ctx, const ModelPlan& plan)
      : ctx_(ctx),
        weight_(own("embedding.patches.weight", {3 * plan.patch * plan.patch, plan.hidden})),
        class_(own("embedding.class", {plan.hidden})) {
    if (plan.bias) bias_ = &own("embedding.patches.bias", {plan.hidden}, Init::Kind::kZeros);
    if (plan.positions == "learned") {
      positions_ = &own("embedding.positions", {plan.sequence, plan.hidden});
    }
  }

  Flow forward(const Flow&, const Side& side) override {
    const TokenGrid grid = side.grid(ctx_.activation(Stream::kOuter));
    Tensor x = embed_patches(ctx_.mesh, side.images, weight_.value,
                             bias_ == nullptr ? Tensor() : bias_->value, class_.value, grid);
    if (positions_ != nullptr) x = add_positions(ctx_.mesh, x, positions_->value, grid);
    return {drop(ctx_, x, "embedding", side)};
  }
  std::string name() const override { return "embedding"; }

 private:
  /// A parameter whose last dim is laid out as the outer stream's, so that nothing is sent.
  Param& own(const std::string& name, const Shape& shape, Init::Kind kind = Init::Kind::kNormal) {
    Layout layout = Layout::replicated(shape.size());
    layout.dims.back() = ctx_.activation(Stream::kOuter).dims[2];
    return add(ctx_.param(name, shape, layout, RowUse::kOuterWidth, {.kind = kind, .std = kStd}));
  }

  const Context& ctx_;
  Param& weight_;
  Param& class_;
  Param* bias_ = nullptr;
  Param* positions_ = nullptr;
};

class ClassHead : public ModelBlock {
 public:
  ClassHead(const Context& ctx, const ModelPlan& plan)
      : ctx_(ctx),
        norm_(ctx, "head.norm", plan),
        classes_(ctx, "head.classes", plan, plan.classes, Stream::kOuter) {
    add_child(norm_);
    add_child(classes_);
  }

  Flow forward(const Flow& in, const Side& side) override {
    const Layout outer = ctx_.activation(Stream::kOuter);
    const Tensor token = norm_(first_token(ctx_.mesh, in[0], side.grid(outer)));
    return {label_loss(ctx_.mesh, classes_(token), side.labels, side.sample_scale, outer,
                       ctx_.mesh.size(outer.dims[1]))};
  }
  std::string name() const override { return "head"; }

 private:
  const Context& ctx_;
  Norm norm_;
  Classifier classes_;
};

}  // namespace

Model make_vit(const ModelPlan& plan, const Context& ctx) {
  check_block(ctx, plan);
  Model model;
  model.blocks.push_back(std::make_unique<PatchEmbedding>(ctx, plan));
  append_layers(model, plan, ctx, {.mask = Mask::kNone});
  model.blocks.push_back(std::make_unique<ClassHead>(ctx, plan));
  model.loss_axes = loss_axes(ctx, Stream::kOuter);
  return model;
}

}  // namespace kuafu
