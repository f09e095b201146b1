// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <set>

#include "kuafu/parallel/data/flat.h"
#include "kuafu/parallel/data/sum.h"

// States of a model sharded over its replicas. Internal to parallel/data.
namespace kuafu {

/// Whether every replica has all of it, or its part of every bucket.
enum class Held : uint8_t { kWhole, kPart };

/// What a stage of ZeRO keeps of each kind of state between its uses; optimizer state is in parts.
struct Residency {
  Held gradients = Held::kWhole, parameters = Held::kWhole;
};

/// Of stage 1, 2 or 3; throws InternalError for another.
Residency residency_of(int64_t stage);

/// A bucket and what this replica has of it.
struct ZeroShard {
  FlatBucket layout;
  int64_t first = 0;       ///< element of the buffer where my part begins
  std::vector<bool> used;  ///< by slot: has a gradient in this step
  Tensor values;           ///< parameters whole: (elements), they are views; in parts: (part), mine
  Tensor sum;              ///< (part) my part of the summed gradients; undefined outside a step
  Tensor whole_sum;        ///< gradients whole: (elements), what `sum` is a part of
  Tensor gathered;  ///< parameters in parts: (elements), they are views; no storage between uses
  Work gathering;   ///< of `gathered`

  Tensor my_part(const Tensor& flat) const { return flat.narrow(0, first, layout.part); }
};

/// Optimizer state over my part of every bucket; gradients and parameters as the stage says.
class Zero : public DataParallel {
 public:
  Zero(Residency residency, const Mesh& mesh, AllReduceOptions options, const ParamFactory& params)
      : residency_(residency), mesh_(mesh), options_(options), params_(params) {}

  void attach(std::vector<Group> groups) override;
  void expect(std::vector<GroupSet> uses) override;
  void acquire(const GroupSet& groups) override;
  void release(const GroupSet& groups) override;
  void grads_ready(int group, bool is_last) override;
  std::vector<ParamShard> finish() override;
  std::vector<ParamShard> shards() override;
  void publish() override;
  Tensor value(const Param& p) override;
  Tensor gradient(const Param& p) override;

 private:
  /// Calls visit(shard, slot, element of my part where the piece begins, my piece without its
  /// gradient) for every parameter.
  template <class Visit>
  void each_piece(const Visit& visit) const;

  /// A lone replica's part is the whole.
  bool has_values_in_parts(const ZeroShard& shard) const {
    return residency_.parameters == Held::kPart && shard.layout.parts > 1;
  }
  bool sums_every_micro_batch() const {
    return residency_.gradients == Held::kPart || options_.order == SumOrder::kRank;
  }
  Tensor my_values(const ZeroShard& shard) const {
    return has_values_in_parts(shard) ? shard.values : shard.my_part(shard.values);
  }
  Communicator& replicas(const ZeroShard& shard) const {
    return mesh_.comm(shard.layout.replicas[0]);
  }

  /// Takes over the values of the parameters: whole, or my part of them.
  void adopt_whole(ZeroShard& shard);
  void adopt_part(ZeroShard& shard);
  /// Of a parameter, whole: it has it already, or was made deferred.
  Tensor initial_value(const Param& p) const;

  /// Starts the sum of the gradients that have come since the last time, added to those before.
  void reduce(ZeroShard& shard);
  /// Gradients of a micro-batch summed over the scheme's own axes, whole.
  Tensor scheme_sum(ZeroShard& shard) const;
  /// Starts out (part) = my part of the sum of flat over the replicas, and adds it to shard.sum
  /// unless it is shard.sum.
  void start_sum(ZeroShard& shard, const Tensor& out, const Tensor& flat);
  void complete_sums();

  void start_gathers(const GroupSet& groups);
  /// Frees groups that nobody uses now or next.
  void free_unused();
  /// A parameter of which every replica has its part of the bucket: whole.
  Tensor gather(const ZeroShard& shard, const FlatSlot& slot, const Tensor& part) const;

  Residency residency_;
  const Mesh& mesh_;
  AllReduceOptions options_;
  ParamFactory params_;
  std::vector<Group> groups_;
  std::vector<std::vector<ZeroShard>> shards_;  // by group
  std::vector<PendingSum> under_way_;
  struct Place {
    size_t group = 0, shard = 0, slot = 0;
  };
  std::map<const Param*, Place> places_;
  std::vector<GroupSet> expected_;  // uses to come, parameters in parts
  size_t next_ = 0;                 // of expected_
  std::vector<int> num_users_;      // by group
  std::set<int> gathered_;          // groups whose storage is there, or on its way
};

}  // namespace kuafu
