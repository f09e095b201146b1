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

#include "kuafu/states/store.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "kuafu/base/errors.h"
#include "kuafu/meter/allocator.h"

namespace kuafu {

void Store::adopt_part(Bucket& b) {
  const at::NoGradGuard no_grad;
  const Part all = b.layout.mine();
  {
    const CategoryScope scope(Category::kParameter);
    b.values = at::zeros({all.size()}, b.layout.options());
  }
  const CategoryScope scope(Category::kCommunication);
  b.gathered = at::empty({b.layout.elements()}, b.layout.options());
  for (const FlatSlot& slot : b.layout.slots) {
    const Part mine = overlap(all, slot);
    if (mine.size() > 0) {
      const Tensor from = initial_value(*slot.param).view(-1);
      b.values.narrow(0, mine.begin - all.begin, mine.size())
          .copy_(from.narrow(0, mine.begin - slot.offset, mine.size()));
    }
    slot.param->value.set_data(in_shape(slot, b.gathered));
  }
  free_storage(b.gathered);  // its views stay
}

void Store::expect(std::vector<GroupSet> uses) {
  if (options_.residency.parameters.portion == Portion::kWhole) return;
  expected_ = std::move(uses);
  next_ = 0;
}

void Store::acquire(const GroupSet& groups) {
  if (options_.residency.parameters.portion == Portion::kWhole) return;
  if (next_ < expected_.size() && expected_[next_] == groups) {
    ++next_;
  } else {
    expect({});
  }
  start_gathers(groups);
  for (const int g : groups) {
    ++num_users_[static_cast<size_t>(g)];
    for (Bucket& b : buckets_[static_cast<size_t>(g)]) b.gathering.wait();
  }
  free_unused();  // what was kept or gathered ahead for a use that did not come
  if (options_.is_overlapped && next_ < expected_.size()) start_gathers(expected_[next_]);
}

void Store::release(const GroupSet& groups) {
  if (options_.residency.parameters.portion == Portion::kWhole) return;
  for (const int g : groups) {
    KUAFU_CHECK(num_users_[static_cast<size_t>(g)] > 0, groups_[static_cast<size_t>(g)].name,
                " is released and was not acquired");
    --num_users_[static_cast<size_t>(g)];
  }
  free_unused();
}

void Store::start_gathers(const GroupSet& groups) {
  const CategoryScope scope(Category::kCommunication);
  for (const int g : groups) {
    if (!gathered_.insert(g).second) continue;
    for (Bucket& b : buckets_[static_cast<size_t>(g)]) {
      if (!has_values_in_parts(b)) continue;
      allocate_storage(b.gathered, b.layout.elements() * b.gathered.element_size());
      b.gathering = replicas(b).all_gather(view(b.gathered), view(b.values));
    }
  }
}

void Store::free_unused() {
  const bool has_next = next_ < expected_.size();
  std::erase_if(gathered_, [&](int g) {
    const bool comes_next =
        has_next && std::count(expected_[next_].begin(), expected_[next_].end(), g) > 0;
    if (num_users_[static_cast<size_t>(g)] > 0 || comes_next) return false;
    for (Bucket& b : buckets_[static_cast<size_t>(g)]) {
      if (!has_values_in_parts(b)) continue;
      b.gathering.wait();
      free_storage(b.gathered);
    }
    return true;
  });
}

Tensor Store::gather(const Bucket& b, const FlatSlot& slot, const Tensor& mine) const {
  const at::NoGradGuard no_grad;
  const CategoryScope scope(Category::kCommunication);
  const Tensor whole = at::empty({slot.extent}, b.layout.options());
  for (int64_t r = 0; r < std::ssize(b.layout.ends); ++r) {
    const Part theirs = overlap(b.layout.part(r), slot);
    if (theirs.size() == 0) continue;
    const Tensor piece = whole.narrow(0, theirs.begin - slot.offset, theirs.size());
    if (r == b.layout.me) {
      piece.copy_(mine.narrow(0, theirs.begin - b.layout.mine().begin, theirs.size()));
    }
    if (b.layout.is_split()) replicas(b).broadcast(view(piece), static_cast<int>(r)).wait();
  }
  return whole.view(slot.param->value.sizes());
}

}  // namespace kuafu
