// SPDX-License-Identifier: Apache-2.0
//
// ZeRO-3: parameters sharded too.               [Rajbhandari et al., arXiv 1910.02054, P_os+g+p]
//
//   Picture   blocks of a forward on replica r: W whole, r my part, w on its way; one step a line
//
//               0  1  2  3
//               W  w  r  r     acquire(0) gathers W0 and starts W1, which arrives while 0 computes
//               r  W  w  r     release(0) frees W0; acquire(1) waits for W1 and starts W2
//               r  r  W  w     ... and backward the other way round
//
//   Math      A bucket's storage is freed and filled anew under the same tensors: what autograd has
//             saved of a weight (itself or a transposed view) is right again once its group is
//             acquired for backward. Only the optimizer writes parameters, so every gather of a
//             step brings the same values.
//
//   Cost      bytes received a step of M micro-batches: (n-1)/n b psi for every gather of all of
//             them, and M of them for the reduce-scatters (zero_2.cpp); nothing after the update.
//             A use of a block gathers what it reads and the use before it did not. So each block
//             is gathered 2 M times, the last one M times (its forward is followed by its
//             backward), and an embedding M times, since its backward reads no parameter, and M
//             times for a head that is tied to it. With M = 1 that is 3 (n-1)/n b psi, 1.5 of the
//             all-reduce's, less one gather of the last block. Full recomputation needs no third
//             gather, its forward runs inside the use for backward; only an embedding is read
//             twice. Memory: everything over n, and two blocks whole.
//
//   Code      expect() tells the uses to come: the next one is gathered ahead.

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "kuafu/base/errors.h"
#include "kuafu/meter/allocator.h"
#include "kuafu/parallel/data/zero.h"

namespace kuafu {

void Zero3::attach(std::vector<Group> groups) {
  num_users_.resize(groups.size());
  Zero2::attach(std::move(groups));
}

void Zero3::adopt_values(ZeroShard& shard) {
  if (shard.layout.parts == 1) return Zero1::adopt_values(shard);
  const at::NoGradGuard no_grad;
  const at::TensorOptions options =
      shard.layout.slots[0].param->value.options().requires_grad(false);
  {
    const CategoryScope scope(Category::kParameter);
    shard.values = at::zeros({shard.layout.part}, options);
  }
  const CategoryScope scope(Category::kCommunication);
  shard.whole = at::empty({shard.layout.elements()}, options);
  for (const FlatSlot& slot : shard.layout.slots) {
    const Overlap mine = overlap(slot, shard.first, shard.layout.part);
    if (mine.length > 0) {
      const Tensor from = initial_value(*slot.param).view(-1);
      shard.values.narrow(0, mine.begin - shard.first, mine.length)
          .copy_(from.narrow(0, mine.begin - slot.offset, mine.length));
    }
    slot.param->value.set_data(in_shape(slot, shard.whole));
  }
  free_storage(shard.whole);  // its views stay
}

Tensor Zero3::my_values(const ZeroShard& shard) const {
  return shard.layout.parts == 1 ? Zero1::my_values(shard) : shard.values;
}

void Zero3::expect(std::vector<GroupSet> uses) {
  expected_ = std::move(uses);
  next_ = 0;
}

void Zero3::acquire(const GroupSet& groups) {
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

void Zero3::release(const GroupSet& groups) {
  for (const int g : groups) {
    KUAFU_CHECK(num_users_[static_cast<size_t>(g)] > 0, groups_[static_cast<size_t>(g)].name,
                " is released and was not acquired");
    --num_users_[static_cast<size_t>(g)];
  }
  free_unused();
}

void Zero3::start_gathers(const GroupSet& groups) {
  const CategoryScope scope(Category::kCommunication);
  for (const int g : groups) {
    if (!gathered_.insert(g).second) continue;
    for (ZeroShard& shard : shards_[static_cast<size_t>(g)]) {
      if (shard.layout.parts == 1) continue;
      allocate_storage(shard.whole, shard.layout.elements() * shard.whole.element_size());
      shard.gathering = replicas(shard).all_gather(view(shard.whole), view(shard.values));
    }
  }
}

void Zero3::free_unused() {
  const bool has_next = next_ < expected_.size();
  std::erase_if(gathered_, [&](int g) {
    const bool comes_next =
        has_next && std::count(expected_[next_].begin(), expected_[next_].end(), g) > 0;
    if (num_users_[static_cast<size_t>(g)] > 0 || comes_next) return false;
    for (ZeroShard& shard : shards_[static_cast<size_t>(g)]) {
      if (shard.layout.parts == 1) continue;
      shard.gathering.wait();
      free_storage(shard.whole);
    }
    return true;
  });
}

Tensor Zero3::value(const Param& p) {
  const Place at = places_.at(&p);
  const ZeroShard& shard = shards_[at.group][at.shard];
  return gather(shard, shard.layout.slots[at.slot], my_values(shard));
}

std::unique_ptr<DataParallel> make_zero(int64_t stage, const Mesh& mesh, AllReduceOptions options,
                                        const ParamFactory& params) {
  switch (stage) {
    case 1:
      return std::make_unique<Zero1>(mesh, options, params);
    case 2:
      return std::make_unique<Zero2>(mesh, options, params);
    case 3:
      return std::make_unique<Zero3>(mesh, options, params);
    default:
      throw InternalError(text("ZeRO has no stage ", stage));
  }
}

}  // namespace kuafu
