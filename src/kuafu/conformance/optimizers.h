// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "kuafu/conformance/findings.h"
#include "kuafu/engine/registries.h"

namespace kuafu::conformance {

/// Where slots lie between the passes of a rule.
enum class SlotsOn : uint8_t { kHost, kDisk };

/// Five f32 steps of a GPT on one rank have the losses of plain memory, to the bit, with the slots
/// there and no more device memory than a step needs.
void check_optimizer_tiers(const Registries& registries, const std::string& name, SlotsOn tier,
                           Notes& notes);

/// Everything about one optimizer: its rule has the bits of the whole on pieces of it, where it is
/// elementwise, goes on from a state that was saved, and has the same bits with its slots on other
/// tiers; and a GPT trained by it under every variant of check_model on these rank counts is certified against its formula and simulated alike. One rank
/// first, up to the first rank count that fails. Throws ConfigError where no variant has one of them.
std::vector<Finding> check_optimizer(const Registries& registries, const std::string& name,
                                     const std::vector<int64_t>& sizes, const Tell& tell = {});

/// Every number of [optimizer] that the plan takes beside `base` at half of its default, 0.05 for 0.
Overrides other_numbers(const Registries& registries, const Overrides& base);

}  // namespace kuafu::conformance
