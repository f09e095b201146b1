// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "kuafu/mesh/mesh.h"
#include "kuafu/optim/shard_layers.h"
#include "kuafu/tensor/param.h"

namespace kuafu {

struct ParamShard;

/// A parameter of the whole model, for those who watch: its layers are rows of what they read.
struct WatchedParam {
  const Param* param = nullptr;
  bool is_mine = false;  ///< of a stage of mine, else another rank of the pipeline watches it
};

/// Norms of the layers of one step, of all ranks: sums of squares are taken piece by piece beside
/// the update, then each axis carries one all-reduce with all of them. Changes nothing of the step.
class LayerWatch {
 public:
  enum Column : int64_t { kGradient, kWeight, kUpdate, kRatio, kVariance, kSquare, kNumColumns };

  /// `model`: in the same order on every rank; `batch`: samples of a step.
  LayerWatch(std::vector<WatchedParam> model, int64_t batch, at::Device device);

  /// Before the first gradient of a step.
  void begin_backward() { own_.clear(); }
  /// A part of p's gradient, which is its sum over all calls and `replicas`: that of some samples of
  /// mine, summed over all axes but those. (p's shard), as what it is a part of.
  void add_own(const Param& p, const Tensor& part, const Axes& replicas, const Mesh& mesh);
  /// The same of a parameter without replicas, whose gradient has grown by the part. Keeps a copy
  /// until the last call of a step.
  void add_grown(const Param& p, bool is_last, const Mesh& mesh);

  /// A step's pieces with their summed gradients, before they are clipped: times `factor` they are
  /// those of the loss. Every rank lists the same parameters.
  void begin(std::span<const ParamShard> shards, double factor, const Mesh& mesh);
  /// Of a step that updates nothing, after begin() and around nothing: finish() tells no number. Traffic
  /// and memory are those of any other.
  void skip() { is_skipped_ = true; }
  /// Around the update of a piece: what it is updated in, a master copy of half precision. Keeps a
  /// copy in between.
  void before_update(size_t shard, const Tensor& value);
  void after_update(size_t shard, const Tensor& value);
  /// (layers of the parameter) f64, as the rule used them.
  void set_ratios(size_t shard, const Tensor& ratios);

  /// (layers of the model, kNumColumns) f64, the same on every rank: squares, ratios, and estimates
  /// from the parts (tr Sigma of one sample's gradient, and the square of its mean); NaN where there
  /// was no update, or fewer than two parts; 0 where the rule has no ratios. Collective over the mesh.
  Tensor finish(const Mesh& mesh);
  int64_t num_layers() const { return num_layers_; }

 private:
  struct WatchedPiece {
    const Param* param = nullptr;  // null where it is a copy, which its owner counts
    uint64_t axes = 0;
    int64_t first = 0;  // row of the parameter's first layer in the table of its axes
    ShardLayers held;
    Tensor ratios;
  };
  /// Sums of squares of the parts of a gradient that were seen here.
  struct Own {
    uint64_t axes = 0;  // that hold other layers or other parts
    ShardLayers held;
    Tensor squares;     // (layers of the parameter) f64
    Tensor before;      // of a gradient that grows
    int64_t parts = 0;  // of all replicas
  };
  void lay_out(std::span<const ParamShard> shards, const Mesh& mesh);
  Tensor rows_of(const WatchedPiece& piece) const;
  Tensor held_rows_of(const WatchedPiece& piece) const;
  Own& own_of(const Param& p, const Axes& replicas, const Mesh& mesh);
  void estimate(const Own& own, const Tensor& rows) const;

  std::vector<WatchedParam> model_;
  int64_t batch_;
  at::Device device_;
  int64_t num_layers_ = 0;
  std::vector<WatchedPiece> pieces_;
  std::map<uint64_t, Tensor> tables_;  // by axes: (layers, 3) f64
  std::map<const Param*, Own> own_;
  Tensor before_;
  double factor_ = 1;  // of the gradients of this step
  bool is_skipped_ = false;
};

}  // namespace kuafu
