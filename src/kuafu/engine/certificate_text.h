// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kuafu/comm/communicator.h"
#include "kuafu/engine/certificate.h"

namespace kuafu {

/// Rank 0's certificate on every rank. Collective.
Certificate shared(const Certificate& mine, Communicator& world);

}  // namespace kuafu
