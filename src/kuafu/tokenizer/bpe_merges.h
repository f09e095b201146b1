// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "kuafu/tokenizer/flat_map.h"

namespace kuafu::tokenizer {

/// Which neighbours become one token, and which first.
class BpeMerges {
 public:
  /// Of a pair that is added twice the last rank counts.
  void add(int32_t left, int32_t right, uint32_t rank, int32_t merged) {
    pairs_[key_of(left, right)] = {rank, merged};
  }

  /// Merges all that can be: the lowest rank first, of equal ones the leftmost.
  void apply(std::vector<int32_t>& ids);

 private:
  struct Merge {
    uint32_t rank = 0;
    int32_t merged = 0;
  };
  /// A token of a word, between its neighbours.
  struct Symbol {
    int32_t id, before, behind;
  };
  struct Candidate {
    uint32_t rank;
    int32_t at, merged;
    bool operator>(const Candidate& other) const {
      return rank != other.rank ? rank > other.rank : at > other.at;
    }
  };
  static constexpr int32_t kNone = -1;

  static uint64_t key_of(int32_t left, int32_t right) {
    return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
  }
  void consider(int32_t at);
  void merge(const Candidate& candidate);

  FlatMap<Merge> pairs_;
  // Of the word at hand; kept for their memory.
  std::vector<Symbol> symbols_;
  std::vector<Candidate> heap_;
};

}  // namespace kuafu::tokenizer
