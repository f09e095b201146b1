// SPDX-License-Identifier: Apache-2.0
#include "kuafu/engine/proof/push_replay.h"

#include <algorithm>
#include <utility>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "kuafu/engine/proof/certificate_compare.h"

namespace kuafu {
namespace {

using Push = std::pair<int64_t, int64_t>;  // worker, step

/// One server's part of the model as its order makes it: by parameter, flat.
struct Server {
  const PushOrder* order;
  FlatPart part;
  oracle::Tensors weights;  // newest
  oracle::State state;
  size_t applied = 0;                           // its version
  std::map<Push, int64_t> read;                 // version a push was computed with
  std::map<int64_t, int64_t> readers;           // of a version, still to come
  std::map<int64_t, oracle::Tensors> versions;  // that somebody will read
};

class PushReplayer {
 public:
  PushReplayer(const PushReplay& told, CertificateReference& reference)
      : told_(told), reference_(reference), workers_(told.plan.parallel.data.size) {
    const bool is_half = told.type != at::kDouble && told.type != at::kFloat;
    const at::ScalarType kept = is_half ? at::kFloat : told.type;
    layers_ = reference.weights();
    for (auto& [name, w] : reference.initial_weights()) {
      shapes_[name] = w.sizes().vec();
      initial_[name] = w.to(scalar_type(told.plan.model.dtype)).to(kept).flatten();
    }
    const auto count = static_cast<int64_t>(told.orders.size());
    for (int64_t s = 0; s < count; ++s) {
      Server& server = servers_.emplace_back();
      server.order = &told.orders[static_cast<size_t>(s)];
      server.part = told.layout.part(s);
      server.weights = pieces(initial_, server.part);
      for (const AppliedPush& push : *server.order) {
        server.read[{push.worker, push.step}] = push.version;
        ++server.readers[push.version];
      }
      keep(server);
    }
    result_.losses.assign(static_cast<size_t>(workers_),
                          std::vector<double>(static_cast<size_t>(told.steps)));
  }

  ReplayedPushes run() {
    const auto all = static_cast<int64_t>(servers_[0].order->size()) / workers_;
    KUAFU_CHECK(told_.steps <= all, "losses of ", told_.steps, " steps of ", all);
    while (told_.steps < all ? num_losses_ < workers_ * told_.steps : !is_done()) {
      bool has_moved = false;
      for (Server& server : servers_) {
        while (server.applied < server.order->size() && advance(server)) has_moved = true;
      }
      KUAFU_CHECK(has_moved, "orders of pushes that wait for each other");
    }
    std::vector<const oracle::Tensors*> newest;
    for (const Server& server : servers_) newest.push_back(&server.weights);
    result_.weights = joined(newest);
    return std::move(result_);
  }

 private:
  bool is_done() const {
    return std::all_of(servers_.begin(), servers_.end(),
                       [](const Server& s) { return s.applied == s.order->size(); });
  }

  /// What of flat tensors lies in a part; shares their storage.
  oracle::Tensors pieces(const oracle::Tensors& flat, const FlatPart& part) const {
    oracle::Tensors out;
    for (const FlatSlot& slot : told_.layout.slots) {
      const FlatPart piece = overlap(part, slot);
      if (piece.size() == 0) continue;
      out[slot.param->name] =
          flat.at(slot.param->name).narrow(0, piece.begin - slot.offset, piece.size());
    }
    return out;
  }

  /// Whole tensors of the servers' pieces.
  oracle::Tensors joined(const std::vector<const oracle::Tensors*>& parts) const {
    oracle::Tensors out;
    for (const auto& [name, shape] : shapes_) {
      std::vector<Tensor> mine;
      for (const oracle::Tensors* part : parts) {
        if (const auto found = part->find(name); found != part->end()) {
          mine.push_back(found->second);
        }
      }
      out[name] = at::cat(mine).view(shape);
    }
    return out;
  }

  /// Keeps the newest version while somebody will read it. Updates make new tensors.
  static void keep(Server& server) {
    const auto version = static_cast<int64_t>(server.applied);
    if (server.readers.count(version) > 0) server.versions[version] = server.weights;
  }

  /// Applies a server's next push, if what its worker had read is known by now.
  bool advance(Server& server) {
    const AppliedPush& push = (*server.order)[server.applied];
    const Push key{push.worker, push.step};
    if (gradients_.count(key) == 0 && !compute(key)) return false;
    const double lr = oracle::learning_rate(told_.plan.optimizer, push.step,
                                            told_.plan.schedule_steps(), told_.plan.train.batch);
    oracle::update(told_.plan.optimizer, lr, 0, pieces(gradients_.at(key), server.part),
                   server.weights, server.state, layers_, nullptr, told_.rules);
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
    std::vector<const oracle::Tensors*> read;
    for (const Server& server : servers_) read.push_back(&server.versions.at(version(server)));
    const oracle::Gradients g =
        reference_.share(key.second, {key.first, workers_}, in_type(joined(read), told_.type));
    for (Server& server : servers_) {
      const int64_t v = version(server);
      if (--server.readers[v] == 0) server.versions.erase(v);
    }
    if (key.second < told_.steps) {
      result_.losses[static_cast<size_t>(key.first)][static_cast<size_t>(key.second)] =
          g.loss * static_cast<double>(workers_);
      ++num_losses_;
    }
    for (const auto& [name, t] : g.gradients) gradients_[key][name] = t.flatten();
    return true;
  }

  const PushReplay& told_;
  CertificateReference& reference_;
  int64_t workers_, num_losses_ = 0;
  std::map<std::string, std::vector<int64_t>> shapes_;
  oracle::Weights layers_;
  oracle::Tensors initial_;  // flat
  std::vector<Server> servers_;
  std::map<Push, oracle::Tensors> gradients_;  // flat; not applied everywhere yet
  std::map<Push, size_t> uses_;
  ReplayedPushes result_;
};

}  // namespace

ReplayedPushes replay_pushes(const PushReplay& replay, CertificateReference& reference) {
  const at::NoGradGuard no_grad;
  return PushReplayer(replay, reference).run();
}

}  // namespace kuafu
