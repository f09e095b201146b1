// SPDX-License-Identifier: Apache-2.0
#include "kuafu/comm/splitting.h"

#include <algorithm>
#include <numeric>
#include <tuple>

namespace kuafu {

SplitTable::SplitTable(const SplitRule& rule, int size)
    : keys(static_cast<size_t>(size)),
      group_of(static_cast<size_t>(size), -1),
      index_in(static_cast<size_t>(size), -1) {
  KUAFU_REQUIRE(rule != nullptr, "split needs a rule from ranks to colors and keys");
  const auto key = [this](int r) -> const SplitKey& { return keys[static_cast<size_t>(r)]; };
  for (int r = 0; r < size; ++r) keys[static_cast<size_t>(r)] = rule(r);
  std::vector<int> order(static_cast<size_t>(size));
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](int a, int b) {
    return std::tuple(key(a).color, key(a).key, a) < std::tuple(key(b).color, key(b).key, b);
  });
  int color = -1;
  for (const int r : order) {
    if (key(r).color < 0) continue;
    if (groups.empty() || key(r).color != color) groups.emplace_back();
    color = key(r).color;
    group_of[static_cast<size_t>(r)] = static_cast<int>(groups.size()) - 1;
    index_in[static_cast<size_t>(r)] = static_cast<int>(groups.back().size());
    groups.back().push_back(r);
  }
}

}  // namespace kuafu
