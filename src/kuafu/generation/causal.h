// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kuafu/engine/engine.h"

namespace kuafu {

/// Throws ConfigError for a plug-in's model whose logits of a position change with the tokens behind it,
/// which no later token may do: what a plug-in says of itself nobody knows, so that it is tried, at sixteen positions of each sample of a batch. Does
/// nothing for the library's own kinds, which plans know. Collective; on every rank.
void require_causal(Engine& engine, Communicator& world);

}  // namespace kuafu
