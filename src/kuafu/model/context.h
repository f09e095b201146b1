// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kuafu/parallel/expert/interface.h"
#include "kuafu/parallel/sequence/interface.h"
#include "kuafu/parallel/tensor/interface.h"
#include "kuafu/parallel/tensor/layers.h"
#include "kuafu/tensor/param.h"

namespace kuafu {

class RouterTally;
struct Inference;

/// The stream whose tokens a parameter of that use meets.
Stream stream_of(RowUse use);

/// What a layer may ask for. Nothing here names a scheme; layers of one model may be given
/// different contexts over the same mesh.
struct Context {
  const Mesh& mesh;
  const TensorParallel& tensor;
  const AttentionParallel& attention;
  ParamFactory params;
  double dropout = 0;
  /// Contexts of the transformer layers where some have a scheme of their own; empty: this one.
  std::vector<const Context*> layers = {};
  /// What the scheme's axes are made of on the mesh, where layers of several schemes share it.
  AxisAliases parts = {};
  const ExpertParallel* experts = nullptr;

  const Context& layer(int64_t i) const {
    return layers.empty() ? *this : *layers[static_cast<size_t>(i)];
  }
  /// The scheme's layout of (B, S, *) in axes of the mesh, the sequence axis in front of the
  /// sequence dim.
  Layout activation(Stream s) const;
  /// The scheme's layout of (in, out) in axes of the mesh.
  Layout weight(Role r) const;
  /// A parameter of the layer, its gradient axes derived from the activation that its use meets.
  /// `layout` may name axes of the scheme or of the mesh.
  Param param(const std::string& name, const Shape& global, const Layout& layout, RowUse use,
              Init init) const;
  /// The layout with axes of the scheme replaced by those of the mesh they are made of.
  Layout on_mesh(Layout layout) const;
};

/// What every stage has by itself: samples are whole on each rank of a data-parallel replica.
/// Tensors that the model's samples lack are undefined.
struct Side {
  Tensor tokens;    // (B, S) i64, B of this micro-batch and replica
  Tensor targets;   // (B, S) i64, -1 = ignored
  Tensor segments;  // (B, S) i64
  /// (B, S) i64, by position in any order: where the document of a position begins, for attention
  /// that stays inside documents; undefined: it does not.
  Tensor first;
  Tensor labels;  // (B) i64
  Tensor images;  // (B, patches, pixels of a patch), in the model's dtype
  int64_t batch = 0, sequence = 0;
  /// 1 / predicted tokens of the global batch: a loss of tokens is a sum times this.
  double loss_scale = 1;
  double sample_scale = 1;   ///< 1 / samples of the global batch: the same for a loss of labels
  int64_t first_sample = 0;  ///< global index of sample 0 inside the global batch, for dropout
  int64_t step = 0;
  bool is_training = true;  ///< dropout is off in validation
  /// The position in the sample of each place of a sequence; null: place = position. Per-token
  /// fields of the Side are in this order already.
  const std::vector<int64_t>* order = nullptr;
  /// The forward is for its logits, which the last block leaves there instead of a loss; null: it
  /// is for its loss.
  Inference* inference = nullptr;

  TokenGrid grid(const Layout& activation) const { return {activation, batch, sequence, order}; }
};

/// What travels from block to block: the only thing a pipeline sends.
using Flow = Tensors;

/// One entry of a model's list. The engine drives autograd a block at a time.
class ModelBlock : public Module {
 public:
  /// The last block of a model returns the scalar loss, partial over the axes that shard tokens.
  virtual Flow forward(const Flow& in, const Side& side) = 0;
  virtual std::string name() const = 0;
  /// True where backward needs nothing of forward: recomputation keeps the graph instead.
  virtual bool saves_nothing() const { return false; }

  /// Losses of the last forward besides the model's own, scaled and partial like it: extra roots of
  /// the block's backward call. Empties the list.
  Tensors take_losses() { return std::exchange(losses_, {}); }

  /// False where backward reads no parameter (an embedding): nobody needs to gather them for it.
  virtual bool backward_reads_parameters() const { return true; }

  /// Parameters of other blocks that this one uses (a tied table).
  virtual std::vector<Param*> borrowed() { return {}; }

  /// What the router of a mixture block did; null elsewhere.
  virtual RouterTally* router_tally() { return nullptr; }

 protected:
  void add_loss(const Tensor& loss) { losses_.push_back(loss); }

 private:
  Tensors losses_;
};

/// Axes a loss is partial over, besides "data", and the stream whose tokens it adds up.
struct LossAxes {
  Axes axes;
  Stream of = Stream::kInner;
};

/// A model is a list of blocks.
struct Model {
  std::vector<std::unique_ptr<ModelBlock>> blocks;
  LossAxes loss_axes;
  std::string origin = {};  ///< which plug-in's code runs in its blocks, for messages
};

/// Builds a model's shard. Checks every layout, before any communication; makes parameters.
using MakeModel = std::function<Model(const ModelPlan& plan, const Context& context)>;

/// Those of builtin_model_kinds().
void register_models(Registry<MakeModel>& models);

}  // namespace kuafu
