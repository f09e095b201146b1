// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kuafu/memory/policy.h"
#include "kuafu/memory/samples.h"

namespace kuafu::memory {

/// A policy with its knobs, as the campaign plays it.
struct Contender {
  std::string label;
  std::string policy;
  Knobs knobs;
};
const std::vector<Contender>& contenders();

/// How a contender did on one sample.
struct Result {
  int64_t steps = 0;  ///< after which it repeats itself
  /// bytes / optimum of as many steps - 1, in thousandths, rounded up: 0 is none. kUnknown where that
  /// optimum was not proven, kFromNothing where it moves nothing and the policy does.
  int64_t regret = 0;
};
inline constexpr int64_t kUnknown = -1, kFromNothing = -2;

/// What was found of one sample.
struct Checked {
  bool is_exhaustive = false;        ///< the optimum was held to every state tried
  int64_t over_bound = 0;            ///< optimum / relaxation - 1 of one step, as a regret
  int64_t unproven = 0;              ///< optima that a limit left open
  std::vector<Result> results = {};  ///< by contender
  std::vector<std::string> wrong = {};
};

/// Steps up to which a policy is held to the optimum of as many; beyond, to the relaxation alone.
inline constexpr int64_t kMostSteps = 6;

/// Checks bound <= optimum <= every policy on one sample, that the optimum is played to the byte and,
/// of at most kMostExhaustive chunks, equals every state tried; on clean chunks of one size, that
/// Belady's mean is the bound.
Checked check_sample(uint64_t seed, uint64_t index);

}  // namespace kuafu::memory
