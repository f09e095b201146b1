// SPDX-License-Identifier: Apache-2.0
#include "kuafu/comm/ledger.h"

#include <algorithm>
#include <iterator>

namespace kuafu {

std::string_view to_string(Verb v) {
  static constexpr std::array<std::string_view, kNumVerbs> names = {
      "broadcast",  "reduce", "all_reduce", "all_gather", "reduce_scatter",
      "all_to_all", "send",   "recv",       "send_recv",  "barrier"};
  return names[static_cast<size_t>(v)];
}

void RankSet::insert(int rank) {
  const auto at = std::lower_bound(ranks_.begin(), ranks_.end(), rank);
  if (at == ranks_.end() || *at != rank) ranks_.insert(at, rank);
}

void RankSet::insert_others(const std::vector<int>& members, int except) {
  std::vector<int> others;
  others.reserve(members.size());
  std::copy_if(members.begin(), members.end(), std::back_inserter(others),
               [except](int rank) { return rank != except; });
  std::sort(others.begin(), others.end());
  if (ranks_.empty()) {
    ranks_ = std::move(others);
    return;
  }
  std::vector<int> merged;
  merged.reserve(ranks_.size() + others.size());
  std::set_union(ranks_.begin(), ranks_.end(), others.begin(), others.end(),
                 std::back_inserter(merged));
  ranks_ = std::move(merged);
}

bool RankSet::contains(int rank) const {
  return std::binary_search(ranks_.begin(), ranks_.end(), rank);
}

void Ledger::clear() {
  for (auto& [label, entry] : axes_) entry = AxisLedger{.counting = entry.counting};
  ++generation_;
}

}  // namespace kuafu
