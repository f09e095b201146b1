// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kuafu/oracle/layers.h"

namespace kuafu::oracle {

/// embedding, blocks.0 ... blocks.(layers - 1), head: what all models are. A model says what the
/// three are; a block's weights are those named after it, and what it borrows.
class Transformer : public Model {
 public:
  Transformer(const ModelPlan& plan, uint64_t seed) : plan_(plan), seed_(seed) {}

  std::vector<std::string> blocks() const override;
  std::vector<std::string> params_of(size_t block) const override;
  Flow forward(size_t block, const Flow& in, const Tensors& weights, const Samples& samples,
               Extra& extra) const override;

 protected:
  virtual Tensor embed(const Call& call) const = 0;  // -> (B, S, H)
  virtual Tensor layer(const Call& call, const Tensor& x, int64_t index) const = 0;
  virtual Tensor loss(const Call& call, const Tensor& x) const = 0;  // (B, S, H) -> ()
  /// The table of token embeddings is the head's last product.
  virtual bool is_tied() const { return true; }

  const ModelPlan& plan() const { return plan_; }

 private:
  ModelPlan plan_;
  uint64_t seed_;
};

/// "blocks.3"
std::string layer_name(int64_t index);

/// GPT; what stands in the place of an MLP may be another layer.
class Gpt : public Transformer {
 public:
  using Transformer::Transformer;
  Weights weights() const override;

 protected:
  Tensor embed(const Call& call) const override;
  Tensor layer(const Call& call, const Tensor& x, int64_t index) const override;
  Tensor loss(const Call& call, const Tensor& x) const override;
  bool is_tied() const override { return plan().tied; }

  /// x times a table of tokens, the embedding's or the head's own, against the targets.
  Tensor surprise(const Call& call, const Tensor& x) const;

  virtual Tensor feed(const Call& call, const Tensor& x, int64_t index) const;
  virtual void add_feed(Weights& to, int64_t index) const;
};

/// x += attention(norm1(x)); x += feed(norm2(x)), each branch dropped out; or, where the plan has
/// parallel blocks, x += attention(n) + feed(n), n = norm1(x).
///           [Radford et al., 2019, section 2.3; Chowdhery et al., arXiv 2204.02311, section 2]
Tensor pre_norm_layer(const Call& call, const Tensor& x, const std::string& name, Sees sees,
                      const std::function<Tensor(const Tensor&)>& feed);
/// Its norms and attention.
void add_pre_norm_layer(Weights& to, const ModelPlan& plan, const std::string& name);

/// x = norm1(x + attention(x)); x = norm2(x + mlp(x)), each branch dropped out.
///                                              [Vaswani et al., arXiv 1706.03762, section 3.1]
Tensor post_norm_layer(const Call& call, const Tensor& x, const std::string& name, Sees sees);

/// lookup + positions, where they are learned.
Tensor embed_tokens(const Call& call);
void add_embedding(Weights& to, const ModelPlan& plan);

/// Each in the file of its name.
#define KUAFU_MODEL(constant, name, model, oracle, ...) \
  std::unique_ptr<Model> oracle(const ModelPlan& plan, uint64_t seed);
#include "kuafu/plan/models.def"

}  // namespace kuafu::oracle
