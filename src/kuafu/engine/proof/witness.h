// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <optional>
#include <vector>

#include "kuafu/engine/engine.h"

namespace kuafu {

/// Where a rank stood before a step, and what came of it: enough to make the step again.
struct Snapshot {
  int64_t step = 0;  ///< steps done before it
  Tensors values;    ///< copies, in the order of Engine::shards()
  OptimizerState optimizer;
  LossScale scale;

  /// Updates made beside one a step that was not skipped.
  int64_t more_updates() const { return optimizer.num_steps - (step - scale.skipped); }
};

/// Takes a copy of where a rank stands. Books nothing, calls nothing on a wire.
Snapshot snapshot_of(Engine& engine);
/// Makes an engine of the same plan, which has not stepped, stand there. Collective.
void go_back_to(const Snapshot& snapshot, Engine& engine);

/// What the certificate needs to know of the timed steps of a run, kept beside them: no byte of it
/// is booked and nothing of it is timed.
///
///   steps          0 1 2 3 4 5 6 7 8 9
///   copies before  x           x     x     the first, one drawn by the seed, the last
///   hashes after   x x x   x     x     of the rank's state: steps that are certified
///   reports        x x x x x x x x x x
class Witness {
 public:
  /// Steps first .. end - 1 will be made. `is_full`: copies of a whole state may be kept.
  enum class Depth : uint8_t { kFull, kReportsOnly };
  Witness(const Plan& plan, int64_t first, Depth depth);

  void before_step(Engine& engine);
  /// The next step has no finite loss or gradient: where it stood before that, unless that is kept, or
  /// made again, already.
  void at_divergence(Engine& engine);
  void after_step(Engine& engine, const StepReport& report);

  int64_t first() const { return first_; }
  const std::vector<StepReport>& reports() const { return reports_; }
  /// In the order of their steps.
  const std::vector<Snapshot>& snapshots() const { return snapshots_; }
  /// hash_of the rank after a step, where it was taken.
  std::optional<uint64_t> hash_after(int64_t step) const;

 private:
  int64_t first_;
  std::vector<int64_t> wanted_;
  std::vector<StepReport> reports_;
  std::vector<Snapshot> snapshots_;
  std::map<int64_t, uint64_t> hashes_;  // by step
};

}  // namespace kuafu
