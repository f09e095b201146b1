// SPDX-License-Identifier: Apache-2.0
#include "kuafu/dataset/loader.h"

#include "kuafu/base/errors.h"

namespace kuafu {

Loader::Loader(const Dataset& dataset, const TrainPlan& train, Replica replica)
    : dataset_(dataset), batch_(train.batch), micro_batch_(train.micro_batch), replica_(replica) {
  KUAFU_REQUIRE(replica.count > 0 && replica.index >= 0 && replica.index < replica.count,
                "replica ", replica.index, " of ", replica.count,
                "; allowed: 0 to below the number of replicas");
  KUAFU_REQUIRE(batch_ > 0 && micro_batch_ > 0 && batch_ % (micro_batch_ * replica.count) == 0,
                "train.batch = ", batch_, " cannot be dealt to ", replica.count,
                " replicas in micro-batches of ", micro_batch_,
                "; allowed: multiples of their product");
}

int64_t Loader::first_sample(int64_t step, int64_t micro_batch) const {
  KUAFU_CHECK(step >= 0 && micro_batch >= 0 && micro_batch < num_micro_batches(), "step ", step,
              ", micro-batch ", micro_batch, " of ", num_micro_batches());
  return step * batch_ + (micro_batch * replica_.count + replica_.index) * micro_batch_;
}

Tokens Loader::train(int64_t step, int64_t micro_batch) const {
  return dataset_.train(first_sample(step, micro_batch), micro_batch_);
}

Tokens Loader::validation(int64_t index, int64_t micro_batch) const {
  return dataset_.validation(first_sample(index, micro_batch), micro_batch_);
}

}  // namespace kuafu
