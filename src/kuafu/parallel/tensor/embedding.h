// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kuafu/parallel/tensor/layers.h"

// What embedding() of layers.h moves, and how its table comes to the tokens.
namespace kuafu {

/// Elements this rank receives for embedding() of a table of global shape (V, H), rows padded, laid
/// out as `table_layout`: backward are the gradients of its rows, there is no input gradient.
/// @pre the mesh need not be connected.
Cost embedding_cost(const Mesh& mesh, const Shape& table, const Layout& table_layout,
                    const TokenGrid& grid);

/// Whether that table is gathered over its innermost axis before it is looked up in.
/// @pre the mesh need not be connected.
bool is_table_gathered(const Mesh& mesh, const Shape& table, const Layout& table_layout,
                       const TokenGrid& grid);

}  // namespace kuafu
