// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "kuafu/comm/communicator.h"
#include "kuafu/engine/proof/certificate.h"

namespace kuafu {

/// A certificate as it travels between processes, infinities included, and back.
std::string words_of(const Certificate& c);
Certificate certificate_from(const std::string& words);

/// Ends alike on all ranks what one of them refuses: throws a ConfigError of the first one's words,
/// with its rank where others take it (a plug-in that has not one answer for all). Collective.
void agree(const std::string& refused, Communicator& world);

/// Rank 0's certificate on every rank. Collective.
Certificate shared(const Certificate& mine, Communicator& world);

}  // namespace kuafu
