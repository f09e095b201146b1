// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include "kuafu/model/layers.h"
#include "kuafu/model/moe.h"

// Blocks that several models are lists of.
namespace kuafu {

/// tokens -> dropout(embedding + positions); without a table of positions where they are rotary,
/// and with a projection where the table of tokens has another width.
class Embedding : public ModelBlock {
 public:
  Embedding(const Context& ctx, const ModelPlan& plan);
  Flow forward(const Flow&, const Side& side) override;
  std::string name() const override { return "embedding"; }
  bool backward_reads_parameters() const override { return project_.has_value(); }

  Param& table() const { return tokens_; }
  /// embedding + positions, without dropout.
  Tensor sum(const Side& side) const;

 private:
  const Context& ctx_;
  int64_t first_position_;
  Param& tokens_;
  std::optional<Projection> project_;
  Param* positions_ = nullptr;
};

enum class NormPlace : uint8_t { kBeforeBranch, kAfterSum };

/// What tells the blocks of one model family from those of another.
struct BlockStyle {
  Mask mask = Mask::kCausal;
  NormPlace norm = NormPlace::kBeforeBranch;
};

/// Attention and MLP, or mixture of experts, on a residual stream:
///   before the branch   x += attention(norm1(x)); x += mlp(norm2(x))             [GPT-2]
///   after the sum       x = norm1(x + attention(x)); x = norm2(x + mlp(x))       [BERT]
///   parallel blocks     x += attention(n) + mlp(n), n = norm1(x)      [PaLM, arXiv 2204.02311]
class TransformerBlock : public ModelBlock {
 public:
  TransformerBlock(const Context& ctx, const ModelPlan& plan, int64_t index, BlockStyle style = {});
  Flow forward(const Flow& in, const Side& side) override;
  std::string name() const override { return name_; }
  RouterTally* router_tally() override { return mixture_ ? &mixture_->tally() : nullptr; }

 private:
  Tensor attention(const Tensor& x, const Side& side) const;
  Tensor feed_forward(const Tensor& x, const Side& side);

  const Context& ctx_;
  BlockStyle style_;
  std::string name_;
  Norm norm1_;
  Attention attention_;
  std::optional<Norm> norm2_;  // parallel blocks have one norm
  std::optional<Mlp> mlp_;
  std::optional<Mixture> mixture_;
};

/// norm, projection -> logits = x table^T -> cross entropy; without the norm where norms stand after
/// the sums, with a projection where the table has another width. In inference it leaves the logits.
class Head : public ModelBlock {
 public:
  /// `tokens`: the embedding's table, which is borrowed where the plan is tied.
  Head(const Context& ctx, const ModelPlan& plan, Param& tokens);
  Flow forward(const Flow& in, const Side& side) override;
  std::string name() const override { return "head"; }
  std::vector<Param*> borrowed() override;

 private:
  const Context& ctx_;
  int64_t vocab_;
  bool is_tied_;
  Param& table_;
  std::optional<Norm> norm_;
  std::optional<Projection> project_;
};

/// The last dim of a stream -> classes, whole on every rank that shares a token.
class Classifier : public Module {
 public:
  Classifier(const Context& ctx, const std::string& name, const ModelPlan& plan, int64_t classes,
             Stream stream);
  Tensor operator()(const Tensor& x) const;  // (B, S, H) of the stream -> (B, S, classes)

 private:
  const Context& ctx_;
  Axes axes_;
  Param& weight_;
  Param* bias_ = nullptr;
};

/// Appends the plan's transformer layers, with re-layouts between those of different schemes.
void append_layers(Model& model, const ModelPlan& plan, const Context& ctx, BlockStyle style = {});

/// Those of a loss of activations of that stream.
LossAxes loss_axes(const Context& ctx, Stream s);

/// Each in the file of its name.
#define KUAFU_MODEL(constant, name, model, ...) \
  Model model(const ModelPlan& plan, const Context& ctx);
#include "kuafu/plan/models.def"

}  // namespace kuafu
