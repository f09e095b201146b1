// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <vector>

#include "kuafu/dataset/dataset.h"
#include "kuafu/model/context.h"

namespace kuafu {

/// The samples of a step as sides, micro-batch by micro-batch: read when a stage first asks, kept
/// until every stage of the rank is done with them.
///
///   batch = 8, 2 replicas, micro_batch = 2, step t (samples counted from 8 t):
///                    micro-batch 0    micro-batch 1
///     replica 0          0 1              2 3
///     replica 1          4 5              6 7
///
/// A step takes the same samples whatever the number of replicas and micro-batches, and depends on
/// nothing but its number: a resumed run goes on with the next step.
class MicroBatches {
 public:
  /// `order`: positions of a sharded sequence, may be null. @pre plan is resolved; plan, dataset
  /// and order outlive this.
  MicroBatches(const Plan& plan, const Dataset& dataset, const std::vector<int64_t>* order,
               int64_t replica, at::Device device)
      : plan_(plan), dataset_(dataset), order_(order), replica_(replica), device_(device) {}

  /// What is asked for from now on: the training samples of a step, or a batch of validation.
  void use_step(int64_t step);
  void use_validation(int64_t step, int64_t batch);
  /// The inputs of a batch that is given, for its logits. @pre they outlive their use
  void use_given(const Tokens& batch, Inference& inference);
  /// A batch that is given, for the sum of its losses. @pre it outlives its use
  void use_given(const Tokens& batch);
  /// Stages of this rank that ask for a micro-batch.
  void set_users(int users) { users_ = users; }

  const Side& side(int micro_batch);
  /// One stage needs it no more.
  void release(int micro_batch);

 private:
  struct Entry {
    Side side;
    int users = 0;  ///< that still need it
  };
  Side read(int64_t micro_batch) const;
  Side read_given(int64_t first) const;
  Side side_of(const Tokens& tokens, int64_t first, int64_t global_samples) const;

  const Plan& plan_;
  const Dataset& dataset_;
  const std::vector<int64_t>* order_;
  int64_t replica_;
  at::Device device_;
  int64_t step_ = 0;
  int64_t validation_batch_ = -1;  ///< -1 = training
  const Tokens* given_ = nullptr;  ///< null = of the dataset
  Inference* inference_ = nullptr;
  int users_ = 1;
  std::map<int, Entry> sides_;
};

/// The tensors of a side, per-token fields in the order given; scales and places are the caller's.
Side make_side(const Plan& plan, const Tokens& tokens, const std::vector<int64_t>* order,
               at::Device device);

}  // namespace kuafu
