// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kuafu/parallel/pipeline/on_cores.h"
#include "kuafu/parallel/pipeline/timeline.h"

namespace kuafu {

/// What the actions of one rank's step take of a core: time of its thread alone, whoever else uses
/// the cores meanwhile. Calls come from the rank's thread.
class ActionClock : public pipeline::Timeline {
 public:
  void begin();
  /// One number an action since begin(), what came before it included, and one for what followed
  /// the last.
  pipeline::RowSeconds end();

  void note(int rank, const pipeline::Action& action, double start_s, double end_s) override;

 private:
  pipeline::RowSeconds seconds_;
  double mark_ = 0;
};

}  // namespace kuafu
