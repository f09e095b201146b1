// SPDX-License-Identifier: Apache-2.0
//
// The way of gradients and values through a step; how buckets are made, and what is
// kept in parts: store_buckets.cpp, store_uses.cpp.
//
//   ready()    gradients of a group, by autograd in tensors of their own, are moved into the flat
//              buffer of each bucket, and their sum starts: it overlaps the backward of the groups
//              before. Every micro-batch, or, while whole ones stay, once a step.
//   finish()   waits. Slots whole: each .grad becomes a view of the sum; in parts: pieces of mine.
//   publish()  sums are dropped; where parameters are whole and slots in parts, every replica's
//              part of the values comes to all of them.
//
// Where nothing is kept in parts, gradients that nobody sums stay where autograd has left them.

#include "kuafu/states/store.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "kuafu/base/errors.h"
#include "kuafu/meter/allocator.h"

namespace kuafu {

Store::Store(const Mesh& mesh, const StoreOptions& options, std::unique_ptr<Reduce> reduce,
             const ParamFactory& params)
    : mesh_(mesh), options_(options), reduce_(std::move(reduce)), params_(params) {
  if (!options.tiers) return;
  options_.cut.is_aligned = true;  // for kernels to have the addresses that they have without tiers
  tiers_ = std::make_unique<Tiers>(*options.tiers, params.device);
  slots_.keep_on(tiers_->host(), options.tiers->disk);
}

MoveCounts Store::moves() const {
  if (!tiers_) return {};
  MoveCounts all = tiers_->counts();
  all.disk = slots_.disk();
  if (sums_) all.disk += sums_->counts();
  all.disk += tiers_->disk();
  all.wait_seconds += all.disk.wait_seconds;
  return all;
}

std::optional<int64_t> Store::loaded() const {
  return tiers_ ? std::optional(tiers_->loaded()) : std::nullopt;
}

void Store::ready(int group, bool is_last) {
  const auto g = static_cast<size_t>(group);
  const bool is_due = is_last || sums_every_micro_batch();
  if (!is_due || !options_.cut.is_sharded) {
    for (Param* p : groups_[g].params) recategorise(p->value.grad(), Category::kGradient);
  }
  for (const Bucket& b : buckets_[g]) {
    if (!grown_ || is_summed(b)) continue;
    for (const FlatSlot& slot : b.layout.slots) grown_(*slot.param, is_last);
  }
  if (!is_due) return;
  if (tiers_) tiers_->arrive();  // what left has had the time of a block
  if (sums_every_micro_batch() || tiers_) {
    // At most one group's whole gradients wait for their sum where they are freed after it.
    if (is_split() || tiers_) {
      complete_all();
    } else {
      complete(g);
    }
  }
  for (Bucket& b : buckets_[g]) {
    if (is_summed(b) || (tiers_ && is_last)) reduce(g, b, is_last);
  }
}

void Store::reduce(size_t group, Bucket& b, bool is_last) {
  advance();
  const Portion portion = options_.residency.gradients.portion;
  const bool is_first = !b.sum.defined();
  const Category kept = is_first || !is_split() ? Category::kGradient : Category::kCommunication;
  Tensor flat;
  {
    const CategoryScope scope(portion == Portion::kWhole ? kept : Category::kCommunication);
    flat = take_gradients(b.layout, b.used);
  }
  const CategoryScope scope(kept);
  StartedSum started =
      is_summed(b) ? reduce_->start(b.layout, flat, portion) : StartedSum{flat, PendingSum(Work())};
  if (is_first) {
    b.sum = started.mine;
  } else {
    started.sum.then([&b, mine = started.mine] { b.sum.add_(mine); });
  }
  if (tiers_ && is_last) started.sum.then([this, &b] { leave(b); });
  flat = Tensor();
  if (options_.is_overlapped) {
    under_way_.push_back({group, std::move(started.sum)});
  } else {
    const at::NoGradGuard no_grad;
    started.sum.wait();
  }
}

void Store::leave(Bucket& b) {
  Tensor there;
  if (sums_) {
    tiers_->arrive();  // the one before goes on to the disk
    const auto row = static_cast<size_t>(b.layout.tag);
    sums_->use(row, StateFile::Use::kOverwrite);
    there = sums_->tensors(row)[0];
    if (b.sums.empty()) {
      for (size_t i = 0; i < b.layout.slots.size(); ++i) b.sums.push_back(of_slot(b, there, i));
    }
  }
  b.sum = tiers_->leave(b.sum, there);
}

void Store::bring_sum(const Bucket& b) const {
  if (sums_) sums_->use(static_cast<size_t>(b.layout.tag), StateFile::Use::kRead);
}

void Store::complete(size_t group) {
  const at::NoGradGuard no_grad;
  for (UnderWay& u : under_way_) {
    if (u.group == group) u.sum.wait();
  }
  std::erase_if(under_way_, [&](const UnderWay& u) { return u.group == group; });
}

bool Store::advance() {
  bool has_more = false;
  for (UnderWay& u : under_way_) has_more = u.sum.advance() || has_more;
  return has_more;
}

void Store::complete_all() {
  while (advance()) {
  }
  while (!under_way_.empty()) complete(under_way_.front().group);
}

ParamShard Store::piece_of(const Bucket& b, const FlatSlot& slot) const {
  const FlatPart all = b.layout.mine(), mine = overlap(all, slot);
  Tensor value;
  if (!b.pieces.empty()) {
    value = b.pieces.at(static_cast<size_t>(&slot - b.layout.slots.data()));
  } else if (!b.values.defined()) {
    value = value_in(slot, mine.size() > 0 ? mine : FlatPart{slot.offset, slot.offset});
  } else if (has_values_in_parts(b)) {
    value = b.values.narrow(0, mine.begin - all.begin, mine.size());
  } else {
    value = in_part(b.values, mine);
  }
  return {.value = value,
          .grad = {},
          .param = slot.param,
          .split_axes = mesh_.canonical(b.layout.replicas),
          .first_element = mine.size() == 0 ? 0 : mine.begin - slot.offset,
          .bounds = bounds_in(slot, b.layout.ends)};
}

std::vector<ParamShard> Store::pieces() const {
  std::vector<ParamShard> all;
  for (size_t g = 0; g < groups_.size(); ++g) {
    if (!is_split()) {
      for (Param* p : groups_[g].params) all.push_back({kept_whole(*p), {}, p, {}});
      continue;
    }
    for (const Bucket& b : buckets_[g]) {
      for (const FlatSlot& slot : b.layout.slots) all.push_back(piece_of(b, slot));
    }
  }
  return all;
}

std::vector<StateRow> Store::rows() const {
  const std::vector<ParamShard> all = pieces();
  const std::vector<RuleSlots::Row>& slots = slots_.rows();
  KUAFU_CHECK(slots.empty() || slots.size() == all.size(), "slots of ", slots.size(), " of ",
              all.size(), " parameters");
  std::vector<StateRow> rows;
  for (size_t i = 0; i < all.size(); ++i) {
    const Param& p = *all[i].param;
    const Axes replicas = mesh_.canonical(bucket_at(places_.at(&p)).layout.replicas);
    rows.push_back(row_of(p, replicas, options_.residency,
                          slots.empty() ? RuleSlots::Row{} : slots[i], mesh_));
  }
  return rows;
}

Tensor Store::of_slot(const Bucket& b, const Tensor& sum, size_t i) const {
  const FlatSlot& slot = b.layout.slots[i];
  if (!is_split()) return in_shape(slot, sum);
  const FlatPart all = b.layout.mine(), mine = overlap(all, slot);
  return sum.narrow(0, mine.size() > 0 ? mine.begin - all.begin : 0, mine.size());
}

Tensor Store::summed(Bucket& b, size_t i, const ParamShard& piece) const {
  const FlatSlot& slot = b.layout.slots[i];
  Tensor& own = slot.param->value.mutable_grad();
  if (!is_split() && !b.sum.defined()) return own;
  Tensor sum = piece.value;  // of an empty part
  if (b.sum.defined()) sum = sums_ ? b.sums.at(i) : of_slot(b, b.sum, i);
  if (!b.used[i]) {
    if (b.sum.defined()) bring_sum(b);
    check_unused(*slot.param, sum);  // left as it is
    return {};
  }
  if (!is_split()) own = sum;
  return sum;
}

std::vector<ParamShard> Store::finish() {
  complete_all();
  if (tiers_) tiers_->go_home();
  std::vector<ParamShard> used;
  for (ParamShard& piece : pieces()) {
    const SlotPlace at = places_.at(piece.param);
    piece.grad = summed(buckets_[at.group][at.bucket], at.slot, piece);
    if (!piece.grad.defined()) continue;
    const Bucket& b = bucket_at(at);
    if (sums_ && b.sum.defined()) {
      piece.gradient_file = sums_.get();
      piece.gradient_row = static_cast<size_t>(b.layout.tag);
    }
    used.push_back(std::move(piece));
  }
  return used;
}

void Store::publish() {
  if (sums_) sums_->rest();
  share_values();
  if (tiers_) tiers_->rest();
}

void Store::share_values() {
  std::vector<Work> shares;
  for (std::vector<Bucket>& buckets : buckets_) {
    for (Bucket& b : buckets) {
      b.sum = Tensor();
      b.used.assign(b.used.size(), false);
    }
  }
  if (!is_split() || options_.residency.parameters.portion == Portion::kPart)
    return;  // each use gathers
  for (const std::vector<Bucket>& buckets : buckets_) {
    for (const Bucket& b : buckets) {
      if (!b.layout.is_split()) continue;
      bring_values(b, StateFile::Use::kChange);
      shares.push_back(reduce_->share(b.layout, b.values));
      if (tiers_ && tiers_->has_homes_on_disk()) shares.back().wait();
    }
  }
  for (Work& share : shares) share.wait();
}

Tensor Store::gradient(const Param& p) const {
  const SlotPlace at = places_.at(&p);
  const Bucket& b = bucket_at(at);
  if (b.sum.defined()) bring_sum(b);
  if (!is_split()) {
    const Tensor& own = p.value.grad();
    return sums_ && own.defined() ? own.clone() : own;  // which is here until the next is brought
  }
  if (!b.used[at.slot]) return {};
  return gather(b, b.layout.slots[at.slot], b.sum);
}

}  // namespace kuafu
