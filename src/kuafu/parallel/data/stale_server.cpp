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
// Messages of a step, worker to each server but itself: a note of 8 bytes (the step), its gradients
// of the server's part; back: the part's values. settle(): a note, and the part's values.

#include "kuafu/parallel/data/stale_server.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <thread>

#include "kuafu/base/errors.h"
#include "kuafu/comm/communicator.h"
#include "kuafu/meter/allocator.h"
#include "kuafu/parallel/data/served_part.h"

namespace kuafu {
namespace {

enum Tag : int { kNoteTag, kPushTag, kPullTag, kSettleTag };
constexpr int64_t kSettles = -1;  // the note of a worker that is through

/// Throws where some worker would have to be further ahead of the slowest than the bound.
void check_script(const StaleOptions& options, int64_t workers) {
  std::vector<int64_t> pushed(static_cast<size_t>(workers));
  for (size_t i = 0; i < options.script.size(); ++i) {
    const int w = options.script[i];
    KUAFU_REQUIRE(w >= 0 && w < workers, "entry ", i, " of the script is worker ", w,
                  "; allowed: 0 to ", workers - 1);
    const int64_t slowest = *std::min_element(pushed.begin(), pushed.end());
    const int64_t ahead = pushed[static_cast<size_t>(w)] - slowest;
    KUAFU_REQUIRE(
        ahead <= options.staleness, "entry ", i, " of the script is step ",
        pushed[static_cast<size_t>(w)], " of worker ", w, ", ", ahead,
        " steps ahead of the slowest; allowed: parallel.data.staleness = ", options.staleness);
    ++pushed[static_cast<size_t>(w)];
  }
}

/// What one server holds, and what has come to it.
class ServerStore {
 public:
  ServerStore(Communicator& group, const FlatBucket& layout, const StaleOptions& options)
      : group_(group),
        layout_(layout),
        options_(options),
        part_(served_part(layout, group.rank(), options.servers)),
        optimizer_(make_optimizer(options.optimizer, options.rules)),
        workers_(static_cast<size_t>(group.size())) {
    const CategoryScope scope(Category::kParameter);
    values_ = at::empty({part_.size()}, options_of_values());
    for (const FlatSlot& slot : layout_.slots) {
      const ServedPart piece = overlap(part_, slot);
      if (piece.size() > 0) in_values(piece).copy_(value_in(slot, piece));
    }
    optimizer_->begin(pieces({}));
  }

  const ServedPart& part() const { return part_; }
  const PushOrder& order() const { return order_; }

  /// My own worker's push arrives; `gradient`: my part of it.
  void push_own(const Tensor& gradient) {
    Worker& me = workers_[static_cast<size_t>(group_.rank())];
    me.gradient = gradient;
    me.has_arrived = true;
  }
  /// The values for my own worker's next step, once it may start it; undefined before.
  Tensor take_own() { return std::move(own_reply_); }
  void settle_own() { workers_[static_cast<size_t>(group_.rank())].has_settled = true; }

  /// True once every worker has said that it is through: all pushes are applied then.
  bool has_settled() const {
    return std::all_of(workers_.begin(), workers_.end(),
                       [](const Worker& w) { return w.has_settled; });
  }

  /// The newest values, sent to all other workers; ready for what comes after.
  void end_phase() {
    std::vector<Work> works;
    for (int w = 0; w < group_.size() && part_.size() > 0; ++w) {
      if (w != group_.rank()) works.push_back(group_.send(view(values_), w, kSettleTag));
    }
    for (Work& work : works) work.wait();
    for (Reply& reply : replies_) reply.work.wait();
    replies_.clear();
    for (Worker& worker : workers_) {
      worker.has_settled = false;
      worker.version = version();
    }
  }
  const Tensor& values() const { return values_; }

  /// Applies what has arrived and answers who may go on. True where anything moved. Never blocks.
  bool serve() {
    bool has_moved = false;
    for (int w = 0; w < group_.size(); ++w) has_moved = listen(w) || has_moved;
    for (int w = next(); w >= 0; w = next()) {
      apply(w);
      answer();
      has_moved = true;
    }
    while (!replies_.empty() && replies_.front().work.test()) replies_.pop_front();
    return has_moved;
  }

 private:
  struct Worker {
    int64_t note = 0;
    Tensor gradient;  // of the push under way
    Work note_under_way, push_under_way;
    bool is_listened_to = false, is_sending = false;
    bool has_arrived = false;  // its push waits to be applied
    bool is_waiting = false;   // for the values of its next step
    bool has_settled = false;
    int64_t pushed = 0;   // steps applied
    int64_t version = 0;  // of the values it computes with
  };
  struct Reply {
    Work work;
    Tensor values;
  };

  at::TensorOptions options_of_values() const {
    return layout_.slots[0].param->value.options().requires_grad(false);
  }
  int64_t version() const { return static_cast<int64_t>(order_.size()); }
  Tensor in_values(const ServedPart& piece) const {
    return values_.narrow(0, piece.begin - part_.begin, piece.size());
  }

  /// Moves the messages of one worker on.
  bool listen(int w) {
    if (w == group_.rank()) return false;
    Worker& worker = workers_[static_cast<size_t>(w)];
    if (worker.has_arrived || worker.is_waiting || worker.has_settled) return false;
    if (!worker.is_listened_to) {
      worker.note_under_way = group_.recv({&worker.note, 1, DType::kI64}, w, kNoteTag);
      worker.is_listened_to = true;
    }
    if (!worker.is_sending) {
      if (!worker.note_under_way.test()) return false;
      if (worker.note == kSettles) {
        worker.is_listened_to = false;
        worker.has_settled = true;
        return true;
      }
      KUAFU_CHECK(worker.note == worker.pushed, "worker ", w, " pushes step ", worker.note,
                  " after step ", worker.pushed - 1);
      const CategoryScope scope(Category::kCommunication);
      worker.gradient = at::empty({part_.size()}, options_of_values());
      if (part_.size() > 0) {
        worker.push_under_way = group_.recv(view(worker.gradient), w, kPushTag);
      }
      worker.is_sending = true;
    }
    if (!worker.push_under_way.test()) return false;
    worker.is_listened_to = worker.is_sending = false;
    worker.has_arrived = true;
    return true;
  }

  /// The worker whose push is applied next; -1 for none yet.
  int next() const {
    if (order_.size() < options_.script.size()) {
      const int w = options_.script[order_.size()];
      return workers_[static_cast<size_t>(w)].has_arrived ? w : -1;
    }
    for (int w = 0; w < group_.size(); ++w) {
      if (workers_[static_cast<size_t>(w)].has_arrived) return w;
    }
    return -1;
  }

  /// My part of every parameter, with that of a gradient (part) where one is given.
  std::vector<ParamShard> pieces(const Tensor& gradient) const {
    std::vector<ParamShard> all;
    for (const FlatSlot& slot : layout_.slots) {
      const ServedPart piece = overlap(part_, slot);
      if (piece.size() == 0) continue;
      Tensor grad;
      if (gradient.defined()) grad = gradient.narrow(0, piece.begin - part_.begin, piece.size());
      all.push_back({in_values(piece), grad, slot.param, {"data"}});
    }
    return all;
  }

  void apply(int w) {
    const at::NoGradGuard no_grad;
    Worker& worker = workers_[static_cast<size_t>(w)];
    std::vector<ParamShard> shards = pieces(worker.gradient);
    optimizer_->step(
        shards, learning_rate(options_.optimizer, worker.pushed, options_.steps, options_.batch));
    order_.push_back({w, worker.pushed, worker.version});
    ++worker.pushed;
    worker.gradient = Tensor();
    worker.has_arrived = false;
    worker.is_waiting = true;
  }

  /// Sends the newest values to those who wait and may start their next step.
  void answer() {
    int64_t slowest = workers_[0].pushed;
    for (const Worker& worker : workers_) slowest = std::min(slowest, worker.pushed);
    const CategoryScope scope(Category::kCommunication);
    for (int w = 0; w < group_.size(); ++w) {
      Worker& worker = workers_[static_cast<size_t>(w)];
      if (!worker.is_waiting || worker.pushed - slowest > options_.staleness) continue;
      worker.is_waiting = false;
      worker.version = version();
      const Tensor copy = values_.clone();
      if (w == group_.rank()) {
        own_reply_ = copy;
      } else if (part_.size() > 0) {
        replies_.push_back({group_.send(view(copy), w, kPullTag), copy});
      }
    }
  }

  Communicator& group_;
  const FlatBucket& layout_;
  const StaleOptions& options_;
  ServedPart part_;
  Tensor values_;  // (part), newest
  std::unique_ptr<Optimizer> optimizer_;
  std::vector<Worker> workers_;
  std::deque<Reply> replies_;
  Tensor own_reply_;
  PushOrder order_;
};

class StaleServer final : public DataParallel {
 public:
  StaleServer(const Mesh& mesh, StaleOptions options)
      : mesh_(mesh), options_(std::move(options)), group_(mesh.comm("data")) {
    KUAFU_REQUIRE(mesh.num_ranks() == group_.size(),
                  "a parameter server with staleness takes replicas of one rank, the mesh is ",
                  mesh.describe());
    KUAFU_REQUIRE(options_.servers >= 1 && options_.servers <= group_.size(),
                  "parallel.data.servers = ", options_.servers, "; allowed: 1 to ", group_.size(),
                  ", the replicas");
    check_script(options_, group_.size());
  }

  void attach(std::vector<Group> groups) override {
    std::vector<Param*> params;
    for (const Group& group : groups) {
      params.insert(params.end(), group.params.begin(), group.params.end());
    }
    layout_ = whole_model(params, mesh_);
    if (group_.rank() < options_.servers) {
      store_ = std::make_unique<ServerStore>(group_, layout_, options_);
    }
  }

  bool is_in_step() const override { return false; }
  void acquire(const GroupSet&) override { serve(); }
  void grads_ready(int, bool) override { serve(); }
  std::vector<ParamShard> finish() override {
    for (const FlatSlot& slot : layout_.slots) {
      recategorise(slot.param->value.grad(), Category::kGradient);
    }
    return {};
  }

  std::vector<ParamShard> shards() override {
    throw ConfigError(
        "parallel.data.staleness: a checkpoint would need the servers' optimizers and the versions "
        "that workers have read; nearest: staleness = 0, or no checkpoint");
  }

  /// Pushes my gradients and waits for the values of my next step.
  void publish() override {
    is_settled_ = false;
    std::vector<bool> used(layout_.slots.size());
    const CategoryScope scope(Category::kGradient);
    const Tensor gradients = take_gradients(layout_, used);
    for (size_t i = 0; i < used.size(); ++i) {
      KUAFU_REQUIRE(used[i], "parallel.data.staleness: ", layout_.slots[i].param->name,
                    " got no gradient in step ", pushed_ + 1,
                    "; servers update all parameters or none; nearest: staleness = 0");
    }
    int64_t note = pushed_++;
    std::vector<Work> works;
    const Tensor values = receive_values(kPullTag, works);
    tell_servers(note, works);
    for (int s = 0; s < options_.servers; ++s) {
      const ServedPart part = served_part(layout_, s, options_.servers);
      if (s == group_.rank() || part.size() == 0) continue;
      works.push_back(group_.send(view(in_part(gradients, part)), s, kPushTag));
    }
    Tensor own;
    if (store_) {
      store_->push_own(in_part(gradients, store_->part()));
      serve_until([&] {
        if (!own.defined()) own = store_->take_own();
        return own.defined() && are_through(works);
      });
      in_part(values, store_->part()).copy_(own);
    }
    for (Work& work : works) work.wait();
    give_values(layout_, values, {0, layout_.elements()});
  }

  void settle() override {
    if (is_settled_) return;
    is_settled_ = true;
    const at::NoGradGuard no_grad;
    std::vector<Work> works;
    const Tensor values = receive_values(kSettleTag, works);
    int64_t note = kSettles;
    tell_servers(note, works);
    if (store_) {
      store_->settle_own();
      serve_until([&] { return store_->has_settled(); });
      store_->end_phase();
      in_part(values, store_->part()).copy_(store_->values());
    }
    for (Work& work : works) work.wait();
    give_values(layout_, values, {0, layout_.elements()});
  }

  Tensor value(const Param& p) override {
    settle();
    return p.value.detach();
  }

  /// The sum over replicas of what each is about to push.
  Tensor gradient(const Param& p) override {
    if (!p.value.grad().defined()) return {};
    const Tensor sum = p.value.grad().clone();
    group_.all_reduce(view(sum), ReduceOp::kSum).wait();
    return sum;
  }

  std::vector<PushOrder> pushes() override {
    settle();
    std::vector<PushOrder> all;
    for (int s = 0; s < options_.servers; ++s) {
      std::vector<int64_t> numbers(static_cast<size_t>(3 * pushed_ * group_.size()));
      if (s == group_.rank()) {
        size_t i = 0;
        for (const AppliedPush& p : store_->order()) {
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

 private:
  /// What came in while my worker computed; nothing comes before anybody has pushed.
  void serve() {
    if (store_ && !is_settled_) store_->serve();
  }

  template <class Done>
  void serve_until(const Done& is_done) {
    while (!is_done()) {
      if (!store_->serve()) std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
  }

  static bool are_through(std::vector<Work>& works) {
    bool are = true;
    for (Work& work : works) are = work.test() && are;
    return are;
  }

  /// Room for all values, and receives of those that other servers will send.
  Tensor receive_values(Tag tag, std::vector<Work>& works) {
    const CategoryScope scope(Category::kCommunication);
    const Tensor values = at::empty({layout_.elements()},
                                    layout_.slots[0].param->value.options().requires_grad(false));
    for (int s = 0; s < options_.servers; ++s) {
      const ServedPart part = served_part(layout_, s, options_.servers);
      if (s == group_.rank() || part.size() == 0) continue;
      works.push_back(group_.recv(view(in_part(values, part)), s, tag));
    }
    return values;
  }

  void tell_servers(int64_t& note, std::vector<Work>& works) {
    for (int s = 0; s < options_.servers; ++s) {
      if (s == group_.rank()) continue;
      works.push_back(group_.send({&note, 1, DType::kI64}, s, kNoteTag));
    }
  }

  const Mesh& mesh_;
  StaleOptions options_;
  Communicator& group_;
  FlatBucket layout_;
  std::unique_ptr<ServerStore> store_;  // null on a replica that does not serve
  int64_t pushed_ = 0;                  // steps
  bool is_settled_ = true;
};

}  // namespace

std::unique_ptr<DataParallel> make_stale_server(const Mesh& mesh, StaleOptions options) {
  return std::make_unique<StaleServer>(mesh, std::move(options));
}

}  // namespace kuafu
