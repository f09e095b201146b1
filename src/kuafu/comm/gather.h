// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "kuafu/comm/communicator.h"

namespace kuafu {

/// Every rank's text on every rank, in rank order. Collective.
std::vector<std::string> gather_texts(Communicator& world, const std::string& mine);

}  // namespace kuafu
