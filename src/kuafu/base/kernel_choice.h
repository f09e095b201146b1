// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>

namespace kuafu {

/// What own ops run on a CPU: the loops of src/kuafu/kernels, or the twin of each that is made of
/// ATen's calls alone (what a GPU runs too). Twins are slower, need more scratch memory and give
/// other last bits; they are there to tell what a number owes to the loops.
enum class KernelChoice : uint8_t { kOwn, kAten };

/// KUAFU_KERNELS of the environment, "own" by default. Throws ConfigError for another word.
KernelChoice kernel_choice();

std::string_view to_string(KernelChoice choice);

}  // namespace kuafu
