// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "kuafu/comm/communicator.h"

namespace kuafu {

/// A split rule evaluated for all ranks of a group.
struct SplitTable {
  std::vector<SplitKey> keys;            ///< by rank of the parent
  std::vector<std::vector<int>> groups;  ///< parent ranks of each group, in group order
  std::vector<int> group_of;             ///< by rank of the parent; -1 where left out
  std::vector<int> index_in;             ///< by rank of the parent: rank in its group

  SplitTable() = default;
  /// Groups stand in the order of their colors.
  SplitTable(const SplitRule& rule, int size);
};

}  // namespace kuafu
