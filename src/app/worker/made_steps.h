// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <mutex>

#include "kuafu/engine/run.h"
#include "kuafu/record/json.h"

namespace kuafu {

/// The steps that one rank has made, kept while it goes on: where the run ends by an exception or in
/// the middle of a step, they are in its document. Threads may share it.
class MadeSteps {
 public:
  /// Takes what is new of a rank's result.
  void take(const RankResult& so_far);
  /// Adds loss, step times of this rank, loss scale and validation; nothing where no step was made.
  void add_to(Json& document, const Plan& plan) const;

 private:
  mutable std::mutex mutex_;
  RankResult made_;
};

}  // namespace kuafu
