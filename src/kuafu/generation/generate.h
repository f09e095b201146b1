// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "kuafu/engine/engine.h"
#include "kuafu/generation/sampling.h"

namespace kuafu {

/// Why a continuation is not longer.
enum class Ending : uint8_t { kTokens, kEndToken, kStop, kSequence };

/// What a sequence of tokens goes on with.
struct Continuation {
  std::vector<int64_t> tokens = {};
  Ending ending = Ending::kTokens;
  double first_s = 0;  ///< from the beginning of its batch to its first token
};

/// What is to be generated, the same on all ranks but for `on_token`.
struct Generation {
  std::vector<std::vector<int64_t>> prompts = {};  ///< each of 1 to model.sequence - 1 tokens
  int64_t tokens = 0;                              ///< of each at most; 0 = up to model.sequence
  int64_t choices = 0;  ///< tokens from this one on are never chosen; 0 = all are
  Sampling sampling = {};
  /// Called on rank 0 with each token of each prompt, as it comes: why the prompt ends with it; none:
  /// it goes on.
  std::function<std::optional<Ending>(size_t prompt, int64_t token)> on_token = {};
  /// Called on rank 0 once a prompt has ended.
  std::function<void(size_t prompt, const Continuation& done)> on_end = {};
};

/// The plan as generation runs it: mixtures drop no token (their slots are enough for all) and choose
/// no expert by chance, so that a token depends on those before it alone; an optimizer that keeps
/// nothing. Throws ConfigError for a model that is not causal, and for routers that look ahead.
Plan plan_of_generation(Plan plan);

/// Continues all prompts, train.batch at a time. Rank 0 chooses and tells the others. Collective;
/// what is generated is returned on all ranks, times on rank 0.
/// @pre the engine's plan is one of plan_of_generation()
std::vector<Continuation> generate(Engine& engine, Communicator& world,
                                   const Generation& generation);

}  // namespace kuafu
