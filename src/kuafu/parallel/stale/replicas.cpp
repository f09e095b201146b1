// SPDX-License-Identifier: Apache-2.0
//
// Parameter server with bounded staleness.     [Ho et al., NIPS 2013: stale synchronous parallel]
//
// Picture (3 workers, one server, staleness k = 1; w:t is worker w's push of step t, vN the version
// of the parameters after N updates):
//
//   worker 0   0:0 ---- v1 0:1 ------------- v5 ...        may start step 2 once all have pushed
//   worker 1     1:0 ---- v2 1:1 ------------- v5 ...      step 0: it is 2 - 1 steps ahead at most
//   worker 2             (slow)        2:0 ---- v5 2:1
//   server     0:0 1:0       0:1 1:1   2:0                 one update a push, in order of arrival
//
// Math. Worker w computes g(w,t) on its share of the batch of step t, with parameters of version
// v(w,t); each server then updates its part with g(w,t) and the learning rate of step t. A worker
// may start step t once min over workers of their pushed steps >= t - k. The sum of the pushes of a
// step is what the synchronous mean would be, were all made with the same parameters.
//
// A server is a worker too: it applies what has come whenever its worker passes from one block to
// the next, and while its worker waits. Nothing blocks there, so the order of arrivals cannot
// deadlock. Its worker computes with a copy of its own: the served values change under nobody's
// hands.
//
// Messages of a step, worker to each server but itself: a note of 24 bytes (the step, whether it
// wants to meet, its loss), its gradients of the server's part; back: the part's values, and from
// server 0 in 8 bytes after how many steps all meet. settle(): a note, and the part's values.
//
// Meeting, to be saved or stopped: server 0 hears first that somebody wants to, and names the first
// step that it has let nobody begin. Everybody settles before that one.

#include "kuafu/parallel/stale/replicas.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <thread>

#include "kuafu/base/errors.h"
#include "kuafu/base/trace.h"
#include "kuafu/comm/communicator.h"
#include "kuafu/meter/allocator.h"
#include "kuafu/parallel/reduce/reduce.h"
#include "kuafu/parallel/stale/server.h"
#include "kuafu/tensor/ops.h"

namespace kuafu {
namespace {

bool are_through(std::vector<Work>& works) {
  bool are = true;
  for (Work& work : works) are = work.test() && are;
  return are;
}

double norm_of(const std::vector<ParamShard>& pieces) {
  Tensor sum;
  for (const ParamShard& piece : pieces) {
    const Tensor squares = ops::sum_of_squares(piece.grad);
    sum = sum.defined() ? sum + squares : squares;
  }
  const double squares = sum.item<double>();
  TraceRecorder* trace = current_trace();
  return std::sqrt(trace == nullptr ? squares : trace->oracle("gradient norm", squares));
}

}  // namespace

FlatBucket whole_model(const std::vector<Param*>& params, const Mesh& mesh, int64_t servers) {
  Group all{"model", {}};
  for (Param* p : params) {
    const bool is_known = std::find(all.params.begin(), all.params.end(), p) != all.params.end();
    if (!is_known) all.params.push_back(p);
  }
  std::vector<FlatBucket> buckets = make_buckets(
      all, mesh, {.bucket_bytes = std::numeric_limits<int64_t>::max(), .servers = servers});
  KUAFU_CHECK(buckets.size() == 1, "parameters of ", buckets.size(), " kinds");
  return std::move(buckets[0]);
}

StaleReplica::StaleReplica(const Mesh& mesh, StaleOptions options)
    : mesh_(mesh),
      options_(std::move(options)),
      group_(mesh.comm("data")),
      servers_(options_.plan.parallel.data.servers) {
  KUAFU_REQUIRE(mesh.num_ranks() == group_.size(),
                "a parameter server with staleness takes replicas of one rank, the mesh is ",
                mesh.describe());
  KUAFU_REQUIRE(servers_ >= 1 && servers_ <= group_.size(), "parallel.data.servers = ", servers_,
                "; allowed: 1 to ", group_.size(), ", the replicas");
  check_script(options_.script, group_.size(), options_.plan.parallel.data.staleness);
}

StaleReplica::~StaleReplica() = default;

std::unique_ptr<Store> StaleReplica::make_store(const ParamFactory& params) const {
  return std::make_unique<Store>(alone_, StoreOptions{},
                                 make_all_reduce(alone_, {}, SumOrder::kAny), params);
}

void StaleReplica::attach(const std::vector<Param*>& params) {
  layout_ = whole_model(params, mesh_, servers_);
  if (group_.rank() < servers_) {
    server_ = std::make_unique<StaleServer>(group_, layout_, options_);
  }
}

// Nothing comes before anybody has pushed.
void StaleReplica::serve() {
  if (server_ && !is_settled_) server_->serve();
}

template <class Done>
void StaleReplica::serve_until(const Done& is_done) {
  while (!is_done()) {
    if (!server_->serve()) std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
}

double StaleReplica::push(std::vector<ParamShard>& ready, double loss) {
  is_settled_ = false;
  const double norm = norm_of(ready) * static_cast<double>(group_.size());
  ready.clear();
  std::vector<bool> used(layout_.slots.size());
  const CategoryScope scope(Category::kGradient);
  const Tensor gradients = take_gradients(layout_, used);
  for (size_t i = 0; i < used.size(); ++i) {
    KUAFU_REQUIRE(used[i], "parallel.data.staleness: ", layout_.slots[i].param->name,
                  " got no gradient in step ", pushed_ + 1,
                  "; servers update all parameters or none; nearest: staleness = 0");
  }
  if (witness_ && witness_->wanted().has(group_.rank(), pushed_)) {
    witness_->see_push({group_.rank(), pushed_, norm, {}, gradients}, layout_);
  }
  Note note{pushed_++, wants_to_meet_ ? 1 : 0, loss};
  std::vector<Work> works;
  const Tensor values = receive_values(kPullTag, works);
  if (group_.rank() != 0) works.push_back(group_.recv({&meets_at_, 1, DType::kI64}, 0, kMeetTag));
  tell_servers(note, works);
  for (int s = 0; s < servers_; ++s) {
    const FlatPart part = layout_.part(s);
    if (s == group_.rank() || part.size() == 0) continue;
    works.push_back(group_.send(view(in_part(gradients, part)), s, kPushTag));
  }
  Tensor own;
  if (server_) {
    server_->push_own(in_part(gradients, server_->part()), note);
    serve_until([&] {
      if (!own.defined()) own = server_->take_own();
      return own.defined() && are_through(works);
    });
    in_part(values, server_->part()).copy_(own);
    if (group_.rank() == 0) meets_at_ = server_->meets_at();
  }
  for (Work& work : works) work.wait();
  give_values(layout_, values, {0, layout_.elements()});
  return norm;
}

template <class F>
void StaleReplica::take_newest(const F& wait) {
  const at::NoGradGuard no_grad;
  std::vector<Work> works;
  const Tensor values = receive_values(kSettleTag, works);
  wait(works);
  if (server_) {
    server_->end_phase();
    in_part(values, server_->part()).copy_(server_->values());
  }
  for (Work& work : works) work.wait();
  give_values(layout_, values, {0, layout_.elements()});
}

void StaleReplica::settle() {
  if (is_settled_) return;
  is_settled_ = true;
  Note note{.step = kSettles};
  take_newest([&](std::vector<Work>& works) {
    tell_servers(note, works);
    if (!server_) return;
    server_->settle_own();
    serve_until([&] { return server_->has_settled(); });
  });
  met_.push_back(pushed_);
  wants_to_meet_ = false;
  meets_at_ = -1;
}

bool StaleReplica::meets(bool wants, bool is_due) {
  wants_to_meet_ = wants_to_meet_ || wants;
  if (!is_due && meets_at_ != pushed_) return false;
  settle();
  return true;
}

std::vector<double> StaleReplica::take_means() {
  return group_.rank() == 0 ? server_->take_means() : std::vector<double>();
}

std::vector<ParamShard> StaleReplica::shards() {
  settle();
  return server_ ? server_->shards() : std::vector<ParamShard>();
}

Optimizer* StaleReplica::optimizer() { return server_ ? &server_->optimizer() : nullptr; }

void StaleReplica::go_on_from(int64_t steps) {
  begun_ = pushed_ = steps;
  if (server_) server_->go_on_from(steps);
  take_newest([](const auto&) {});
}

void StaleReplica::witness(const WantedPushes& wanted) {
  witness_ = std::make_unique<PushWitness>(wanted);
  if (server_) server_->tell(*witness_);
}

std::vector<PushOrder> StaleReplica::pushes() {
  settle();
  std::vector<PushOrder> all;
  for (int s = 0; s < servers_; ++s) {
    std::vector<int64_t> numbers(static_cast<size_t>(3 * (pushed_ - begun_) * group_.size()));
    if (s == group_.rank()) {
      size_t i = 0;
      for (const AppliedPush& p : server_->order()) {
        for (const int64_t x : {p.worker, p.step, p.version}) numbers[i++] = x;
      }
    }
    const auto count = static_cast<int64_t>(numbers.size());
    group_.broadcast({numbers.data(), count, DType::kI64}, s).wait();
    PushOrder& order = all.emplace_back();
    for (size_t i = 0; i < numbers.size(); i += 3) {
      order.push_back({numbers[i], numbers[i + 1], numbers[i + 2]});
    }
  }
  return all;
}

Tensor StaleReplica::gradient(const Param& p) const {
  if (!p.value.grad().defined()) return {};
  const Tensor sum = p.value.grad().clone();
  group_.all_reduce(view(sum), ReduceOp::kSum).wait();
  return sum;
}

std::vector<double> StaleReplica::means(std::vector<double> own) {
  settle();
  const auto count = static_cast<int64_t>(own.size());
  group_.all_reduce({own.data(), count, DType::kF64}, ReduceOp::kSum).wait();
  for (double& x : own) x /= static_cast<double>(group_.size());
  return own;
}

Tensor StaleReplica::receive_values(int tag, std::vector<Work>& works) const {
  const CategoryScope scope(Category::kCommunication);
  const Tensor values = at::empty({layout_.elements()}, layout_.options());
  for (int s = 0; s < servers_; ++s) {
    const FlatPart part = layout_.part(s);
    if (s == group_.rank() || part.size() == 0) continue;
    works.push_back(group_.recv(view(in_part(values, part)), s, tag));
  }
  return values;
}

void StaleReplica::tell_servers(Note& note, std::vector<Work>& works) const {
  for (int s = 0; s < servers_; ++s) {
    if (s == group_.rank()) continue;
    works.push_back(group_.send({&note, kNoteNumbers, DType::kI64}, s, kNoteTag));
  }
}

}  // namespace kuafu
