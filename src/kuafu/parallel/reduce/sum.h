// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kuafu/comm/communicator.h"
#include "kuafu/states/reduce.h"

// Sums of flat buffers over ranks. Internal to parallel/reduce.
namespace kuafu {

/// In which order the gradients of replicas are added: as the communicator does it, once a step; or
/// in rank order, every micro-batch, so that all stages agree to the bit.
enum class SumOrder : uint8_t { kAny, kRank };

/// The sum of every rank's flat (elements) in place.
PendingSum sum_everywhere(const Tensor& flat, Communicator& c, SumOrder order);

/// Part r of the sum of every rank's flat (n * part) in `out` (part) of rank r, which may be part r
/// of flat itself.
PendingSum sum_in_parts(const Tensor& out, const Tensor& flat, Communicator& c, SumOrder order);

}  // namespace kuafu
