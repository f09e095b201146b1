// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>

#include "kuafu/memory/tier.h"

namespace kuafu {

/// Whether every replica has all of it, or its part of every bucket.
enum class Portion : uint8_t { kWhole, kPart };
/// "whole", "part".
std::string_view to_string(Portion portion);

using memory::Tier;

/// How much of a state a replica keeps between its uses, and where.
struct Residence {
  Portion portion = Portion::kWhole;
  Tier tier = Tier::kDevice;
  bool operator==(const Residence&) const = default;
};

/// That of each kind of state.
struct Residency {
  /// Of each slot of the optimizer's rule; master copies too, but that they stay above a disk.
  Residence slots;
  Residence gradients, parameters;
  bool operator==(const Residency&) const = default;
};

struct Plan;

/// That of a plan: of its stage of ZeRO (zero.cpp), or of servers, who hold what stage 1 does; on the
/// host where memory has tiers, slots, and gradients that are to, on a disk where it has one.
Residency residency_of(const Plan& plan);
/// Of a stage, 0 to kLastZeroStage; throws InternalError for another.
Residency residency_of_stage(int64_t stage);

}  // namespace kuafu
