// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <set>

#include "kuafu/parallel/data/flat.h"
#include "kuafu/parallel/data/sum.h"

// The stages of ZeRO, each the one before and what it shards more. Internal to parallel/data.
//
//   n replicas; psi parameters of b bytes, padded (FlatRules); AdamW, s = max(b, 4): 2 s of state a
//   parameter, and 4 of master copy where b = 2
//
//   stage  sharded             bytes a rank, b = 2     received a step and rank, M micro-batches
//   0      -                   16 psi                  2 (n-1)/n b psi
//   1      optimizer state     4 psi + 12 psi / n      2 (n-1)/n b psi
//   2      + gradients         2 psi + 14 psi / n      (M + 1) (n-1)/n b psi
//   3      + parameters        16 psi / n              see zero_3.cpp
//
// with M = 1: 2, 2, 2, 3.                       [Rajbhandari et al., arXiv 1910.02054, figure 1]
// A gradient is whole until its group is reduced, and a gathered group of stage 3 is whole until it
// is released; both are booked as communication, so that the columns above are the bytes booked as
// parameters, gradients and optimizer state.
namespace kuafu {

/// A bucket and what this replica has of it.
struct ZeroShard {
  FlatBucket layout;
  std::vector<bool> used;  ///< by slot: has a gradient in this step
  Tensor values;           ///< stage 1, 2: (elements), parameters are views; 3: (part), mine
  Tensor sum;              ///< (part) my part of the summed gradients; undefined outside a step
  Tensor whole_sum;        ///< stage 1: (elements), what `sum` is a part of
  Tensor whole;       ///< stage 3: (elements), parameters are views; without storage between uses
  Work gathering;     ///< stage 3: of `whole`
  int64_t first = 0;  ///< element of the buffer where my part begins
};

/// Optimizer state over my part of every bucket: gradients are reduce-scattered at the last
/// micro-batch, updated values all-gathered in publish().
class Zero1 : public DataParallel {
 public:
  Zero1(const Mesh& mesh, AllReduceOptions options, const ParamFactory& params)
      : mesh_(mesh), options_(options), params_(params) {}

  void attach(std::vector<Group> groups) override;
  void grads_ready(int group, bool is_last) override;
  std::vector<ParamShard> finish() override;
  std::vector<ParamShard> shards() override;
  void publish() override;
  Tensor gradient(const Param& p) override;

 protected:
  using Shards = std::vector<ZeroShard>;
  /// Calls visit(shard, slot, element of my part where the piece begins, my piece without its
  /// gradient) for every parameter.
  template <class Visit>
  void each_piece(const Visit& visit) const;

  /// Takes over the values of the parameters.
  virtual void adopt_values(ZeroShard& shard);
  /// Of a parameter, whole: it has it already, or was made deferred.
  Tensor initial_value(const Param& p) const;
  /// After an update.
  virtual void gather_values();
  /// My part of the values, updated by the optimizer.
  virtual Tensor my_values(const ZeroShard& shard) const;
  /// Starts the sum of the gradients that have come since the last time, added to those before.
  virtual void reduce(ZeroShard& shard);
  virtual bool reduces_every_micro_batch() const { return options_.order == SumOrder::kRank; }

  Communicator& replicas(const ZeroShard& shard) const;
  /// Gradients of a micro-batch summed over the scheme's own axes, whole.
  Tensor scheme_sum(ZeroShard& shard) const;
  /// Starts out (part) = my part of the sum of flat over the replicas, and adds it to shard.sum
  /// unless it is shard.sum.
  void start_sum(ZeroShard& shard, const Tensor& out, const Tensor& flat);
  void complete_sums();
  /// A parameter of which every replica has its part of the bucket: whole.
  Tensor gather(const ZeroShard& shard, const FlatSlot& slot, const Tensor& part) const;

  const Mesh& mesh_;
  AllReduceOptions options_;
  ParamFactory params_;
  std::vector<Group> groups_;
  std::vector<Shards> shards_;  // by group
  std::vector<PendingSum> under_way_;
  struct Place {
    size_t group = 0, shard = 0, slot = 0;
  };
  std::map<const Param*, Place> places_;
};

/// Gradients too: every micro-batch is reduce-scattered into my part, whole gradients are freed.
class Zero2 : public Zero1 {
 public:
  using Zero1::Zero1;

 protected:
  void reduce(ZeroShard& shard) override;
  bool reduces_every_micro_batch() const override { return true; }
};

/// Parameters too: a block's are gathered before it is used and freed after it.
class Zero3 : public Zero2 {
 public:
  using Zero2::Zero2;

  void attach(std::vector<Group> groups) override;
  void expect(std::vector<GroupSet> uses) override;
  void acquire(const GroupSet& groups) override;
  void release(const GroupSet& groups) override;
  Tensor value(const Param& p) override;

 protected:
  void adopt_values(ZeroShard& shard) override;
  Tensor my_values(const ZeroShard& shard) const override;
  void gather_values() override {}  // each use does

 private:
  void start_gathers(const GroupSet& groups);
  /// Frees groups that nobody uses now or next.
  void free_unused();

  std::vector<GroupSet> expected_;
  size_t next_ = 0;             // of expected_
  std::vector<int> num_users_;  // by group
  std::set<int> gathered_;      // groups whose storage is there, or on its way
};

}  // namespace kuafu
