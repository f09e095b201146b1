// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <vector>

#include "kuafu/optim/optimizer.h"
#include "kuafu/parallel/stale/order.h"
#include "kuafu/parallel/stale/push_witness.h"
#include "kuafu/states/store.h"

namespace kuafu {

struct StaleOptions {
  const Plan& plan;
  /// Workers in the order in which every server applies their pushes, until it ends; then, and by
  /// default, as they arrive. Makes a run repeatable. Where all settle in between, the pushes before
  /// that come first in it.
  std::vector<int> script = {};
  const OptimizerRules& rules = builtin_optimizers();
};

/// Every parameter once, end to end, in the parts of so many servers. @pre one type and one kind of
/// replicas
FlatBucket whole_model(const std::vector<Param*>& params, const Mesh& mesh, int64_t servers);

class StaleServer;
struct Note;

/// A replica that goes on by itself: a worker of parameter servers with bounded staleness, and one
/// of them, maybe. Nothing is collective over "data" until all settle().
class StaleReplica {
 public:
  /// @pre replicas of one rank; gradients are not clipped; mesh, plan and rules outlive it
  /// Throws ConfigError for a script that no workers within the bound can follow.
  StaleReplica(const Mesh& mesh, StaleOptions options);
  ~StaleReplica();

  /// A store of this replica alone, which sums nothing and updates nothing.
  std::unique_ptr<Store> make_store(const ParamFactory& params) const;
  /// What the servers hold, once. @pre the parameters outlive this
  void attach(const std::vector<Param*>& params);
  /// What came in while my worker computed, where I serve: to be called now and then. Never blocks.
  void serve();
  /// After a step: pushes every .grad, clears `ready`, pieces that hold the same, and waits for the
  /// values of my next step. Their norm, as if my samples were the batch. `loss`: of my samples.
  /// Throws ConfigError where a parameter has none.
  double push(std::vector<ParamShard>& ready, double loss);
  /// Waits until all replicas have made as many steps, and hold the newest values. Collective.
  void settle();
  /// After a step: whether all replicas meet now, having settled. They do where it `is_due`, on all of
  /// them, and a step or two of the fastest after any one of them `wants` to.
  bool meets(bool wants, bool is_due);
  /// After how many steps they have settled so far.
  const std::vector<int64_t>& met() const { return met_; }
  /// On rank 0: means over the replicas of the losses that they pushed, of the steps that all have
  /// made since this was asked last. On others nothing.
  std::vector<double> take_means();

  /// What a checkpoint holds: what I serve, if I do. Collective.
  std::vector<ParamShard> shards();
  /// Of what I serve; null where I do not.
  Optimizer* optimizer();
  /// Goes on from shards and optimizers that were loaded. Collective.
  void go_on_from(int64_t steps);

  /// From now on copies of these pushes are kept, on whatever rank makes or applies them.
  void witness(const WantedPushes& wanted);
  /// Seconds that keeping them took since this was asked last: no part of a step.
  double take_seconds_apart() { return witness_ ? witness_->take_seconds() : 0; }
  /// All of them that were made so far, in f64, on rank 0; nothing on others. Collective.
  SeenPushes seen();

  /// What each server has applied so far. Collective, as what follows.
  std::vector<PushOrder> pushes();
  /// The sum over replicas of what each is about to push.
  Tensor gradient(const Param& p) const;
  /// Means over the replicas, of one number a step each.
  std::vector<double> means(std::vector<double> own);

 private:
  template <class Done>
  void serve_until(const Done& is_done);
  /// Room for all values, and receives of those that other servers will send.
  Tensor receive_values(int tag, std::vector<Work>& works) const;
  void tell_servers(Note& note, std::vector<Work>& works) const;
  /// All replicas get what the servers hold, once `wait` has returned.
  template <class F>
  void take_newest(const F& wait);
  // seen(): a message of `size` numbers on rank 0 from another; undefined elsewhere.
  Tensor on_first(const Tensor& mine, int64_t size, int from) const;
  ServerState empty_state(int64_t server) const;
  void gather_made(int from, SeenPushes& all) const;
  void gather_updates(int server, SeenPushes& all) const;

  const Mesh& mesh_;
  const Mesh alone_{{}, 0};
  StaleOptions options_;
  Communicator& group_;
  const int64_t servers_;
  FlatBucket layout_;
  std::unique_ptr<StaleServer> server_;   // null on a replica that does not serve
  std::unique_ptr<PushWitness> witness_;  // null where nothing is kept
  int64_t begun_ = 0, pushed_ = 0;        // steps, of a checkpoint and in all
  bool is_settled_ = true;
  bool wants_to_meet_ = false;
  int64_t meets_at_ = -1;  // as server 0 says
  std::vector<int64_t> met_;
};

}  // namespace kuafu
