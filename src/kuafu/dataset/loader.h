// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "kuafu/dataset/dataset.h"

namespace kuafu {

/// Which data-parallel replica asks: `index` of `count`.
struct Replica {
  int64_t index = 0;
  int64_t count = 1;
};

/// Deals the samples of a step to micro-batches and data-parallel replicas.
///
///   batch = 8, 2 replicas, micro_batch = 2, step t (samples counted from 8 t):
///                    micro-batch 0    micro-batch 1
///     replica 0          0 1              4 5
///     replica 1          2 3              6 7
///
/// A step takes the same samples whatever the number of replicas and micro-batches, and depends on
/// nothing but its number: a resumed run continues with the next step.
class Loader {
 public:
  /// @pre train is resolved: batch = micro-batches x replica.count x micro_batch; the dataset
  /// outlives the loader. Throws ConfigError where they do not divide.
  Loader(const Dataset& dataset, const TrainPlan& train, Replica replica);

  int64_t num_micro_batches() const { return batch_ / (replica_.count * micro_batch_); }

  /// Position in the training stream of the replica's first sample of a micro-batch.
  int64_t first_sample(int64_t step, int64_t micro_batch) const;

  /// The replica's samples of a micro-batch, (micro_batch, sequence).
  /// @pre 0 <= micro_batch < num_micro_batches().
  Tokens train(int64_t step, int64_t micro_batch) const;

  /// The replica's samples of a micro-batch of the validation batch `index`, dealt in the same way.
  Tokens validation(int64_t index, int64_t micro_batch) const;

 private:
  const Dataset& dataset_;
  int64_t batch_;
  int64_t micro_batch_;
  Replica replica_;
};

}  // namespace kuafu
