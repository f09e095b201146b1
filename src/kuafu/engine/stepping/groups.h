// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "kuafu/engine/stepping/stage_map.h"
#include "kuafu/mesh/mesh.h"
#include "kuafu/model/context.h"
#include "kuafu/states/store.h"

namespace kuafu {

/// What a block is used for.
enum class BlockUse : uint8_t { kForward, kBackward };

/// What one rank of a pipeline holds of a model, in groups whose gradients become complete
/// together: one of each of its blocks, and one of each set of parameters that several ranks of
/// the pipeline hold (a table tied between the first and the last stage).
///
///   table on ranks 0 and 3    rank 0  {embedding without the table} ... {table: ranks 0, 3}
///                             rank 3  {head} ...                        {table: ranks 0, 3}
///
/// The gradients of a tied group are summed over its ranks once a step, when the last micro-batch
/// is through, and then over the replicas as all others; so both ranks update it alike.
class BlockGroups {
 public:
  /// @pre model, map and store outlive this; model.blocks are those of the map.
  BlockGroups(Model& model, const StageMap& map, int pipeline_rank, Recompute recompute);

  /// Makes what this rank holds, on the factory's device: own blocks, and what they borrow.
  void materialise(const ParamFactory& factory);
  /// Builds the communicators of tied groups and registers all groups. Collective.
  void connect(const Mesh& mesh, Store& store);
  /// `call` is made whenever a block begins or its gradients are there.
  void between_blocks(std::function<void()> call) { between_blocks_ = std::move(call); }

  /// Every parameter this rank holds, copies of tied ones too, block by block.
  std::vector<Param*> params() const;

  /// A row is about to run: tells the store which blocks it uses, in order.
  void expect(const pipeline::Row& row);
  void acquire(size_t block, BlockUse use);
  void release(size_t block, BlockUse use);
  /// A step of that many micro-batches begins.
  void begin(int64_t micro_batches);
  /// All weight gradients that one micro-batch gives `block` are there.
  void gradients_ready(size_t block, int micro_batch);
  /// All micro-batches are through: sums what is tied and waits for all reductions.
  std::vector<ParamShard> finish();

 private:
  struct Tied {
    std::vector<int> ranks;  ///< of the pipeline, ascending
    std::vector<Param*> params;
    std::unique_ptr<Communicator> comm;
    int group = -1;  ///< -1: not held here
  };
  struct HeldGroup {
    size_t block;
    std::vector<Param*> params = {};  ///< of its group: own ones not tied across ranks
    int num_users = 1;                ///< blocks of this rank that use them
    std::map<int, int> left = {};     ///< users that a micro-batch still waits for
    int64_t num_ready = 0;            ///< micro-batches that are complete
  };
  void find_ties(Model& model, const StageMap& map);
  /// Groups whose values the use reads. Full recomputation runs the forward inside the backward.
  GroupSet groups_of(size_t block, BlockUse use) const;

  const StageMap& map_;
  int rank_;
  Recompute recompute_;
  std::vector<ModelBlock*> blocks_;     ///< of the whole model
  std::vector<Tied> ties_;              ///< of the whole model, the same on every rank
  std::vector<HeldGroup> held_;         ///< by group
  std::vector<std::vector<int>> used_;  ///< by block: groups it uses
  std::vector<std::vector<int>> tied_;  ///< by block: tied groups it uses
  Store* store_ = nullptr;
  std::function<void()> between_blocks_;
  int64_t micro_batches_ = 0;
};

}  // namespace kuafu
