// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace kuafu {

/// Whether every replica has all of it, or its part of every bucket.
enum class Held : uint8_t { kWhole, kPart };

/// What a replica keeps of each kind of state between its uses.
struct Residency {
  Held slots = Held::kWhole;  ///< of the optimizer's rule, master copies too
  Held gradients = Held::kWhole, parameters = Held::kWhole;
  bool operator==(const Residency&) const = default;
};

/// That of a stage of ZeRO, 0 to 3 (zero.cpp); throws InternalError for another.
Residency residency_of(int64_t stage);

}  // namespace kuafu
