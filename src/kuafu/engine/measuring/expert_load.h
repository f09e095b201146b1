// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace kuafu {

/// What a router did, over all ranks.
struct ExpertCounts {
  std::vector<int64_t> tokens;    ///< rows that each expert took
  std::vector<int64_t> choices;   ///< choices that named it, dropped ones too
  int64_t dropped = 0, made = 0;  ///< choices without a slot, choices in all; where experts
                                  ///< choose: tokens that none chose, tokens in all
  void add(const ExpertCounts& other);
  bool operator==(const ExpertCounts&) const = default;
};

/// What the router of one mixture block did in the training steps, and in each.
struct ExpertLoad : ExpertCounts {
  std::string block;
  std::vector<ExpertCounts> steps;
  bool operator==(const ExpertLoad&) const = default;
};

}  // namespace kuafu
