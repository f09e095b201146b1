// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>

#include "kuafu/model/context.h"

namespace kuafu {

/// What block `index` of `model` hands on, held to what context.h says of it: one loss of one
/// element of the last block, one tensor or more of any other, each of floating-point numbers.
/// Throws Error, which names the block, where it is otherwise or where an op in it refuses what it
/// is given: a model may be a plug-in's.
Flow call_block(const Model& model, size_t index, const Flow& in, const Side& side);

/// Throws Error, which names the block, where `out`, what it handed on under recording, has a tensor
/// that no gradient can pass.
void check_recorded(const Model& model, size_t index, const Flow& out);

/// f(), work of block `index`: errors of ops in it, what a plug-in's code throws and what it refuses
/// (ConfigError) name the block and `part` of it (", backward"), and what of it is a plug-in's.
void run_of_block(const Model& model, size_t index, const char* part,
                  const std::function<void()>& f);

}  // namespace kuafu
