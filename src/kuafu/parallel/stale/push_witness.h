// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "kuafu/optim/optimizer.h"
#include "kuafu/parallel/stale/order.h"
#include "kuafu/states/bucket.h"

namespace kuafu {

/// Which pushes of a run are kept for its proof: all from a step of their worker on, and one more.
struct WantedPushes {
  int64_t from = 0;               ///< steps of every worker
  int64_t worker = -1, step = 0;  ///< of the one before; -1: none

  bool has(int64_t of, int64_t at) const { return at >= from || (of == worker && at == step); }
};

/// A push as its worker made it.
struct MadePush {
  int64_t worker = 0, step = 0;
  double norm = 0;  ///< as it was reported
  Tensor values,
      gradient;  ///< (elements of the model), flat: what it was computed with, and what it is
};

/// What a server holds of its part of the model.
struct ServerState {
  Tensor values;  ///< (part)
  OptimizerState optimizer;
};

/// The update that a server made of a push.
struct ServedUpdate {
  AppliedPush push;
  Tensor gradient;  ///< (part), as it came
  ServerState before, after;
};

/// The wanted pushes of a run.
struct SeenPushes {
  std::vector<MadePush> made;
  std::vector<std::vector<ServedUpdate>> updates;  ///< by server, in its order
};

/// Copies of wanted pushes, of one rank. No byte of them is booked or traced, and the seconds that
/// they take are counted, to be no part of a step's.
class PushWitness {
 public:
  explicit PushWitness(const WantedPushes& wanted) : wanted_(wanted) {}

  const WantedPushes& wanted() const { return wanted_; }
  /// The values are those of the layout's parameters.
  void see_push(MadePush push, const FlatBucket& layout);
  /// The two sides of an update. `values`: (part), the server's.
  void see_before(const AppliedPush& push, const Tensor& gradient, const Tensor& values,
                  const Optimizer& optimizer);
  void see_after(const Tensor& values, const Optimizer& optimizer);
  /// Since it was asked last.
  double take_seconds();

  const std::vector<MadePush>& made() const { return made_; }
  const std::vector<ServedUpdate>& updates() const { return updates_; }

 private:
  class Apart;
  WantedPushes wanted_;
  std::vector<MadePush> made_;
  std::vector<ServedUpdate> updates_;
  double seconds_ = 0;
};

}  // namespace kuafu
