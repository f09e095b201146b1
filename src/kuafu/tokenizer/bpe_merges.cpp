// SPDX-License-Identifier: Apache-2.0
#include "kuafu/tokenizer/bpe_merges.h"

#include <algorithm>
#include <functional>

namespace kuafu::tokenizer {

/// Makes the pair that begins at `at` a candidate, if it is one.
void BpeMerges::consider(int32_t at) {
  const Symbol& left = symbols_[static_cast<size_t>(at)];
  if (left.behind == kNone) return;
  const int32_t right = symbols_[static_cast<size_t>(left.behind)].id;
  const Merge* const merge = pairs_.find(key_of(left.id, right));
  if (merge == nullptr) return;
  heap_.push_back({merge->rank, at, merge->merged});
  std::push_heap(heap_.begin(), heap_.end(), std::greater<>());
}

/// A candidate whose symbols have changed since is passed over.
void BpeMerges::merge(const Candidate& candidate) {
  Symbol& left = symbols_[static_cast<size_t>(candidate.at)];
  if (left.id == kNone || left.behind == kNone) return;
  Symbol& right = symbols_[static_cast<size_t>(left.behind)];
  const Merge* const known = pairs_.find(key_of(left.id, right.id));
  if (known == nullptr || known->merged != candidate.merged) return;
  left.id = candidate.merged;
  left.behind = right.behind;
  right.id = kNone;
  if (left.behind != kNone) symbols_[static_cast<size_t>(left.behind)].before = candidate.at;
  if (left.before != kNone) consider(left.before);
  consider(candidate.at);
}

void BpeMerges::apply(std::vector<int32_t>& ids) {
  const auto count = static_cast<int32_t>(ids.size());
  symbols_.clear();
  heap_.clear();
  for (int32_t i = 0; i < count; ++i) {
    symbols_.push_back({ids[static_cast<size_t>(i)], i - 1, i + 1 < count ? i + 1 : kNone});
  }
  for (int32_t i = 0; i < count; ++i) consider(i);
  while (!heap_.empty()) {
    std::pop_heap(heap_.begin(), heap_.end(), std::greater<>());
    const Candidate best = heap_.back();
    heap_.pop_back();
    merge(best);
  }
  ids.clear();
  for (const Symbol& symbol : symbols_) {
    if (symbol.id != kNone) ids.push_back(symbol.id);
  }
}

}  // namespace kuafu::tokenizer
