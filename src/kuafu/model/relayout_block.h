// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kuafu/model/context.h"

namespace kuafu {

/// Appends a block without parameters that brings the flow from the outer layout of `from` to that
/// of `to` by the cheapest exchange; nothing where they are the same. What a model calls between
/// layers that may have different schemes. @pre both contexts outlive the model
void append_relayout(Model& model, const Context& from, const Context& to);

}  // namespace kuafu
