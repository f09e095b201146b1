// SPDX-License-Identifier: Apache-2.0
#include "kuafu/engine/push_replay.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <utility>

#include "kuafu/comm/worlds.h"
#include "kuafu/parallel/data/served_part.h"

namespace kuafu {
namespace {

using Push = std::pair<int64_t, int64_t>;  // worker, step

/// One server's part of the model as its order makes it.
struct Server {
  const PushOrder* order;
  ServedPart part;
  std::unique_ptr<Optimizer> optimizer;
  Tensor values;                       // (part), newest
  size_t applied = 0;                  // its version
  std::map<Push, int64_t> read;        // version a push was computed with
  std::map<int64_t, int64_t> readers;  // of a version, still to come
  std::map<int64_t, Tensor> versions;  // that somebody will read
};

class PushReplay {
 public:
  PushReplay(const Plan& plan, const Registries& registries, const Dataset& data, at::Device device,
             const std::vector<PushOrder>& orders)
      : plan_(plan),
        workers_(plan.parallel.data.size),
        alone_(make_self()),
        engine_(one_rank(plan), registries, *alone_, data, {.device = device}),
        layout_(whole_model(engine_.params(), engine_.mesh())) {
    const at::NoGradGuard no_grad;
    const auto servers = static_cast<int64_t>(orders.size());
    for (int64_t s = 0; s < servers; ++s) {
      Server& server = servers_.emplace_back();
      server.order = &orders[static_cast<size_t>(s)];
      server.part = served_part(layout_, s, servers);
      server.optimizer = make_optimizer(plan.optimizer);
      const Tensor flat = at::empty({layout_.elements()}, value_options());
      take_values(layout_, flat, server.part);
      server.values = in_part(flat, server.part).clone();
      for (const AppliedPush& push : *server.order) {
        server.read[{push.worker, push.step}] = push.version;
        ++server.readers[push.version];
      }
      keep(server);
    }
  }

  Trajectory run() {
    steps_ = static_cast<int64_t>(servers_[0].order->size()) / workers_;
    result_.losses.assign(static_cast<size_t>(steps_), 0);
    bool is_done = false;
    while (!is_done) {
      is_done = true;
      bool has_moved = false;
      for (Server& server : servers_) {
        while (server.applied < server.order->size() && advance(server)) has_moved = true;
        is_done = is_done && server.applied == server.order->size();
      }
      KUAFU_CHECK(is_done || has_moved, "orders of pushes that wait for each other");
    }
    for (Server& server : servers_) place(server, server.values);
    result_.parameters = whole_parameters(engine_, Keep::kYes);
    result_.routing_margin = engine_.routing_margin();
    return std::move(result_);
  }

 private:
  /// As many micro-batches of as many samples as all workers together.
  static Plan one_rank(const Plan& plan) {
    Plan one = single_rank(plan);
    one.train.micro_batch = plan.train.micro_batch;
    return one;
  }
  at::TensorOptions value_options() const {
    return layout_.slots[0].param->value.options().requires_grad(false);
  }

  /// Keeps the newest version while somebody will read it.
  static void keep(Server& server) {
    const auto version = static_cast<int64_t>(server.applied);
    if (server.readers.count(version) > 0) server.versions[version] = server.values.clone();
  }

  /// Puts values of a server's part into the model.
  void place(const Server& server, const Tensor& values) {
    const at::NoGradGuard no_grad;
    for (const FlatSlot& slot : layout_.slots) {
      const ServedPart piece = overlap(server.part, slot);
      if (piece.size() == 0) continue;
      value_in(slot, piece).copy_(values.narrow(0, piece.begin - server.part.begin, piece.size()));
    }
  }

  /// Applies a server's next push, if what its worker had read is known by now.
  bool advance(Server& server) {
    const AppliedPush& push = (*server.order)[server.applied];
    const Push key{push.worker, push.step};
    if (gradients_.count(key) == 0 && !compute(key)) return false;
    const at::NoGradGuard no_grad;
    const Tensor& gradient = gradients_.at(key);
    std::vector<ParamShard> shards;
    for (const FlatSlot& slot : layout_.slots) {
      const ServedPart piece = overlap(server.part, slot);
      if (piece.size() == 0) continue;
      const int64_t begin = piece.begin - server.part.begin;
      shards.push_back(
          {server.values.narrow(0, begin, piece.size()), in_part(gradient, piece), slot.param, {}});
    }
    server.optimizer->step(shards,
                           learning_rate(plan_.optimizer, push.step, plan_.schedule_steps()));
    ++server.applied;
    keep(server);
    if (++uses_[key] == servers_.size()) gradients_.erase(key);
    return true;
  }

  /// The gradients of a worker's share of a step, with the versions it had read.
  bool compute(const Push& key) {
    const auto version = [&](const Server& server) {
      const auto found = server.read.find(key);
      KUAFU_CHECK(found != server.read.end(), "step ", key.second, " of worker ", key.first,
                  " came to some servers only");
      return found->second;
    };
    for (const Server& server : servers_) {
      if (version(server) > static_cast<int64_t>(server.applied)) return false;
    }
    for (Server& server : servers_) {
      const int64_t v = version(server);
      place(server, server.versions.at(v));
      if (--server.readers[v] == 0) server.versions.erase(v);
    }
    const double loss = engine_.forward_backward_share(key.second, key.first, workers_);
    result_.losses.at(static_cast<size_t>(key.second)) += loss / static_cast<double>(workers_);
    if (key.second == 0) add_first();
    std::vector<bool> used(layout_.slots.size());
    gradients_[key] = take_gradients(layout_, used);
    return true;
  }

  void add_first() {
    for (const auto& [name, gradient] : whole_gradients(engine_, Keep::kYes)) {
      Tensor& sum = result_.gradients[name];
      sum = sum.defined() ? sum + gradient : gradient;
    }
  }

  const Plan& plan_;
  int64_t workers_, steps_ = 0;
  std::unique_ptr<Communicator> alone_;
  Engine engine_;
  FlatBucket layout_;
  std::vector<Server> servers_;
  std::map<Push, Tensor> gradients_;  // not applied everywhere yet
  std::map<Push, size_t> uses_;
  Trajectory result_;
};

}  // namespace

Plan single_rank(Plan plan) {
  const int64_t micro_batches = plan.num_micro_batches();
  plan.parallel.tensor = {};
  plan.parallel.layers.clear();
  plan.parallel.sequence = {};
  plan.parallel.pipeline = {};
  plan.parallel.data = {.size = 1};
  plan.parallel.expert = 1;
  plan.parallel.zero = 0;
  plan.memory.recompute = Recompute::kNone;
  plan.train.micro_batch = plan.train.batch / micro_batches;  // the same sums, one replica
  return plan;
}

Trajectory replay_pushes(const Plan& plan, const Registries& registries, const Dataset& data,
                         at::Device device, const std::vector<PushOrder>& orders) {
  return PushReplay(plan, registries, data, device, orders).run();
}

}  // namespace kuafu
