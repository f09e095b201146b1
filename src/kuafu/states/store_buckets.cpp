// SPDX-License-Identifier: Apache-2.0
//
// Buckets of a store as they are made: the values of parameters move into them, and to where they are at
// home: the device, the host, a disk.

#include "kuafu/states/store.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "kuafu/base/errors.h"
#include "kuafu/meter/allocator.h"

namespace kuafu {

void Store::attach(std::vector<Group> groups) {
  groups_ = std::move(groups);
  num_users_.resize(groups_.size());
  int tag = 0;
  for (size_t g = 0; g < groups_.size(); ++g) {
    std::vector<Bucket>& buckets = buckets_.emplace_back();
    for (FlatBucket& layout : make_buckets(groups_[g], mesh_, options_.cut)) {
      Bucket& b = buckets.emplace_back(Bucket{.layout = std::move(layout)});
      b.layout.tag = tag++;
      b.used.resize(b.layout.slots.size());
      for (size_t i = 0; i < b.layout.slots.size(); ++i) {
        places_[b.layout.slots[i].param] = {g, buckets.size() - 1, i};
      }
    }
  }
  if (options_.tiers && options_.tiers->has_parameters_on_disk) {
    tiers_->put_homes_on_disk(
        rows_of_buckets([this](const Bucket& b) { return kept_of(b).size(); }));
  }
  for (size_t g = 0; g < groups_.size(); ++g) {
    for (Bucket& b : buckets_[g]) {
      reduce_->attach(b.layout);
      if (options_.cut.is_sharded || tiers_)
        adopt(b, groups_[g].name);  // else they lie where they are
    }
  }
  if (tiers_) tiers_->rest();
  if (options_.tiers && options_.tiers->has_gradients_on_disk) put_sums_on_disk();
}

std::vector<StateFile::Row> Store::rows_of_buckets(
    const std::function<int64_t(const Bucket&)>& elements) const {
  const BookScope unbooked(nullptr);
  std::vector<StateFile::Row> rows;
  for (const std::vector<Bucket>& buckets : buckets_) {
    for (const Bucket& b : buckets) {
      const Tensor like = at::empty({1}, b.layout.options()).expand({elements(b)});
      rows.push_back({.like = like, .type = like.scalar_type(), .slots = 1});
    }
  }
  return rows;
}

void Store::put_sums_on_disk() {
  const std::vector<StateFile::Row> rows = rows_of_buckets([this](const Bucket& b) {
    return is_split() ? b.layout.mine().size() : b.layout.elements();
  });
  DiskTier disk = *options_.tiers->disk;
  sums_ = std::make_unique<StateFile>(
      disk, rows, tiers_->host(),
      StatesOnDisk{.name = "gradients", .category = Category::kGradient, .has_lone_rows = true});
  if (disk.bytes > 0) disk.bytes = std::max<int64_t>(1, disk.bytes - sums_->counts().bytes);
  slots_.keep_on(tiers_->host(), disk);
}

void Store::adopt(Bucket& b, const std::string& group) {
  const at::NoGradGuard no_grad;
  const bool is_part = has_values_in_parts(b), is_on_disk = tiers_ && tiers_->has_homes_on_disk();
  const FlatPart kept = kept_of(b);
  const CategoryScope scope(Category::kParameter);
  b.values = [&] {
    if (is_on_disk) return tiers_->home_on_disk(b.layout.tag);
    const BookScope where(tiers_ ? tiers_->host() : current_book());
    return at::zeros({kept.size()}, b.layout.options());
  }();
  if (tiers_) {
    b.here = at::empty({kept.size()}, b.layout.options());
    b.chunk = tiers_->add(b.values, b.here, group);
    KUAFU_CHECK(b.chunk == b.layout.tag, "chunk ", b.chunk, " is of bucket ", b.layout.tag);
    tiers_->bring(b.chunk, StateFile::Use::kOverwrite);
    if (is_on_disk) b.values.zero_();
  }
  if (is_part) {
    const CategoryScope gathered(Category::kCommunication);
    b.gathered = at::empty({b.layout.elements()}, b.layout.options());
  }
  const Tensor& used = is_part ? b.gathered : tiers_ ? b.here : b.values;
  for (const FlatSlot& slot : b.layout.slots) {
    const FlatPart mine = overlap(kept, slot);
    if (mine.size() > 0) {
      const Tensor from = initial_value(*slot.param).view(-1);
      b.values.narrow(0, mine.begin - kept.begin, mine.size())
          .copy_(from.narrow(0, mine.begin - slot.offset, mine.size()));
    }
    slot.param->value.set_data(in_shape(slot, used));
  }
  if (is_on_disk) {
    Tensors pieces;
    for (const FlatSlot& slot : b.layout.slots) {
      pieces.push_back(is_split() ? piece_of(b, slot).value : in_shape(slot, b.values));
    }
    b.pieces = std::move(pieces);
  }
  for (const Tensor& t : {b.here, b.gathered}) {
    if (t.defined()) free_storage(t);  // its views stay
  }
}

Tensor Store::initial_value(const Param& p) const {
  if (p.value.storage().nbytes() > 0) return p.value.detach();
  const CategoryScope scope(Category::kCommunication);
  return params_.initial_value(p);
}

}  // namespace kuafu
