// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "tests/support/plans.h"

// Plans whose replicas go on by themselves.
namespace kuafu::tests {

inline Overrides stale(int64_t workers, int64_t servers, int64_t staleness, Overrides more = {}) {
  const Overrides common = {{"parallel.data.size", text(workers)},
                            {"parallel.data.mode", "parameter_server"},
                            {"parallel.data.servers", text(servers)},
                            {"parallel.data.staleness", text(staleness)},
                            {"optimizer.clip", "0"},
                            {"train.batch", text(2 * workers)}};
  more.insert(more.begin(), common.begin(), common.end());
  return more;
}

/// Three workers, one server, at most two steps ahead.
inline const std::vector<int>& script() {
  static const std::vector<int> order = {0, 0, 1, 0, 1, 2, 2, 1, 2};
  return order;
}

}  // namespace kuafu::tests
