// SPDX-License-Identifier: Apache-2.0
//
// Data parallelism by bucketed all-reduce.                          [Li et al., arXiv 2006.15704]
//
//   sharded      nothing: parameters, gradients and optimizer state are whole on every replica
//   bytes        per parameter of b bytes: b parameter, b gradient, 2 max(b, 4) AdamW state
//   traffic      2 (n-1)/n of the gradient bytes a step over "data", received per rank
//
// A bucket is a flat run of gradients of one group that are summed over the same axes. Gradients
// arrive by autograd in tensors of their own, are copied into the bucket once per step and replaced
// by views of it. The sum over "data" starts as soon as a group's backward is done and is waited
// for in finish(): it overlaps the backward of the groups before it. Sums over a scheme's own axes
// (norms, biases) are small and come first, axis by axis.

#include <algorithm>
#include <map>

#include "kuafu/base/errors.h"
#include "kuafu/comm/communicator.h"
#include "kuafu/meter/allocator.h"
#include "kuafu/parallel/data/gradient_sum.h"
#include "kuafu/parallel/data/interface.h"
#include "kuafu/parallel/data/parameter_server.h"
#include "kuafu/parallel/data/stale_server.h"

namespace kuafu {
namespace {

struct Bucket {
  Axes axes;  // summed over, in mesh order, replicas last
  std::vector<Param*> params;
  int64_t elements = 0;
  int tag = 0;  // no other bucket has it
};

class BucketedAllReduce : public DataParallel {
 public:
  BucketedAllReduce(const Mesh& mesh, AllReduceOptions options) : mesh_(mesh), options_(options) {}

  void attach(std::vector<Group> groups) override {
    groups_ = std::move(groups);
    buckets_.resize(groups_.size());
    for (size_t g = 0; g < groups_.size(); ++g) {
      for (Param* p : groups_[g].params) place(*p, buckets_[g]);
    }
    connect();
  }

  void grads_ready(int group, bool is_last) override {
    if (!is_last) return;
    for (const Bucket& bucket : buckets_[static_cast<size_t>(group)]) reduce(bucket);
  }

  std::vector<ParamShard> finish() override {
    for (Work& work : under_way_) work.wait();
    under_way_.clear();
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

 private:
  Axes summed_axes(const Param& p) const {
    Axes axes;
    for (const Axis& axis : mesh_.axes()) {
      const bool wanted =
          std::find(p.grad_axes.begin(), p.grad_axes.end(), axis.name) != p.grad_axes.end();
      if (wanted && axis.size > 1) axes.push_back(axis.name);
    }
    for (const std::string& axis : replica_axes(p)) {
      if (mesh_.size(axis) > 1) axes.push_back(axis);
    }
    return axes;
  }

  /// "data", or what of it does not shard the parameter itself: experts are no replicas.
  Axes replica_axes(const Param& p) const {
    const Axes own = p.layout.all_axes(), members = mesh_.canonical({"data"});
    Axes rest;
    for (const std::string& axis : members) {
      if (std::find(own.begin(), own.end(), axis) == own.end()) rest.push_back(axis);
    }
    return rest.size() == members.size() ? Axes{"data"} : rest;
  }

  void place(Param& p, std::vector<Bucket>& buckets) const {
    const Axes axes = summed_axes(p);
    if (axes.empty()) return;
    const int64_t capacity = options_.bucket_bytes / p.value.element_size();
    for (Bucket& b : buckets) {
      if (b.axes != axes || b.elements + p.value.numel() > capacity) continue;
      b.params.push_back(&p);
      b.elements += p.value.numel();
      return;
    }
    buckets.push_back({axes, {&p}, p.value.numel()});
  }

  /// The sums over replicas; every rank meets their axes in the same order.
  void connect() {
    int tag = 0;
    for (std::vector<Bucket>& buckets : buckets_) {
      for (Bucket& bucket : buckets) {
        bucket.tag = tag++;
        for (const std::string& axis : bucket.axes) {
          if (!is_replica_axis(axis) || sums_.count(axis) > 0) continue;
          sums_[axis] = make_gradient_sum(options_.sum, mesh_.comm(axis));
        }
      }
    }
  }

  bool is_replica_axis(const std::string& axis) const {
    const Axes members = mesh_.canonical({"data"});
    return axis == "data" || std::find(members.begin(), members.end(), axis) != members.end();
  }

  Work start_sum(const Tensor& flat, const std::string& axis, int tag) {
    const auto sum = sums_.find(axis);
    if (sum != sums_.end()) return sum->second->start(flat, tag);
    return mesh_.comm(axis).all_reduce(view(flat), ReduceOp::kSum);
  }

  void reduce(const Bucket& bucket) {
    if (options_.sum.mode != "auto") {  // rounds of named algorithms go on only when somebody looks
      for (Work& work : under_way_) work.test();
    }
    const Tensor flat = pack(bucket);
    for (const std::string& axis : bucket.axes) {
      Work work = start_sum(flat, axis, bucket.tag);
      if (axis == bucket.axes.back() && options_.is_overlapped) {
        under_way_.push_back(std::move(work));
      } else {
        work.wait();
      }
    }
  }

  /// Gradients of the bucket in one flat tensor (zero where a parameter was not used), and each
  /// .grad a view of it.
  static Tensor pack(const Bucket& bucket) {
    const CategoryScope scope(Category::kGradient);
    const at::NoGradGuard no_grad;
    const Tensor flat = at::empty({bucket.elements}, bucket.params[0]->value.options());
    int64_t offset = 0;
    for (Param* p : bucket.params) {
      const Tensor piece = flat.narrow(0, offset, p->value.numel()).view(p->value.sizes());
      offset += p->value.numel();
      if (p->value.grad().defined()) {
        piece.copy_(p->value.grad());
      } else {
        piece.zero_();
      }
      p->value.mutable_grad() = piece;
    }
    return flat;
  }

  const Mesh& mesh_;
  AllReduceOptions options_;
  std::vector<Group> groups_;
  std::vector<std::vector<Bucket>> buckets_;                  // by group
  std::map<std::string, std::unique_ptr<GradientSum>> sums_;  // by replica axis
  std::vector<Work> under_way_;
};

}  // namespace

std::unique_ptr<DataParallel> make_bucketed_all_reduce(const Mesh& mesh, AllReduceOptions options) {
  return std::make_unique<BucketedAllReduce>(mesh, options);
}

std::unique_ptr<DataParallel> make_data_parallel(const Plan& plan, const Mesh& mesh,
                                                 const std::vector<int>& script) {
  const DataParallelPlan& data = plan.parallel.data;
  if (data.staleness > 0) {
    return make_stale_server(
        mesh, {data.servers, data.staleness, plan.optimizer, plan.train.steps, script});
  }
  KUAFU_REQUIRE(script.empty(), "a script orders the pushes of parallel.data.staleness > 0 only");
  if (data.mode == "parameter_server") {
    return make_parameter_server(mesh, {data.servers, data.bucket, data.overlap});
  }
  return make_bucketed_all_reduce(
      mesh, {data.bucket, data.overlap, {data.mode, plan.cluster.ranks_per_node}});
}

}  // namespace kuafu
