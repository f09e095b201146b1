// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "kuafu/comm/communicator.h"
#include "kuafu/engine/proof/certificate.h"

namespace kuafu {

/// A certificate as it travels between processes, infinities included, and back.
std::string words_of(const Certificate& c);
Certificate certificate_from(const std::string& words);

/// Rank 0's certificate on every rank. Collective.
Certificate shared(const Certificate& mine, Communicator& world);

}  // namespace kuafu
