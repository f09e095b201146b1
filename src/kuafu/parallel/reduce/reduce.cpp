// SPDX-License-Identifier: Apache-2.0
//
// Data parallelism by collectives.                                 [Li et al., arXiv 2006.15704]
//
// A bucket is a flat run of gradients of one group that are summed over the same axes. Sums over a
// scheme's own axes (norms, biases) are small and come first, axis by axis; then those over the
// replicas: by an all-reduce where sums are whole on each, by a reduce-scatter where each keeps its
// part, after whose update an all-gather brings the values together. Received per rank and sum of B
// bytes: 2 (n-1)/n B by an all-reduce, (n-1)/n B by each of the others.

#include "kuafu/parallel/reduce/reduce.h"

#include <ATen/ATen.h>

#include <map>
#include <string>

#include "kuafu/comm/communicator.h"

namespace kuafu {
namespace {

class AllReduce final : public Reduce {
 public:
  AllReduce(const Mesh& mesh, SumOptions options, SumOrder order)
      : mesh_(mesh), options_(std::move(options)), order_(order) {}

  void attach(const FlatBucket& bucket) override {
    if (options_.mode == "auto") return;
    for (const std::string& axis : bucket.replicas) {
      if (named_.count(axis) == 0) named_[axis] = make_gradient_sum(options_, mesh_.comm(axis));
    }
  }

  StartedSum start(const FlatBucket& bucket, const Tensor& flat, Portion) override {
    Axes axes = bucket.scheme_axes;
    axes.insert(axes.end(), bucket.replicas.begin(), bucket.replicas.end());
    for (size_t i = 0; i + 1 < axes.size(); ++i) start_along(axes[i], bucket, flat).wait();
    if (!bucket.replicas.empty()) show_own(bucket, flat);  // the last axis then
    return {flat, start_along(axes.back(), bucket, flat)};
  }

  Work share(const FlatBucket&, const Tensor&) override { return Work(); }  // all have all

 private:
  PendingSum start_along(const std::string& axis, const FlatBucket& bucket, const Tensor& flat) {
    const auto named = named_.find(axis);
    if (named == named_.end()) return sum_everywhere(flat, mesh_.comm(axis), order_);
    return named->second(flat, bucket.tag);
  }

  const Mesh& mesh_;
  SumOptions options_;
  SumOrder order_;
  std::map<std::string, GradientSum> named_;  // by replica axis
};

class ReduceScatter final : public Reduce {
 public:
  ReduceScatter(const Mesh& mesh, SumOrder order) : mesh_(mesh), order_(order) {}

  StartedSum start(const FlatBucket& bucket, const Tensor& flat, Portion gradients) override {
    for (const std::string& axis : bucket.scheme_axes) {
      sum_everywhere(flat, mesh_.comm(axis), order_).wait();
    }
    show_own(bucket, flat);
    const Tensor mine = gradients == Portion::kWhole
                            ? in_part(flat, bucket.mine())
                            : at::empty({bucket.mine().size()}, flat.options());
    if (bucket.is_split()) return {mine, sum_in_parts(mine, flat, replicas(bucket), order_)};
    return {mine, PendingSum(Work(), [mine, flat] {
              if (!mine.is_alias_of(flat)) mine.copy_(flat);
            })};
  }

  Work share(const FlatBucket& bucket, const Tensor& values) override {
    return replicas(bucket).all_gather(view(values), view(in_part(values, bucket.mine())));
  }

 private:
  Communicator& replicas(const FlatBucket& bucket) const { return mesh_.comm(bucket.replicas[0]); }

  const Mesh& mesh_;
  SumOrder order_;
};

}  // namespace

std::unique_ptr<Reduce> make_all_reduce(const Mesh& mesh, const SumOptions& options,
                                        SumOrder order) {
  return std::make_unique<AllReduce>(mesh, options, order);
}

std::unique_ptr<Reduce> make_reduce_scatter(const Mesh& mesh, SumOrder order) {
  return std::make_unique<ReduceScatter>(mesh, order);
}

std::unique_ptr<Store> make_store(const Plan& plan, const Mesh& mesh, const ParamFactory& params,
                                  const memory::PolicyRules& policies,
                                  bool has_parameters_on_disk) {
  const DataParallelPlan& data = plan.parallel.data;
  const bool has_servers = data.has_servers();
  const SumOrder order = data.order == "fixed" ? SumOrder::kRank : SumOrder::kAny;
  const Residency residency = residency_of(plan);
  const bool is_split = residency.slots.portion == Portion::kPart;
  const bool has_tiers = plan.memory.has_tiers();
  StoreOptions options{.residency = residency,
                       .cut = {.bucket_bytes = has_tiers ? plan.memory.chunk_size : data.bucket,
                               .is_sharded = is_split && !has_servers,
                               .servers = has_servers ? data.servers : 0},
                       .is_overlapped = data.overlap,
                       .sums_every_micro_batch = order == SumOrder::kRank,
                       .tiers = tier_options(plan, policies)};
  if (options.tiers) options.tiers->has_parameters_on_disk = has_parameters_on_disk;
  const SumOptions named{data.mode, plan.cluster.ranks_per_node};
  std::unique_ptr<Reduce> reduce = has_servers ? make_servers(mesh, data.servers)
                                   : is_split  ? make_reduce_scatter(mesh, order)
                                               : make_all_reduce(mesh, named, order);
  return std::make_unique<Store>(mesh, options, std::move(reduce), params);
}

}  // namespace kuafu
