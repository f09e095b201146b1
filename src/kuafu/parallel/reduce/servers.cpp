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

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "kuafu/base/errors.h"
#include "kuafu/comm/communicator.h"
#include "kuafu/meter/allocator.h"
#include "kuafu/parallel/reduce/reduce.h"

namespace kuafu {
namespace {

int push_tag(const FlatBucket& bucket) { return 2 * bucket.tag; }
int pull_tag(const FlatBucket& bucket) { return 2 * bucket.tag + 1; }

class Servers final : public Reduce {
 public:
  Servers(const Mesh& mesh, int64_t servers)
      : mesh_(mesh), group_(mesh.comm("data")), servers_(servers) {
    KUAFU_REQUIRE(servers >= 1 && servers <= group_.size(), "parallel.data.servers = ", servers,
                  "; allowed: 1 to ", group_.size(), ", the replicas");
  }

  void attach(const FlatBucket& bucket) override {
    KUAFU_CHECK(bucket.replicas.empty() || bucket.replicas == Axes{"data"}, "replicas along ",
                to_string(bucket.replicas));
  }

  /// Sends each server its part of my gradients. What workers have pushed is added up in the wait,
  /// in rank order; a worker's gradients are on the servers then.
  StartedSum start(const FlatBucket& bucket, const Tensor& flat, Portion) override {
    for (const std::string& axis : bucket.scheme_axes) {
      mesh_.comm(axis).all_reduce(view(flat), ReduceOp::kSum).wait();
    }
    show_own(bucket, flat);
    const auto pushes = std::make_shared<std::vector<Work>>();
    for (int s = 0; s < servers_; ++s) {
      const FlatPart part = bucket.part(s);
      if (s == group_.rank() || part.size() == 0) continue;
      pushes->push_back(group_.send(view(in_part(flat, part)), s, push_tag(bucket)));
    }
    Tensor mine;
    if (bucket.mine().size() > 0) mine = in_part(flat, bucket.mine());
    return {mine, PendingSum(Work(), [this, &bucket, mine, pushes, held = flat]() mutable {
              if (mine.defined() && group_.size() > 1) add_pushes(bucket, mine);
              for (Work& push : *pushes) push.wait();
              held = Tensor();
            })};
  }

  /// The servers' new values on every replica.
  Work share(const FlatBucket& bucket, const Tensor&) override {
    const at::NoGradGuard no_grad;
    const CategoryScope scope(Category::kCommunication);
    const Tensor flat = at::empty({bucket.elements()}, bucket.options());
    const FlatPart mine = bucket.mine();
    std::vector<Work> works;
    for (int s = 0; s < servers_; ++s) {
      const FlatPart part = bucket.part(s);
      if (s == group_.rank() || part.size() == 0) continue;
      works.push_back(group_.recv(view(in_part(flat, part)), s, pull_tag(bucket)));
    }
    take_values(bucket, flat, mine);
    for (int r = 0; r < group_.size() && mine.size() > 0; ++r) {
      if (r == group_.rank()) continue;
      works.push_back(group_.send(view(in_part(flat, mine)), r, pull_tag(bucket)));
    }
    for (Work& work : works) work.wait();
    give_values(bucket, flat, {0, mine.begin});
    give_values(bucket, flat, {mine.end, bucket.elements()});
    return Work();
  }

 private:
  /// Two receives are under way while one is added. Half precision adds in f32, rounded once.
  void add_pushes(const FlatBucket& bucket, const Tensor& mine) {
    const at::NoGradGuard no_grad;
    const CategoryScope scope(Category::kCommunication);
    const at::ScalarType wide = update_type(mine);
    const Tensor total = at::zeros(mine.sizes(), mine.options().dtype(wide));
    const Tensor incoming[2] = {at::empty_like(mine), at::empty_like(mine)};
    Work under_way[2];
    std::vector<int> others;
    for (int r = 0; r < group_.size(); ++r) {
      if (r != group_.rank()) others.push_back(r);
    }
    const auto receive = [&](size_t k) {
      if (k >= others.size()) return;
      under_way[k % 2] = group_.recv(view(incoming[k % 2]), others[k], push_tag(bucket));
    };
    receive(0);
    for (size_t k = 0; k < others.size(); ++k) {
      receive(k + 1);
      if (others[k] > group_.rank() && (k == 0 || others[k - 1] < group_.rank()))
        total.add_(mine.to(wide));
      under_way[k % 2].wait();
      total.add_(incoming[k % 2].to(wide));
    }
    if (others.back() < group_.rank()) total.add_(mine.to(wide));
    mine.copy_(total);
  }

  const Mesh& mesh_;
  Communicator& group_;
  int64_t servers_;
};

}  // namespace

std::unique_ptr<Reduce> make_servers(const Mesh& mesh, int64_t servers) {
  return std::make_unique<Servers>(mesh, servers);
}

}  // namespace kuafu
