// SPDX-License-Identifier: Apache-2.0
//
// ZeRO-1: optimizer state sharded over the replicas.  [Rajbhandari et al., arXiv 1910.02054, P_os]
//
//   Picture   one bucket of 3 replicas; g_r its gradients on replica r, w its parameters
//
//             g_r  | . . . | . . . | . . . |   reduce-scatter: replica r has part r of sum g_r
//             w    | . . . | . . . | . . . |   replica r updates part r, then all-gather
//
//   Math      An optimizer that works element by element gives each element the same value whoever
//             updates it: replica r needs m, v and the master copy of part r only. Norms need
//             the whole gradient: ParamShard::split_axes says that pieces add up over the replicas.
//
//   Cost      bytes received a step: (n-1)/n b psi reduce-scatter + (n-1)/n b psi all-gather, as
//             an all-reduce of the gradients. Memory: b psi parameters, b psi gradients, the
//             optimizer's bytes / n.
//
//   Code      attach moves parameters into flat buffers; gradients are moved into another one when
//             their group is complete and summed there in place, my part of it.

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "kuafu/base/errors.h"
#include "kuafu/meter/allocator.h"
#include "kuafu/parallel/data/zero.h"

namespace kuafu {
void Zero1::attach(std::vector<Group> groups) {
  groups_ = std::move(groups);
  for (size_t g = 0; g < groups_.size(); ++g) {
    Shards& shards = shards_.emplace_back();
    const FlatRules rules{.bucket_bytes = options_.bucket_bytes, .is_sharded = true};
    for (FlatBucket& bucket : make_buckets(groups_[g], mesh_, rules)) {
      ZeroShard& shard = shards.emplace_back();
      shard.layout = std::move(bucket);
      shard.used.resize(shard.layout.slots.size());
      shard.first = mesh_.coord(shard.layout.replicas) * shard.layout.part;
      for (size_t i = 0; i < shard.layout.slots.size(); ++i) {
        places_[shard.layout.slots[i].param] = {g, shards.size() - 1, i};
      }
      adopt_values(shard);
    }
  }
}

void Zero1::adopt_values(ZeroShard& shard) {
  const at::NoGradGuard no_grad;
  const CategoryScope scope(Category::kParameter);
  const Tensor& any = shard.layout.slots[0].param->value;
  shard.values = at::zeros({shard.layout.elements()}, any.options().requires_grad(false));
  for (const FlatSlot& slot : shard.layout.slots) {
    const Tensor place = in_shape(slot, shard.values);
    place.copy_(initial_value(*slot.param));
    slot.param->value.set_data(place);
  }
}

Tensor Zero1::initial_value(const Param& p) const {
  if (p.value.storage().nbytes() > 0) return p.value.detach();
  const CategoryScope scope(Category::kCommunication);
  return params_.initial_value(p);
}

Tensor Zero1::my_values(const ZeroShard& shard) const {
  return shard.values.narrow(0, shard.first, shard.layout.part);
}

Communicator& Zero1::replicas(const ZeroShard& shard) const {
  return mesh_.comm(shard.layout.replicas[0]);
}

void Zero1::grads_ready(int group, bool is_last) {
  if (!is_last && !reduces_every_micro_batch()) {
    for (Param* p : groups_[static_cast<size_t>(group)].params) {
      recategorise(p->value.grad(), Category::kGradient);
    }
    return;
  }
  // At most one group's whole gradients wait for their sum where they are freed after it.
  if (reduces_every_micro_batch()) complete_sums();
  for (ZeroShard& shard : shards_[static_cast<size_t>(group)]) reduce(shard);
}

Tensor Zero1::scheme_sum(ZeroShard& shard) const {
  const Tensor flat = take_gradients(shard.layout, shard.used);
  for (const std::string& axis : shard.layout.scheme_axes) {
    sum_everywhere(flat, mesh_.comm(axis), options_.order).wait();
  }
  return flat;
}

void Zero1::reduce(ZeroShard& shard) {
  if (shard.sum.defined()) {
    const CategoryScope scope(Category::kCommunication);
    const Tensor flat = scheme_sum(shard);
    start_sum(shard, flat.narrow(0, shard.first, shard.layout.part), flat);
    return;
  }
  const CategoryScope scope(Category::kGradient);
  shard.whole_sum = scheme_sum(shard);
  shard.sum = shard.whole_sum.narrow(0, shard.first, shard.layout.part);
  start_sum(shard, shard.sum, shard.whole_sum);
}

void Zero1::start_sum(ZeroShard& shard, const Tensor& out, const Tensor& flat) {
  PendingSum sum = shard.layout.parts == 1
                       ? PendingSum(Work(),
                                    [out, flat] {
                                      if (!out.is_alias_of(flat)) out.copy_(flat);
                                    })
                       : sum_in_parts(out, flat, replicas(shard), options_.order);
  if (!out.is_same(shard.sum)) sum.then([&shard, out] { shard.sum.add_(out); });
  if (options_.is_overlapped) {
    under_way_.push_back(std::move(sum));
  } else {
    sum.wait();
  }
}

void Zero1::complete_sums() {
  const at::NoGradGuard no_grad;
  for (PendingSum& sum : under_way_) sum.wait();
  under_way_.clear();
}

template <class Visit>
void Zero1::each_piece(const Visit& visit) const {
  for (const Shards& shards : shards_) {
    for (const ZeroShard& shard : shards) {
      const Tensor values = my_values(shard);
      for (size_t i = 0; i < shard.layout.slots.size(); ++i) {
        const FlatSlot& slot = shard.layout.slots[i];
        const Overlap mine = overlap(slot, shard.first, shard.layout.part);
        visit(shard, i, mine.begin - shard.first,
              ParamShard{.value = values.narrow(0, mine.begin - shard.first, mine.length),
                         .grad = {},
                         .param = slot.param,
                         .split_axes = mesh_.canonical(shard.layout.replicas),
                         .first_element = mine.length == 0 ? 0 : mine.begin - slot.offset});
      }
    }
  }
}

// Pieces may be empty: every replica lists the same parameters, for norms over all of them.
std::vector<ParamShard> Zero1::shards() {
  std::vector<ParamShard> all;
  each_piece([&](const ZeroShard&, size_t, int64_t, ParamShard piece) {
    all.push_back(std::move(piece));
  });
  return all;
}

std::vector<ParamShard> Zero1::finish() {
  complete_sums();
  std::vector<ParamShard> used;
  each_piece([&](const ZeroShard& shard, size_t slot, int64_t begin, ParamShard piece) {
    piece.grad = shard.sum.narrow(0, begin, piece.value.numel());
    if (shard.used[slot]) {
      used.push_back(std::move(piece));
    } else {
      check_unused(*piece.param, piece.grad);  // left as it is
    }
  });
  return used;
}

void Zero1::publish() {
  for (Shards& shards : shards_) {
    for (ZeroShard& shard : shards) {
      shard.sum = shard.whole_sum = Tensor();
      shard.used.assign(shard.used.size(), false);
    }
  }
  gather_values();
}

void Zero1::gather_values() {
  std::vector<Work> gathers;
  for (const Shards& shards : shards_) {
    for (const ZeroShard& shard : shards) {
      if (shard.layout.parts == 1) continue;
      gathers.push_back(replicas(shard).all_gather(view(shard.values), view(my_values(shard))));
    }
  }
  for (Work& gather : gathers) gather.wait();
}

Tensor Zero1::gather(const ZeroShard& shard, const FlatSlot& slot, const Tensor& part) const {
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

Tensor Zero1::gradient(const Param& p) {
  const Place at = places_.at(&p);
  const ZeroShard& shard = shards_[at.group][at.shard];
  if (!shard.used[at.slot]) return {};
  return gather(shard, shard.layout.slots[at.slot], shard.sum);
}

}  // namespace kuafu
