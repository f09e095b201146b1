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
namespace {

bool contains(const GroupSet& groups, int g) {
  return std::count(groups.begin(), groups.end(), g) > 0;
}

}  // namespace

void Store::expect(std::vector<GroupSet> uses, Tiers::Then then) {
  if (!has_uses()) return;
  expected_ = std::move(uses);
  next_ = 0;
  if (!tiers_) return;
  for (const int g : gathered_) wait_for_gathers({g});  // they read what may leave now
  if (sums_ && then == Tiers::Then::kUpdate) sums_->begin_step();
  tiers_->begin(reads_of(expected_), then);
}

/// Parameters whole: the chunks of the groups. In parts: those of which a gather begins.
std::vector<std::vector<int>> Store::reads_of(const std::vector<GroupSet>& uses) const {
  std::vector<std::vector<int>> reads(uses.size());
  std::set<int> gathered;
  const auto add = [&](size_t t, int g, bool is_used) {
    const bool is_new = gathered.insert(g).second;
    for (const Bucket& b : buckets_[static_cast<size_t>(g)]) {
      if (has_values_in_parts(b) ? is_new : is_used) reads[t].push_back(b.chunk);
    }
  };
  for (size_t t = 0; t < uses.size(); ++t) {
    std::erase_if(gathered, [&](int g) { return !contains(uses[t], g); });
    for (const int g : uses[t]) add(t, g, true);
    if (!options_.is_overlapped || t + 1 == uses.size()) continue;
    for (const int g : uses[t + 1]) {
      if (!contains(uses[t], g)) add(t, g, false);
    }
  }
  return reads;
}

void Store::acquire(const GroupSet& groups) {
  if (!has_uses()) return;
  if (next_ >= expected_.size() || expected_[next_] != groups) {
    expect({groups}, Tiers::Then::kNothing);
  }
  ++next_;
  if (tiers_) {
    wait_for_gathers(groups);  // those begun ahead read what may leave now
    tiers_->next();
  }
  start_gathers(groups);
  for (const int g : groups) ++num_users_[static_cast<size_t>(g)];
  wait_for_gathers(groups);
  free_unused();  // what was kept or gathered ahead for a use that did not come
  if (options_.is_overlapped && next_ < expected_.size()) start_gathers(expected_[next_]);
}

void Store::release(const GroupSet& groups) {
  if (!has_uses()) return;
  for (const int g : groups) {
    KUAFU_CHECK(num_users_[static_cast<size_t>(g)] > 0, groups_[static_cast<size_t>(g)].name,
                " is released and was not acquired");
    --num_users_[static_cast<size_t>(g)];
  }
  free_unused();
}

void Store::wait_for_gathers(const GroupSet& groups) {
  for (const int g : groups) {
    for (Bucket& b : buckets_[static_cast<size_t>(g)]) b.gathering.wait();
  }
}

void Store::start_gathers(const GroupSet& groups) {
  const CategoryScope scope(Category::kCommunication);
  for (const int g : groups) {
    if (!gathered_.insert(g).second) continue;
    for (Bucket& b : buckets_[static_cast<size_t>(g)]) {
      if (!has_values_in_parts(b)) continue;
      allocate_storage(b.gathered, b.layout.elements() * b.gathered.element_size());
      b.gathering = replicas(b).all_gather(view(b.gathered), view(tiers_ ? b.here : b.values));
    }
  }
}

void Store::free_unused() {
  const bool has_next = next_ < expected_.size();
  std::erase_if(gathered_, [&](int g) {
    const bool comes_next = has_next && contains(expected_[next_], g);
    if (num_users_[static_cast<size_t>(g)] > 0 || comes_next) return false;
    for (Bucket& b : buckets_[static_cast<size_t>(g)]) {
      if (!has_values_in_parts(b)) continue;
      b.gathering.wait();
      free_storage(b.gathered);
    }
    return true;
  });
}

FlatPart Store::kept_of(const Bucket& b) const {
  return has_values_in_parts(b) ? b.layout.mine() : FlatPart{0, b.layout.elements()};
}

void Store::bring_values(const Bucket& b, StateFile::Use use) const {
  if (tiers_) tiers_->bring(b.chunk, use);
}

void Store::bring(const Param& p) {
  if (tiers_) bring_values(bucket_at(places_.at(&p)), StateFile::Use::kChange);
}

Tensor Store::kept_whole(const Param& p) const {
  if (!tiers_) return p.value;
  const SlotPlace at = places_.at(&p);
  const Bucket& b = bucket_at(at);
  const bool is_away = !is_split() && !b.pieces.empty();
  return is_away ? b.pieces.at(at.slot) : in_shape(b.layout.slots[at.slot], b.values);
}

Tensor Store::value(const Param& p) const {
  const SlotPlace at = places_.at(&p);
  const Bucket& b = bucket_at(at);
  bring_values(b, StateFile::Use::kRead);
  if (options_.residency.parameters.portion == Portion::kWhole) {
    const Tensor kept = kept_whole(p).detach();
    return tiers_ && tiers_->has_homes_on_disk() ? kept.clone() : kept;  // it goes back
  }
  return gather(b, b.layout.slots[at.slot],
                has_values_in_parts(b) ? b.values : in_part(b.values, b.layout.mine()));
}

Tensor Store::gather(const Bucket& b, const FlatSlot& slot, const Tensor& mine) const {
  const at::NoGradGuard no_grad;
  const CategoryScope scope(Category::kCommunication);
  const Tensor whole = at::empty({slot.extent}, b.layout.options());
  for (int64_t r = 0; r < std::ssize(b.layout.ends); ++r) {
    const FlatPart theirs = overlap(b.layout.part(r), slot);
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
