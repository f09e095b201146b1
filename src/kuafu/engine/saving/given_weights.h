// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kuafu/checkpoint/weights.h"
#include "kuafu/engine/engine.h"

namespace kuafu {

/// Gives a model that was just made other weights, in its own type, before the first step: each rank
/// reads its part of one tensor after the other; the optimizer begins anew. Throws ConfigError on all
/// ranks where one of them cannot read. Collective. @pre the tensors are those of the engine's model
void begin_with(const NamedWeights& weights, Engine& engine, Communicator& world);

}  // namespace kuafu
