// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "tests/standin/clique.h"

namespace kuafu::standin {

size_t bytes_of(ncclDataType_t type);

/// The memory that every rank's call leaves, in rank order. bf16 and f16 are rounded after each
/// rank, as NCCL does.
void run(const std::vector<CollectiveCall>& calls);

}  // namespace kuafu::standin
