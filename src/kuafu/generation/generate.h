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
enum class Ending : uint8_t { kTokens, kEndToken, kStop, kSequence, kAsked };

/// What a sequence of tokens goes on with.
struct Continuation {
  std::vector<int64_t> tokens = {};
  Ending ending = Ending::kTokens;
  double first_s = 0;  ///< from the beginning of its batch to its first token
};

/// Whether keys and values of positions that went forward are kept, or made again for each token.
/// kHost: on the host between their uses, which takes a plan with tiers.
enum class Cache : uint8_t { kWherePossible, kHost, kOff };

/// What is to be generated, the same on all ranks but for what is called on rank 0.
struct Generation {
  std::vector<std::vector<int64_t>> prompts = {};  ///< each of 1 to model.sequence - 1 tokens
  int64_t tokens = 0;                              ///< of each at most; 0 = up to model.sequence
  int64_t choices = 0;  ///< tokens from this one on are never chosen; 0 = all are
  Sampling sampling = {};
  Cache cache = Cache::kWherePossible;
  /// Called on rank 0 with each token of each prompt, as it comes: why the prompt ends with it; none:
  /// it goes on.
  std::function<std::optional<Ending>(size_t prompt, int64_t token)> on_token = {};
  /// Called on rank 0 once a prompt has ended.
  std::function<void(size_t prompt, const Continuation& done)> on_end = {};
  /// Asked on rank 0 after each forward: why all ends with it, a number of the caller's; 0: it goes on.
  std::function<int64_t()> why_stop = {};
};

/// What came of the prompts.
struct Generated {
  std::vector<Continuation> all = {};  ///< in their order
  int64_t cache_bytes = 0;             ///< of keys and values, of the rank that kept most; 0: none
  int64_t stopped = 0;  ///< what why_stop said; prompts that had not ended are kAsked

  int64_t num_tokens() const;
};

/// The plan as generation runs it: mixtures drop no token (their slots are enough for all) and choose
/// no expert by chance, so that a token depends on those before it alone; an optimizer that keeps
/// nothing. Throws ConfigError for a model that is known not to be causal, and for routers that look
/// ahead.
Plan plan_of_generation(Plan plan);

/// Continues all prompts, train.batch at a time. Rank 0 chooses and tells the others. Where the plan
/// allows no cache (Engine::why_no_cache()) each token is a forward of the whole sequence. Collective;
/// what is generated is returned on all ranks, times on rank 0.
/// @pre the engine's plan is one of plan_of_generation(), its model causal (causal.h)
Generated generate(Engine& engine, Communicator& world, const Generation& generation);

}  // namespace kuafu
