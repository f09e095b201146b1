// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "kuafu/engine/engine.h"

namespace kuafu {

/// How well a model foretells a text.
struct Perplexity {
  int64_t tokens = 0;   ///< that are foretold
  double nats = 0;      ///< the sum of their -log p
  int64_t windows = 0;  ///< that are done
  int64_t stopped = 0;  ///< why, where on_batch said so before all were; 0 = whole
  /// exp(nats / tokens); 1 where the model is always sure and right.
  double value() const;
};

/// Where windows of a text begin: at 0, stride, 2 stride, ..., up to the first that has its last token.
/// Each token but the first of the text is foretold once, by the first window that has it with a token
/// before it in the window; so with stride = sequence windows lie side by side, and the first token
/// of each is foretold by none (docs/perplexity.md).
std::vector<int64_t> window_starts(int64_t tokens, int64_t sequence, int64_t stride);

/// `count` windows from `starts[first]` on, as samples of a batch: what is behind the text, and windows
/// that are none, is token 0 with targets of -1.
Tokens window_batch(const std::vector<int64_t>& text, const std::vector<int64_t>& starts,
                    size_t first, int64_t count, int64_t sequence);

/// Of a whole text, train.batch windows at a time. `on_batch` is called on rank 0 behind each batch with
/// what is known and how many windows there are; where it returns another number than 0 the rest is
/// left. Collective; the same on all ranks.
/// @pre the text has 2 tokens or more, 1 <= stride <= model.sequence, model.sequence >= 2, and the
/// engine's plan is one of plan_of_generation()
Perplexity perplexity_of(
    Engine& engine, Communicator& world, const std::vector<int64_t>& text, int64_t stride,
    const std::function<int64_t(const Perplexity& so_far, int64_t windows)>& on_batch = {});

/// foretell_alike() of its forwards.
void foretell_windows(Engine& engine, const Registries& registries, int rank,
                      bool has_parameters_on_disk);

}  // namespace kuafu
