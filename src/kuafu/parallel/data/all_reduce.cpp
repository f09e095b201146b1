// SPDX-License-Identifier: Apache-2.0
//
// Data parallelism by bucketed all-reduce, ZeRO stage 0.            [Li et al., arXiv 2006.15704]
//
//   sharded      nothing: parameters, gradients and optimizer state are whole on every replica
//   bytes        per parameter of b bytes: b parameter, b gradient, 2 max(b, 4) AdamW state
//   traffic      2 (n-1)/n of the gradient bytes a step over "data", received per rank
//                (order = "fixed": a micro-batch)
//
// A bucket is a flat run of gradients of one group that are summed over the same axes. Gradients
// arrive by autograd in tensors of their own, are moved into the bucket once per step and become
// views of it. The sum over "data" starts as soon as a group's backward is done and is waited
// for in finish(): it overlaps the backward of the groups before it. Sums over a scheme's own axes
// (norms, biases) are small and come first, axis by axis.

#include <ATen/core/grad_mode.h>
#include <algorithm>
#include <map>
#include <string>

#include "kuafu/base/errors.h"
#include "kuafu/meter/allocator.h"
#include "kuafu/optim/layer_watch.h"
#include "kuafu/parallel/data/flat.h"
#include "kuafu/parallel/data/gradient_sum.h"
#include "kuafu/parallel/data/parameter_server.h"
#include "kuafu/parallel/data/stale_server.h"
#include "kuafu/parallel/data/sum.h"

namespace kuafu {
namespace {

/// A bucket and, until publish(), the sum of its gradients.
struct SummedBucket {
  FlatBucket layout;
  std::vector<bool> used = std::vector<bool>(layout.slots.size());
  Tensor sum = {};  // (elements)
  int tag = 0;      // no other bucket has it

  bool is_summed() const { return !layout.scheme_axes.empty() || !layout.replicas.empty(); }
};

class BucketedAllReduce : public DataParallel {
 public:
  BucketedAllReduce(const Mesh& mesh, AllReduceOptions options) : mesh_(mesh), options_(options) {}

  void attach(std::vector<Group> groups) override {
    for (const Group& group : groups) {
      std::vector<SummedBucket>& buckets = buckets_.emplace_back();
      for (FlatBucket& b : make_buckets(group, mesh_, {.bucket_bytes = options_.bucket_bytes})) {
        buckets.push_back({std::move(b)});
      }
    }
    under_way_.resize(groups.size());
    groups_ = std::move(groups);
    connect();
  }

  void grads_ready(int group, bool is_last) override {
    for (Param* p : groups_[static_cast<size_t>(group)].params) {
      recategorise(p->value.grad(), Category::kGradient);
    }
    if (watch_ != nullptr) show_grown(static_cast<size_t>(group), is_last);
    if (!is_last && options_.order == SumOrder::kAny) return;
    complete(static_cast<size_t>(group));
    for (SummedBucket& bucket : buckets_[static_cast<size_t>(group)]) {
      if (!bucket.is_summed()) continue;  // gradients stay where autograd has left them
      under_way_[static_cast<size_t>(group)].push_back(reduce(bucket));
    }
  }

  std::vector<ParamShard> finish() override {
    for (size_t g = groups_.size(); g-- > 0;) complete(g);
    for (std::vector<SummedBucket>& buckets : buckets_) {
      for (SummedBucket& bucket : buckets) hand_out(bucket);
    }
    std::vector<ParamShard> used;
    for (ParamShard& shard : shards()) {
      shard.grad = shard.param->value.grad();
      if (shard.grad.defined()) used.push_back(std::move(shard));  // others stay as they are
    }
    return used;
  }

  std::vector<ParamShard> shards() override {
    std::vector<ParamShard> all;
    for (const Group& group : groups_) {
      for (Param* p : group.params) all.push_back({p->value, {}, p, {}});
    }
    return all;
  }

  void publish() override {
    for (std::vector<SummedBucket>& buckets : buckets_) {
      for (SummedBucket& bucket : buckets) {
        bucket.sum = Tensor();
        bucket.used.assign(bucket.used.size(), false);
      }
    }
  }

 private:
  /// Sums over replicas by a named algorithm; every rank meets their axes in the same order.
  void connect() {
    int tag = 0;
    for (std::vector<SummedBucket>& buckets : buckets_) {
      for (SummedBucket& bucket : buckets) {
        bucket.tag = tag++;
        if (options_.sum.mode == "auto") continue;
        for (const std::string& axis : bucket.layout.replicas) {
          if (sums_.count(axis) == 0) {
            sums_[axis] = make_gradient_sum(options_.sum, mesh_.comm(axis));
          }
        }
      }
    }
  }

  /// What gradients that nobody sums have grown by.
  void show_grown(size_t group, bool is_last) const {
    for (const SummedBucket& bucket : buckets_[group]) {
      if (bucket.is_summed()) continue;
      for (const FlatSlot& slot : bucket.layout.slots) {
        watch_->add_grown(*slot.param, is_last, mesh_);
      }
    }
  }

  PendingSum start_sum(const SummedBucket& bucket, const Tensor& flat, const std::string& axis) {
    const auto named = sums_.find(axis);
    if (named == sums_.end()) return sum_everywhere(flat, mesh_.comm(axis), options_.order);
    return PendingSum(named->second->start(flat, bucket.tag));
  }

  /// Rounds of named algorithms go on only when somebody looks.
  void look() {
    if (sums_.empty()) return;
    for (std::vector<PendingSum>& sums : under_way_) {
      for (PendingSum& sum : sums) sum.test();
    }
  }

  /// Starts the sum of this micro-batch's gradients, or of all since the last one.
  PendingSum reduce(SummedBucket& bucket) {
    look();
    const CategoryScope scope(Category::kGradient);
    const Tensor flat = take_gradients(bucket.layout, bucket.used);
    Axes axes = bucket.layout.scheme_axes;
    axes.insert(axes.end(), bucket.layout.replicas.begin(), bucket.layout.replicas.end());
    const size_t own = bucket.layout.scheme_axes.size();
    for (size_t i = 0; i + 1 < axes.size(); ++i) {
      if (i == own) show_own(watch_, bucket.layout, flat, mesh_);
      start_sum(bucket, flat, axes[i]).wait();
    }
    if (own + 1 == axes.size()) show_own(watch_, bucket.layout, flat, mesh_);
    PendingSum last = start_sum(bucket, flat, axes.back());
    last.then([this, &bucket, flat] { add(bucket, flat); });
    if (options_.is_overlapped) return last;
    last.wait();
    return PendingSum(Work());
  }

  void add(SummedBucket& bucket, const Tensor& flat) const {
    if (options_.order == SumOrder::kAny || !bucket.sum.defined()) {
      bucket.sum = flat;
    } else {
      const at::NoGradGuard no_grad;
      bucket.sum.add_(flat);
    }
  }

  void complete(size_t group) {
    for (PendingSum& sum : under_way_[group]) sum.wait();
    under_way_[group].clear();
  }

  /// Makes each .grad a view of the sum; undefined where the parameter was not used.
  static void hand_out(SummedBucket& bucket) {
    if (!bucket.sum.defined()) return;
    for (size_t i = 0; i < bucket.used.size(); ++i) {
      const FlatSlot& slot = bucket.layout.slots[i];
      const Tensor piece = in_shape(slot, bucket.sum);
      if (bucket.used[i]) {
        slot.param->value.mutable_grad() = piece;
      } else {
        check_unused(*slot.param, piece);
      }
    }
  }

  const Mesh& mesh_;
  AllReduceOptions options_;
  std::vector<Group> groups_;
  std::vector<std::vector<SummedBucket>> buckets_;            // by group
  std::map<std::string, std::unique_ptr<GradientSum>> sums_;  // by replica axis
  std::vector<std::vector<PendingSum>> under_way_;  // by group; they use what stands above
};

}  // namespace

std::unique_ptr<DataParallel> make_bucketed_all_reduce(const Mesh& mesh, AllReduceOptions options) {
  return std::make_unique<BucketedAllReduce>(mesh, options);
}

std::unique_ptr<DataParallel> make_data_parallel(const Plan& plan, const Mesh& mesh,
                                                 const ParamFactory& params,
                                                 const std::vector<int>& script,
                                                 const OptimizerRules& rules) {
  const DataParallelPlan& data = plan.parallel.data;
  if (data.staleness > 0) {
    return make_stale_server(mesh, {data.servers, data.staleness, plan.optimizer,
                                    plan.schedule_steps(), plan.train.batch, script, rules});
  }
  KUAFU_REQUIRE(script.empty(), "a script orders the pushes of parallel.data.staleness > 0 only");
  if (data.mode == "parameter_server") {
    return make_parameter_server(mesh, {data.servers, data.bucket, data.overlap});
  }
  const AllReduceOptions options{data.bucket,
                                 data.overlap,
                                 data.order == "fixed" ? SumOrder::kRank : SumOrder::kAny,
                                 {data.mode, plan.cluster.ranks_per_node}};
  if (plan.parallel.zero > 0) return make_zero(plan.parallel.zero, mesh, options, params);
  return make_bucketed_all_reduce(mesh, options);
}

}  // namespace kuafu
