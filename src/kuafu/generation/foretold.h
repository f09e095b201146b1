// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kuafu/generation/fit.h"

namespace kuafu {

/// What generating would take on the plan's [cluster]: times by the prices of simulate/replay.h, bytes
/// that move exact, peaks an upper bound.
struct ForetoldGeneration {
  double seconds = 0;       ///< of all forwards
  double prompts_s = 0;     ///< the forward of the prompts
  int64_t forwards = 0;     ///< of all tokens: the first, and those of one token
  int64_t cache_bytes = 0;  ///< of keys and values, of the rank that keeps most
  /// By rank, of all forwards; empty without tiers: parameters, keys and values that come to the device,
  /// new keys and values that go to the host;
  /// parameters that are read from a disk, empty where none lie there.
  std::vector<int64_t> to_device, cache_to_device, cache_to_host, from_disk;
  std::string why_no_cache;              ///< as Engine::why_no_cache()
  std::vector<int64_t> peak, host_peak;  ///< bytes by rank; the second is empty without tiers

  /// Of a forward of one token of each sample behind the first, on average.
  double token_s() const {
    return forwards > 1 ? (seconds - prompts_s) / static_cast<double>(forwards - 1) : 0;
  }
};

/// Of one batch of the plan's train.batch prompts of `size.longest` tokens, from the forwards themselves
/// on meta tensors: no weight is read, no token chosen. Throws OutOfMemory as require_fits() does.
/// @pre as require_fits(); size.tokens is not 0
ForetoldGeneration foretell_generation(const Plan& plan, const Registries& registries,
                                       const BatchSize& size);

}  // namespace kuafu
