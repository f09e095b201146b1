// SPDX-License-Identifier: Apache-2.0
//
// Synchronous parameter server.         [Li et al., OSDI 2014; Dean et al., NIPS 2012, section 4]
//
// Picture (3 replicas, the first 2 of them servers; a bucket of gradients cut in parts a and b):
//
//   push      0: keeps a0, b0 -> 1      1: a1 -> 0, keeps b1      2: a2 -> 0, b2 -> 1
//   update    0: a0 + a1 + a2, in rank order, then the optimizer on a      1: the same on b
//   pull      a: 0 -> 1, 2              b: 1 -> 0, 2
//
// Cost of a step and bucket, B bytes of gradients and of parameters, n replicas, part p_s of server
// s
// (|p_s| = B / servers, one element more or less):
//
//   worker    sends B and receives B; a message to and from each server
//   server s  sends and receives (n-1)|p_s| + B - |p_s|
//   memory    optimizer state and summed gradients of p_s on server s, nowhere else
//
// One server is a bottleneck of (n-1) B; where every replica serves, all send and receive what a
// ring would: 2 (n-1)/n B.

#include "kuafu/parallel/data/parameter_server.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "kuafu/base/errors.h"
#include "kuafu/comm/communicator.h"
#include "kuafu/meter/allocator.h"
#include "kuafu/parallel/data/served_part.h"

namespace kuafu {
namespace {

struct ServedBucket {
  FlatBucket layout;
  int tag = 0;  // of its pushes; tag + 1 of its pulls
  std::vector<bool> used = std::vector<bool>(layout.slots.size());
  Tensor flat = {};  // (elements): my gradients; on a server, in its part, the sum
  std::vector<Work> pushes = {};
  bool is_summed = false;
};

class ParameterServer final : public DataParallel {
 public:
  ParameterServer(const Mesh& mesh, ServerOptions options)
      : mesh_(mesh), options_(options), group_(mesh.comm("data")) {
    KUAFU_REQUIRE(options.servers >= 1 && options.servers <= group_.size(),
                  "parallel.data.servers = ", options.servers, "; allowed: 1 to ", group_.size(),
                  ", the replicas");
  }

  void attach(std::vector<Group> groups) override {
    int tag = 0;
    for (const Group& group : groups) {
      std::vector<ServedBucket>& buckets = buckets_.emplace_back();
      for (FlatBucket& b : make_buckets(group, mesh_, {.bucket_bytes = options_.bucket_bytes})) {
        KUAFU_CHECK(b.replicas.empty() || b.replicas == Axes{"data"}, "replicas along ",
                    to_string(b.replicas));
        buckets.push_back({std::move(b), tag});
        tag += 2;
      }
    }
  }

  void grads_ready(int group, bool is_last) override {
    for (ServedBucket& bucket : buckets_[static_cast<size_t>(group)]) {
      for (const FlatSlot& slot : bucket.layout.slots) {
        recategorise(slot.param->value.grad(), Category::kGradient);
      }
      if (!is_last) continue;
      push(bucket);
      if (!options_.is_overlapped) sum(bucket);
    }
  }

  std::vector<ParamShard> finish() override {
    for (size_t g = buckets_.size(); g-- > 0;) {
      for (ServedBucket& bucket : buckets_[g]) {
        if (!bucket.is_summed) sum(bucket);
      }
    }
    std::vector<ParamShard> shards;
    for (const std::vector<ServedBucket>& buckets : buckets_) {
      for (const ServedBucket& bucket : buckets) {
        for (size_t i = 0; i < bucket.used.size(); ++i) {
          if (bucket.used[i]) shards.push_back(shard(bucket, i));
        }
      }
    }
    return shards;
  }

  std::vector<ParamShard> shards() override {
    std::vector<ParamShard> all;
    for (const std::vector<ServedBucket>& buckets : buckets_) {
      for (const ServedBucket& bucket : buckets) {
        for (size_t i = 0; i < bucket.used.size(); ++i) all.push_back(shard(bucket, i));
      }
    }
    return all;
  }

  void publish() override {
    for (std::vector<ServedBucket>& buckets : buckets_) {
      for (ServedBucket& bucket : buckets) {
        bucket.flat = Tensor();
        bucket.used.assign(bucket.used.size(), false);
        bucket.is_summed = false;
        pull(bucket);
      }
    }
  }

  Tensor gradient(const Param& p) override {
    for (const std::vector<ServedBucket>& buckets : buckets_) {
      for (const ServedBucket& bucket : buckets) {
        for (size_t i = 0; i < bucket.used.size(); ++i) {
          if (bucket.layout.slots[i].param == &p && bucket.used[i]) return whole(bucket, i);
        }
      }
    }
    return {};
  }

 private:
  bool serves(int64_t replica) const { return replica < options_.servers; }
  ServedPart part_of(const ServedBucket& bucket, int64_t server) const {
    return served_part(bucket.layout, server, options_.servers);
  }
  /// What this rank serves of a bucket.
  ServedPart mine_of(const ServedBucket& bucket) const {
    return serves(group_.rank()) ? part_of(bucket, group_.rank()) : ServedPart{};
  }

  /// Sends each server its part of my gradients.
  void push(ServedBucket& bucket) {
    const CategoryScope scope(Category::kGradient);
    bucket.flat = take_gradients(bucket.layout, bucket.used);
    for (const std::string& axis : bucket.layout.scheme_axes) {
      mesh_.comm(axis).all_reduce(view(bucket.flat), ReduceOp::kSum).wait();
    }
    show_own(watch_, bucket.layout, bucket.flat, mesh_);
    for (int s = 0; s < options_.servers; ++s) {
      const ServedPart part = part_of(bucket, s);
      if (s == group_.rank() || part.size() == 0) continue;
      bucket.pushes.push_back(group_.send(view(in_part(bucket.flat, part)), s, bucket.tag));
    }
  }

  /// Adds up what the workers have pushed, in rank order, and ends my own pushes.
  void sum(ServedBucket& bucket) {
    const ServedPart part = mine_of(bucket);
    if (part.size() > 0 && group_.size() > 1) add_pushes(bucket, in_part(bucket.flat, part));
    for (Work& push : bucket.pushes) push.wait();
    bucket.pushes.clear();
    bucket.is_summed = true;
    // A worker's gradients are on the servers now.
    if (part.size() == 0) bucket.flat = Tensor();
  }

  /// Two receives are under way while one is added. Half precision adds in f32, rounded once.
  void add_pushes(const ServedBucket& bucket, const Tensor& mine) {
    const at::NoGradGuard no_grad;
    const CategoryScope scope(Category::kCommunication);
    const bool is_half = mine.scalar_type() == at::kBFloat16 || mine.scalar_type() == at::kHalf;
    const Tensor total =
        at::zeros(mine.sizes(), mine.options().dtype(is_half ? at::kFloat : mine.scalar_type()));
    const Tensor incoming[2] = {at::empty_like(mine), at::empty_like(mine)};
    Work under_way[2];
    std::vector<int> others;
    for (int r = 0; r < group_.size(); ++r) {
      if (r != group_.rank()) others.push_back(r);
    }
    const auto receive = [&](size_t k) {
      if (k >= others.size()) return;
      under_way[k % 2] = group_.recv(view(incoming[k % 2]), others[k], bucket.tag);
    };
    receive(0);
    for (size_t k = 0; k < others.size(); ++k) {
      receive(k + 1);
      if (others[k] > group_.rank() && (k == 0 || others[k - 1] < group_.rank()))
        total.add_(is_half ? mine.to(at::kFloat) : mine);
      under_way[k % 2].wait();
      total.add_(is_half ? incoming[k % 2].to(at::kFloat) : incoming[k % 2]);
    }
    if (others.back() < group_.rank()) total.add_(is_half ? mine.to(at::kFloat) : mine);
    mine.copy_(total);
  }

  /// What this rank serves of slot i, with its gradient once that is summed.
  ParamShard shard(const ServedBucket& bucket, size_t i) const {
    const FlatSlot& slot = bucket.layout.slots[i];
    const ServedPart piece = overlap(mine_of(bucket), slot);
    std::vector<int64_t> ends;
    for (int64_t r = 0; r < group_.size(); ++r) {
      ends.push_back(serves(r) ? part_of(bucket, r).end : bucket.layout.elements());
    }
    ParamShard mine;
    mine.param = slot.param;
    mine.split_axes = {"data"};
    mine.bounds = bounds_in(slot, ends);
    if (piece.size() == 0) {  // every replica names every parameter, and meets in the same sums
      mine.value = at::empty({0}, slot.param->value.options().requires_grad(false));
      mine.grad = mine.value;
      return mine;
    }
    mine.value = value_in(slot, piece);
    if (bucket.flat.defined()) mine.grad = in_part(bucket.flat, piece);
    mine.first_element = piece.begin - slot.offset;
    return mine;
  }

  /// The servers' new values on every replica.
  void pull(const ServedBucket& bucket) {
    if (group_.size() == 1) return;
    const at::NoGradGuard no_grad;
    const CategoryScope scope(Category::kCommunication);
    const FlatBucket& layout = bucket.layout;
    const Tensor flat =
        at::empty({layout.elements()}, layout.slots[0].param->value.options().requires_grad(false));
    const ServedPart mine = mine_of(bucket);
    std::vector<Work> works;
    for (int s = 0; s < options_.servers; ++s) {
      const ServedPart part = part_of(bucket, s);
      if (s == group_.rank() || part.size() == 0) continue;
      works.push_back(group_.recv(view(in_part(flat, part)), s, bucket.tag + 1));
    }
    take_values(layout, flat, mine);
    for (int r = 0; r < group_.size() && mine.size() > 0; ++r) {
      if (r == group_.rank()) continue;
      works.push_back(group_.send(view(in_part(flat, mine)), r, bucket.tag + 1));
    }
    for (Work& work : works) work.wait();
    give_values(layout, flat, {0, mine.begin});
    give_values(layout, flat, {mine.end, layout.elements()});
  }

  /// The summed gradient of slot i, gathered from the servers.
  Tensor whole(const ServedBucket& bucket, size_t i) {
    const CategoryScope scope(Category::kCommunication);
    const FlatSlot& slot = bucket.layout.slots[i];
    const Tensor all = at::empty({slot.extent}, slot.param->value.options().requires_grad(false));
    for (int s = 0; s < options_.servers; ++s) {
      const ServedPart piece = overlap(part_of(bucket, s), slot);
      if (piece.size() == 0) continue;
      const Tensor place = all.narrow(0, piece.begin - slot.offset, piece.size());
      if (s == group_.rank()) place.copy_(in_part(bucket.flat, piece));
      group_.broadcast(view(place), s).wait();
    }
    return all.view(slot.param->value.sizes());
  }

  const Mesh& mesh_;
  ServerOptions options_;
  Communicator& group_;
  std::vector<std::vector<ServedBucket>> buckets_;  // by group
};

}  // namespace

std::unique_ptr<DataParallel> make_parameter_server(const Mesh& mesh, ServerOptions options) {
  return std::make_unique<ParameterServer>(mesh, options);
}

}  // namespace kuafu
