// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "kuafu/states/bucket.h"
#include "kuafu/states/reduce.h"
#include "kuafu/states/residency.h"
#include "kuafu/states/row.h"
#include "kuafu/states/slots.h"
#include "kuafu/states/tiers.h"

namespace kuafu {

struct StoreOptions {
  Residency residency = {};
  FlatRules cut = {.bucket_bytes = 25 * 1024 * 1024};
  bool is_overlapped = true;  ///< leave sums and gathers under way while a block computes
  /// Gradients of every micro-batch are summed by themselves, as those kept in parts always are.
  bool sums_every_micro_batch = false;
  std::optional<TierOptions> tiers = {};  ///< none: all that is kept is on the device
};

/// The states of a model that a rank holds, as its row of zero.cpp says: parameters, gradients, and
/// by name the slots of the optimizer. Nobody else gathers or frees them. Groups are blocks.
class Store {
 public:
  /// `params` fills what parameters lack that it made deferred. @pre the mesh outlives the store
  Store(const Mesh& mesh, const StoreOptions& options, std::unique_ptr<Reduce> reduce,
        const ParamFactory& params);

  /// Takes the groups over, once. Collective. @pre their parameters outlive the store
  void attach(std::vector<Group> groups);
  /// The uses to come, in order, and what follows them: what is in parts is gathered ahead, and tiers
  /// have the trace of a step. Others may come instead.
  void expect(std::vector<GroupSet> uses, Tiers::Then then = Tiers::Then::kUpdate);
  void acquire(const GroupSet& groups);  ///< before a use: their parameters are whole then
  void release(const GroupSet& groups);  ///< after it
  /// Gradients of a micro-batch are complete in the group's .grad, on top of those before it where
  /// they were left there. `is_last`: of the step; at the latest now their sums start, over each
  /// parameter's grad_axes and the replicas.
  void ready(int group, bool is_last);
  /// Waits for all sums; what my optimizer must update, gradients summed.
  std::vector<ParamShard> finish();
  /// Everything my optimizer updates, used in a step or not, in the order of finish(), without
  /// gradients. May be empty: every replica lists the same parameters, for norms over all of them.
  std::vector<ParamShard> pieces() const;
  /// What is kept of each parameter, in the order of pieces(); slots once they are declared.
  std::vector<StateRow> rows() const;
  /// The value of p's piece has its elements until that of another one is brought; it may be changed.
  /// Nothing where it lies in memory.
  void bring(const Param& p);
  /// After the update, and after pieces were loaded: gradients are dropped, values made known.
  void publish();

  /// p's shard (in p.layout), whole over the replicas, wherever it is kept. Collective over them.
  /// The gradient is there from finish() to publish(); undefined where p was not used.
  Tensor value(const Param& p) const;
  Tensor gradient(const Param& p) const;
  /// From the next micro-batch on.
  void watch(const GradientWatch& watch) {
    grown_ = watch.grown;
    reduce_->watch(watch);
  }
  /// Of the pieces, once an optimizer has declared them.
  RuleSlots& slots() { return slots_; }
  /// What was moved so far; nothing without tiers.
  MoveCounts moves() const;
  /// Tiers::loaded(); none without tiers.
  std::optional<int64_t> loaded() const;
  /// See AwayActivations; null where they stay on the device.
  AwayActivations* activations() { return tiers_ ? tiers_->activations() : nullptr; }
  /// The uses of a training step, once they are known; without moments where there are no tiers.
  memory::UseTrace uses() const { return tiers_ ? tiers_->uses() : memory::UseTrace{}; }
  /// Null without tiers.
  Tiers* tiers() { return tiers_.get(); }

 private:
  /// A bucket and what this replica has of it.
  struct Bucket {
    FlatBucket layout;
    std::vector<bool> used = {};  ///< by slot: has a gradient in this step
    /// Of sharded buckets, and with tiers: parameters whole (elements), or mine of them (part). They
    /// are views of it, or with tiers, where it lies on the host, of `here`, or in parts of `gathered`.
    Tensor values = {};
    Tensor here = {};  ///< of tiers: like values, on the device in uses
    int chunk = -1;    ///< its number there
    /// Of values on a disk, what pieces() has of each slot: views are made while there is storage.
    Tensors pieces = {};
    /// (part) my part of the summed gradients, at last at home; undefined outside a step.
    Tensor sum = {};
    /// Of sums on a disk, by slot: views are made while there is storage.
    Tensors sums = {};
    Tensor gathered = {};  ///< parameters in parts: (elements), no storage between uses
    Work gathering = {};   ///< of `gathered`
  };
  struct SlotPlace {
    size_t group = 0, bucket = 0, slot = 0;
  };
  struct UnderWay {
    size_t group;
    PendingSum sum;
  };

  /// Whether anything is done about the uses of parameters.
  bool has_uses() const {
    return tiers_ || options_.residency.parameters.portion == Portion::kPart;
  }
  bool is_split() const { return options_.residency.slots.portion == Portion::kPart; }
  /// A lone replica's part is the whole.
  bool has_values_in_parts(const Bucket& b) const {
    return options_.residency.parameters.portion == Portion::kPart && b.layout.is_split();
  }
  bool sums_every_micro_batch() const {
    return options_.residency.gradients.portion == Portion::kPart ||
           options_.sums_every_micro_batch;
  }
  /// Else gradients stay where autograd has left them, or with tiers go home as they are.
  bool is_summed(const Bucket& b) const {
    return is_split() || !b.layout.scheme_axes.empty() || !b.layout.replicas.empty();
  }
  Communicator& replicas(const Bucket& b) const { return mesh_.comm(b.layout.replicas[0]); }
  const Bucket& bucket_at(const SlotPlace& at) const { return buckets_[at.group][at.bucket]; }

  /// Takes over the values of the parameters: whole, or my part of them.
  void adopt(Bucket& b, const std::string& group);
  /// Of a parameter, whole: it has it already, or was made deferred.
  Tensor initial_value(const Param& p) const;

  /// Starts the sum of the gradients that have come since the last time, added to those before.
  /// With tiers the last one of a step goes home.
  void reduce(size_t group, Bucket& b, bool is_last);
  /// Every sum under way goes on by a round; false once none has more.
  bool advance();
  void complete(size_t group);
  void complete_all();
  /// My piece of a slot, without its gradient, and then that.
  ParamShard piece_of(const Bucket& b, const FlatSlot& slot) const;
  /// A row of so many elements for each bucket, in the order of their tags.
  std::vector<StateFile::Row> rows_of_buckets(
      const std::function<int64_t(const Bucket&)>& elements) const;
  /// Makes the file of the summed gradients.
  void put_sums_on_disk();
  /// The sum of a bucket is complete, the last time in a step.
  void leave(Bucket& b);
  /// It is here, where it lies on a disk.
  void bring_sum(const Bucket& b) const;
  /// What I keep of a bucket's values.
  FlatPart kept_of(const Bucket& b) const;
  /// They are here, where they lie on a disk.
  void bring_values(const Bucket& b, StateFile::Use use) const;
  /// Where parameters are whole and slots in parts, every replica gets all of the values.
  void share_values();
  /// A parameter of which I keep all.
  Tensor kept_whole(const Param& p) const;
  Tensor summed(Bucket& b, size_t slot, const ParamShard& piece) const;
  /// What a sum has of a slot.
  Tensor of_slot(const Bucket& b, const Tensor& sum, size_t slot) const;

  /// The chunks that each of the uses reads on the device.
  std::vector<std::vector<int>> reads_of(const std::vector<GroupSet>& uses) const;
  void start_gathers(const GroupSet& groups);
  void wait_for_gathers(const GroupSet& groups);
  /// Frees groups that nobody uses now or next.
  void free_unused();
  /// A parameter of which every replica has its part of the bucket: whole.
  Tensor gather(const Bucket& b, const FlatSlot& slot, const Tensor& mine) const;

  const Mesh& mesh_;
  StoreOptions options_;
  std::unique_ptr<Reduce> reduce_;
  std::function<void(const Param& p, bool is_last)> grown_;
  ParamFactory params_;
  std::unique_ptr<Tiers> tiers_;     // null: there are none. It outlives what lies on the host
  std::unique_ptr<StateFile> sums_;  // null: summed gradients are on the host, or on the device
  std::vector<Group> groups_;
  std::vector<std::vector<Bucket>> buckets_;  // by group
  std::vector<UnderWay> under_way_;  // in the order of their starts; they use what stands above
  std::map<const Param*, SlotPlace> places_;
  RuleSlots slots_;
  std::vector<GroupSet> expected_;  // uses to come
  size_t next_ = 0;                 // of expected_
  std::vector<int> num_users_;      // by group
  std::set<int> gathered_;          // groups whose storage is there, or on its way
};

}  // namespace kuafu
