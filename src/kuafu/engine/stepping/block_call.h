// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kuafu/model/context.h"

namespace kuafu {

/// What block `index` of `model` hands on, held to what context.h says of it: one loss of one
/// element of the last block, one tensor or more of any other, each with elements behind it. Throws
/// Error, which names the block, where it is otherwise or where an op in it refuses what it is
/// given: a model may be a plug-in's.
Flow call_block(const Model& model, size_t index, const Flow& in, const Side& side);

}  // namespace kuafu
