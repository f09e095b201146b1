// SPDX-License-Identifier: Apache-2.0
//
// Parameters in parts: a block's are gathered before it is used and freed after it.
//
//   blocks of a forward on replica r: W whole, r my part, w on its way; one step a line
//
//     0  1  2  3
//     W  w  r  r     acquire(0) gathers W0 and starts W1, which arrives while 0 computes
//     r  W  w  r     release(0) frees W0; acquire(1) waits for W1 and starts W2
//     r  r  W  w     ... and backward the other way round
//
// expect() tells the uses to come: the next one is gathered ahead.

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "kuafu/base/errors.h"
#include "kuafu/meter/allocator.h"
#include "kuafu/parallel/data/zero.h"

namespace kuafu {

void Zero::expect(std::vector<GroupSet> uses) {
  if (residency_.parameters == Held::kWhole) return;
  expected_ = std::move(uses);
  next_ = 0;
}

void Zero::acquire(const GroupSet& groups) {
  if (residency_.parameters == Held::kWhole) return;
  if (next_ < expected_.size() && expected_[next_] == groups) {
    ++next_;
  } else {
    expect({});
  }
  start_gathers(groups);
  for (const int g : groups) {
    ++num_users_[static_cast<size_t>(g)];
    for (ZeroShard& shard : shards_[static_cast<size_t>(g)]) shard.gathering.wait();
  }
  free_unused();  // what was kept or gathered ahead for a use that did not come
  if (options_.is_overlapped && next_ < expected_.size()) start_gathers(expected_[next_]);
}

void Zero::release(const GroupSet& groups) {
  if (residency_.parameters == Held::kWhole) return;
  for (const int g : groups) {
    KUAFU_CHECK(num_users_[static_cast<size_t>(g)] > 0, groups_[static_cast<size_t>(g)].name,
                " is released and was not acquired");
    --num_users_[static_cast<size_t>(g)];
  }
  free_unused();
}

void Zero::start_gathers(const GroupSet& groups) {
  const CategoryScope scope(Category::kCommunication);
  for (const int g : groups) {
    if (!gathered_.insert(g).second) continue;
    for (ZeroShard& shard : shards_[static_cast<size_t>(g)]) {
      if (!has_values_in_parts(shard)) continue;
      allocate_storage(shard.gathered, shard.layout.elements() * shard.gathered.element_size());
      shard.gathering = replicas(shard).all_gather(view(shard.gathered), view(shard.values));
    }
  }
}

void Zero::free_unused() {
  const bool has_next = next_ < expected_.size();
  std::erase_if(gathered_, [&](int g) {
    const bool comes_next =
        has_next && std::count(expected_[next_].begin(), expected_[next_].end(), g) > 0;
    if (num_users_[static_cast<size_t>(g)] > 0 || comes_next) return false;
    for (ZeroShard& shard : shards_[static_cast<size_t>(g)]) {
      if (!has_values_in_parts(shard)) continue;
      shard.gathering.wait();
      free_storage(shard.gathered);
    }
    return true;
  });
}

Tensor Zero::gather(const ZeroShard& shard, const FlatSlot& slot, const Tensor& part) const {
  const at::NoGradGuard no_grad;
  const CategoryScope scope(Category::kCommunication);
  const Tensor whole = at::empty({slot.extent}, part.options());
  for (int64_t r = 0; r < shard.layout.parts; ++r) {
    const Overlap theirs = overlap(slot, r * shard.layout.part, shard.layout.part);
    if (theirs.length == 0) continue;
    const Tensor piece = whole.narrow(0, theirs.begin - slot.offset, theirs.length);
    if (r * shard.layout.part == shard.first) {
      piece.copy_(part.narrow(0, theirs.begin - shard.first, theirs.length));
    }
    if (shard.layout.parts > 1) {
      replicas(shard).broadcast(view(piece), static_cast<int>(r)).wait();
    }
  }
  return whole.view(slot.param->value.sizes());
}

Tensor Zero::value(const Param& p) {
  if (residency_.parameters == Held::kWhole) return DataParallel::value(p);
  const Place at = places_.at(&p);
  const ZeroShard& shard = shards_[at.group][at.shard];
  return gather(shard, shard.layout.slots[at.slot], my_values(shard));
}

Tensor Zero::gradient(const Param& p) {
  const Place at = places_.at(&p);
  const ZeroShard& shard = shards_[at.group][at.shard];
  if (!shard.used[at.slot]) return {};
  return gather(shard, shard.layout.slots[at.slot], shard.sum);
}

}  // namespace kuafu
