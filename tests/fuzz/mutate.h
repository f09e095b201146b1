// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace kuafu::fuzz {

/// Input `number` of a campaign: one of the valid inputs, or two spliced, after 1 to 4 random
/// changes. The same arguments make the same bytes, so that every input can be made again by its
/// number. @pre valid is not empty
std::string mutated(const std::vector<std::string>& valid, uint64_t seed, uint64_t number);

}  // namespace kuafu::fuzz
