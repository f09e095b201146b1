// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>

#include "kuafu/engine/engine.h"

namespace kuafu {

/// Whole tensors by name, without padding.
using WholeTensors = std::map<std::string, Tensor>;

enum class Keep : uint8_t { kNo, kYes };

/// Every parameter of the model, gathered from the ranks that hold its shards. Each stage of a
/// pipeline sends to the others; what is tied counts once. Collective; kNo: only takes part.
WholeTensors whole_parameters(Engine& engine, Keep keep);
/// Every summed gradient, between forward_backward and update, but those of unused parameters.
WholeTensors whole_gradients(Engine& engine, Keep keep);

}  // namespace kuafu
