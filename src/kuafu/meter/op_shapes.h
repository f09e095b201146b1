// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "kuafu/base/trace.h"

// Internal to meter/.
namespace kuafu {

/// Types and extents of an op's tensors as numbers; their text is made once. The step pushes these
/// tables out of the cache between two ops: a lookup reads two places of memory, where a map of
/// vectors read eight and took half of what a trace costs.
class OpShapes {
 public:
  /// Forgets the op at hand.
  void begin() { key_.clear(); }
  /// Of the op at hand: its next tensor.
  void add(const at::Tensor& t) {
    key_.push_back(-1 - static_cast<int64_t>(t.scalar_type()));
    const at::IntArrayRef sizes = t.sizes();
    key_.insert(key_.end(), sizes.begin(), sizes.end());
  }
  /// The number that `trace`, always the same one, has for them: "f32 8x16, i64 8".
  int32_t id(TraceRecorder& trace) {
    if (2 * (num_known_ + 1) > slots_.size()) grow();
    const uint64_t hash = hash_of_key();
    size_t at = hash & (slots_.size() - 1);
    while (slots_[at].size >= 0 && !is_key(slots_[at], hash)) at = (at + 1) & (slots_.size() - 1);
    if (slots_[at].size < 0) {
      slots_[at] = {hash, static_cast<int64_t>(keys_.size()), static_cast<int32_t>(key_.size()),
                    trace.shape_of(text_of_key())};
      keys_.insert(keys_.end(), key_.begin(), key_.end());
      ++num_known_;
    }
    return slots_[at].id;
  }

 private:
  struct Slot {
    uint64_t hash = 0;
    int64_t begin = 0;  ///< its key in keys_
    int32_t size = -1;  ///< of its key; -1: free
    int32_t id = 0;
  };
  uint64_t hash_of_key() const {
    uint64_t h = key_.size();
    for (const int64_t x : key_) {
      h = (h ^ static_cast<uint64_t>(x)) * 0x9e3779b97f4a7c15U;
      h ^= h >> 32;
    }
    return h;
  }
  bool is_key(const Slot& s, uint64_t hash) const {
    return s.hash == hash && s.size == static_cast<int32_t>(key_.size()) &&
           std::equal(key_.begin(), key_.end(), keys_.begin() + s.begin);
  }
  void grow();
  std::string text_of_key() const;

  std::vector<int64_t> key_, keys_;  ///< of the op at hand; all known ones behind each other
  std::vector<Slot> slots_;          ///< a power of two, at most half of them taken
  size_t num_known_ = 0;
};

}  // namespace kuafu
