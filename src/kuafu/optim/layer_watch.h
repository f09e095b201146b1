// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
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
  enum Column : int64_t { kGradient, kWeight, kUpdate, kRatio, kNumColumns };

  /// `model`: in the same order on every rank.
  LayerWatch(std::vector<WatchedParam> model, at::Device device);

  /// A step's pieces with their summed gradients, before they are clipped: times `factor` they are
  /// those of the loss. Every rank lists the same parameters.
  void begin(std::span<const ParamShard> shards, double factor, const Mesh& mesh);
  /// The same of a step that updates nothing: no number, and the same traffic.
  void begin_skipped(std::span<const ParamShard> shards, const Mesh& mesh);
  /// Around the update of a piece: what it is updated in, a master copy of half precision. Keeps a
  /// copy in between.
  void before_update(size_t shard, const Tensor& value);
  void after_update(size_t shard, const Tensor& value);
  /// (layers of the parameter) f64, as the rule used them.
  void set_ratios(size_t shard, const Tensor& ratios);

  /// (layers of the model, kNumColumns) f64, the same on every rank: squares, and ratios; NaN where
  /// there was no update, 0 where the rule has no ratios. Collective over the mesh.
  Tensor finish(const Mesh& mesh);
  int64_t num_layers() const { return num_layers_; }

 private:
  struct Piece {
    const Param* param = nullptr;  // null where it is a copy, which its owner counts
    uint64_t axes = 0;
    int64_t first = 0;  // row of the parameter's first layer in the table of its axes
    ShardLayers held;
    Tensor ratios;
  };
  void lay_out(std::span<const ParamShard> shards, const Mesh& mesh);
  Tensor rows_of(const Piece& piece) const;

  std::vector<WatchedParam> model_;
  at::Device device_;
  int64_t num_layers_ = 0;
  std::vector<Piece> pieces_;
  std::vector<std::pair<uint64_t, Tensor>> tables_;  // by axes, rising: (layers, 3) f64
  Tensor before_;
  bool is_skipped_ = false;
};

}  // namespace kuafu
