// SPDX-License-Identifier: Apache-2.0
//
// ZeRO: states of a model sharded over its replicas.      [Rajbhandari et al., arXiv 1910.02054]
//
//   Picture   one bucket of 3 replicas; g_r its gradients on replica r, w its parameters
//
//             g_r  | . . . | . . . | . . . |   reduce-scatter: replica r has part r of sum g_r
//             w    | . . . | . . . | . . . |   replica r updates part r, then all-gather
//
//   Math      An optimizer that works element by element gives each element the same value whoever
//             updates it: replica r needs m, v and the master copy of part r only. Norms need
//             the whole gradient: ParamShard::split_axes says that pieces add up over the replicas.
//             Sums over micro-batches and over replicas commute: part r of the gradient is the sum
//             over micro-batches of part r of each one's sum over the replicas. Only the optimizer
//             writes parameters, so every gather of a step brings the same values.
//
//   Cost      n replicas, psi parameters of b bytes, padded (FlatRules), M micro-batches; AdamW,
//             s = max(b, 4): 2 s of state a parameter, and 4 of master copy where b = 2
//
//     stage  in parts          bytes a rank, b = 2    received a step and rank
//     0      -                 16 psi                 2 (n-1)/n b psi              all_reduce.cpp
//     1      optimizer state   4 psi + 12 psi / n     2 (n-1)/n b psi
//     2      + gradients       2 psi + 14 psi / n     (M + 1) (n-1)/n b psi
//     3      + parameters      16 psi / n             (M + G) (n-1)/n b psi, G gathers below
//
//             Stages 1 and 2 reduce-scatter gradients (1: once a step, 2: once a micro-batch, the
//             price of not keeping whole ones) and all-gather what was updated. Under 3 each use of
//             a block gathers what it reads and the use before it did not, nothing after the
//             update: G = 2 M gathers of a block, M of the last one (its forward is followed by its
//             backward), M of an embedding, since its backward reads no parameter, and M more for a
//             head that is tied to it. With M = 1 that is 1.5 of the all-reduce's bytes, less one
//             gather of the last block. Full recomputation runs its forward inside the use for
//             backward: no more gathers, but an embedding is read twice.
//             A gradient is whole until its group is reduced, and a gathered group is whole until
//             it is released, two of them at a time; both are booked as communication.
//
//   Code      A row of kStages; attach moves parameters into flat buffers. Gradients are moved into
//             another one when their group is complete and summed there: in place, my part of it
//             (whole), or into a part of its own, and the buffer is freed (parts). A gathered
//             bucket's storage is freed and filled anew under the same tensors: what autograd has
//             saved of a weight is right again once its group is acquired for backward (zero_uses.cpp).

#include "kuafu/parallel/data/zero.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "kuafu/base/errors.h"
#include "kuafu/meter/allocator.h"

namespace kuafu {
namespace {

struct Stage {
  int64_t number;
  Residency residency;
};

constexpr Stage kStages[] = {
    {1, {.gradients = Held::kWhole, .parameters = Held::kWhole}},
    {2, {.gradients = Held::kPart, .parameters = Held::kWhole}},
    {3, {.gradients = Held::kPart, .parameters = Held::kPart}},
};

}  // namespace

Residency residency_of(int64_t stage) {
  for (const Stage& s : kStages) {
    if (s.number == stage) return s.residency;
  }
  throw InternalError(text("ZeRO has no stage ", stage));
}

void Zero::attach(std::vector<Group> groups) {
  groups_ = std::move(groups);
  num_users_.resize(groups_.size());
  for (size_t g = 0; g < groups_.size(); ++g) {
    std::vector<ZeroShard>& shards = shards_.emplace_back();
    const FlatRules rules{.bucket_bytes = options_.bucket_bytes, .is_sharded = true};
    for (FlatBucket& bucket : make_buckets(groups_[g], mesh_, rules)) {
      ZeroShard& shard = shards.emplace_back();
      shard.layout = std::move(bucket);
      shard.used.resize(shard.layout.slots.size());
      shard.first = mesh_.coord(shard.layout.replicas) * shard.layout.part;
      for (size_t i = 0; i < shard.layout.slots.size(); ++i) {
        places_[shard.layout.slots[i].param] = {g, shards.size() - 1, i};
      }
      if (has_values_in_parts(shard)) {
        adopt_part(shard);
      } else {
        adopt_whole(shard);
      }
    }
  }
}

void Zero::adopt_whole(ZeroShard& shard) {
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

void Zero::adopt_part(ZeroShard& shard) {
  const at::NoGradGuard no_grad;
  const at::TensorOptions options =
      shard.layout.slots[0].param->value.options().requires_grad(false);
  {
    const CategoryScope scope(Category::kParameter);
    shard.values = at::zeros({shard.layout.part}, options);
  }
  const CategoryScope scope(Category::kCommunication);
  shard.gathered = at::empty({shard.layout.elements()}, options);
  for (const FlatSlot& slot : shard.layout.slots) {
    const Overlap mine = overlap(slot, shard.first, shard.layout.part);
    if (mine.length > 0) {
      const Tensor from = initial_value(*slot.param).view(-1);
      shard.values.narrow(0, mine.begin - shard.first, mine.length)
          .copy_(from.narrow(0, mine.begin - slot.offset, mine.length));
    }
    slot.param->value.set_data(in_shape(slot, shard.gathered));
  }
  free_storage(shard.gathered);  // its views stay
}

Tensor Zero::initial_value(const Param& p) const {
  if (p.value.storage().nbytes() > 0) return p.value.detach();
  const CategoryScope scope(Category::kCommunication);
  return params_.initial_value(p);
}

void Zero::grads_ready(int group, bool is_last) {
  if (!is_last && !sums_every_micro_batch()) {
    for (Param* p : groups_[static_cast<size_t>(group)].params) {
      recategorise(p->value.grad(), Category::kGradient);
    }
    return;
  }
  // At most one group's whole gradients wait for their sum where they are freed after it.
  if (sums_every_micro_batch()) complete_sums();
  for (ZeroShard& shard : shards_[static_cast<size_t>(group)]) reduce(shard);
}

Tensor Zero::scheme_sum(ZeroShard& shard) const {
  const Tensor flat = take_gradients(shard.layout, shard.used);
  for (const std::string& axis : shard.layout.scheme_axes) {
    sum_everywhere(flat, mesh_.comm(axis), options_.order).wait();
  }
  show_own(watch_, shard.layout, flat, mesh_);
  return flat;
}

void Zero::reduce(ZeroShard& shard) {
  const bool is_first = !shard.sum.defined(), is_whole = residency_.gradients == Held::kWhole;
  const Category kept = is_first ? Category::kGradient : Category::kCommunication;
  Tensor flat;
  {
    const CategoryScope scope(is_whole ? kept : Category::kCommunication);
    flat = scheme_sum(shard);
  }
  const CategoryScope scope(kept);
  const Tensor out =
      is_whole ? shard.my_part(flat) : at::empty({shard.layout.part}, flat.options());
  if (is_first) {
    shard.sum = out;
    if (is_whole) shard.whole_sum = flat;
  }
  start_sum(shard, out, flat);
}

void Zero::start_sum(ZeroShard& shard, const Tensor& out, const Tensor& flat) {
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

void Zero::complete_sums() {
  const at::NoGradGuard no_grad;
  for (PendingSum& sum : under_way_) sum.wait();
  under_way_.clear();
}

template <class Visit>
void Zero::each_piece(const Visit& visit) const {
  for (const std::vector<ZeroShard>& shards : shards_) {
    for (const ZeroShard& shard : shards) {
      const Tensor values = my_values(shard);
      std::vector<int64_t> ends;
      for (int64_t r = 1; r <= shard.layout.parts; ++r) ends.push_back(r * shard.layout.part);
      for (size_t i = 0; i < shard.layout.slots.size(); ++i) {
        const FlatSlot& slot = shard.layout.slots[i];
        const Overlap mine = overlap(slot, shard.first, shard.layout.part);
        visit(shard, i, mine.begin - shard.first,
              ParamShard{.value = values.narrow(0, mine.begin - shard.first, mine.length),
                         .grad = {},
                         .param = slot.param,
                         .split_axes = mesh_.canonical(shard.layout.replicas),
                         .first_element = mine.length == 0 ? 0 : mine.begin - slot.offset,
                         .bounds = bounds_in(slot, ends)});
      }
    }
  }
}

// Pieces may be empty: every replica lists the same parameters, for norms over all of them.
std::vector<ParamShard> Zero::shards() {
  std::vector<ParamShard> all;
  each_piece([&](const ZeroShard&, size_t, int64_t, ParamShard piece) {
    all.push_back(std::move(piece));
  });
  return all;
}

std::vector<ParamShard> Zero::finish() {
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

void Zero::publish() {
  for (std::vector<ZeroShard>& shards : shards_) {
    for (ZeroShard& shard : shards) {
      shard.sum = shard.whole_sum = Tensor();
      shard.used.assign(shard.used.size(), false);
    }
  }
  if (residency_.parameters == Held::kPart) return;  // each use gathers
  std::vector<Work> gathers;
  for (const std::vector<ZeroShard>& shards : shards_) {
    for (const ZeroShard& shard : shards) {
      if (shard.layout.parts == 1) continue;
      gathers.push_back(replicas(shard).all_gather(view(shard.values), view(my_values(shard))));
    }
  }
  for (Work& gather : gathers) gather.wait();
}

std::unique_ptr<DataParallel> make_zero(int64_t stage, const Mesh& mesh, AllReduceOptions options,
                                        const ParamFactory& params) {
  return std::make_unique<Zero>(residency_of(stage), mesh, options, params);
}

}  // namespace kuafu
