// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace kuafu::tokenizer {

/// A hash table from 64 bits to a small value, without removal: merges and tries are read a hundred
/// million times and built once.
template <class Value>
class FlatMap {
 public:
  explicit FlatMap(size_t expected = 0) {
    size_t slots = 16;
    while (slots < 2 * expected) slots *= 2;
    slots_.resize(slots);
  }

  /// The value of `key`, which is made where there is none.
  Value& operator[](uint64_t key) {
    if (2 * (size_ + 1) > slots_.size()) grow();
    Slot& slot = slots_[index_of(key)];
    if (!slot.is_used) {
      slot = {key, Value{}, true};
      ++size_;
    }
    return slot.value;
  }

  /// None: nullptr.
  const Value* find(uint64_t key) const {
    const Slot& slot = slots_[index_of(key)];
    return slot.is_used ? &slot.value : nullptr;
  }

 private:
  struct Slot {
    uint64_t key = 0;
    Value value = {};
    bool is_used = false;
  };

  /// Where `key` is or would be.
  size_t index_of(uint64_t key) const {
    constexpr uint64_t kPrime = 0x9E3779B97F4A7C15;
    const size_t mask = slots_.size() - 1;
    const uint64_t mixed = (key ^ key >> 29) * kPrime;
    size_t i = static_cast<size_t>(mixed >> 32) & mask;
    while (slots_[i].is_used && slots_[i].key != key) i = (i + 1) & mask;
    return i;
  }

  void grow() {
    std::vector<Slot> old(2 * slots_.size());
    old.swap(slots_);
    for (const Slot& slot : old) {
      if (slot.is_used) slots_[index_of(slot.key)] = slot;
    }
  }

  std::vector<Slot> slots_;
  size_t size_ = 0;
};

}  // namespace kuafu::tokenizer
