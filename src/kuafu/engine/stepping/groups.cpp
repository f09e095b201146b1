// SPDX-License-Identifier: Apache-2.0
#include "kuafu/engine/stepping/groups.h"

#include <algorithm>
#include <set>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "kuafu/meter/allocator.h"
#include "kuafu/tensor/collectives.h"

namespace kuafu {
namespace {

bool contains(const std::vector<Param*>& params, const Param* p) {
  return std::find(params.begin(), params.end(), p) != params.end();
}

}  // namespace

BlockGroups::BlockGroups(Model& model, const StageMap& map, int pipeline_rank, Recompute recompute)
    : map_(map), rank_(pipeline_rank), recompute_(recompute) {
  find_ties(model, map);
  std::set<const Param*> tied;
  for (const Tied& t : ties_) tied.insert(t.params.begin(), t.params.end());
  used_.resize(blocks_.size());
  tied_.resize(blocks_.size());
  for (size_t b = 0; b < blocks_.size(); ++b) {
    if (map.rank_of(b) != rank_) continue;
    HeldGroup held{.block = b};
    for (Param* p : blocks_[b]->params()) {
      if (tied.count(p) == 0) held.params.push_back(p);
    }
    held_.push_back(std::move(held));
  }
  std::map<const Param*, int> group_of;
  for (size_t g = 0; g < held_.size(); ++g) {
    for (const Param* p : held_[g].params) group_of[p] = static_cast<int>(g);
  }
  for (size_t g = 0; g < held_.size(); ++g) {
    const size_t b = held_[g].block;
    std::set<int> groups = {static_cast<int>(g)};
    for (const Param* p : blocks_[b]->borrowed()) {
      const auto found = group_of.find(p);
      if (found == group_of.end() || !groups.insert(found->second).second) continue;
      ++held_[static_cast<size_t>(found->second)].num_users;
    }
    used_[b].assign(groups.begin(), groups.end());
  }
  int next = static_cast<int>(held_.size());
  for (Tied& tie : ties_) {
    if (std::find(tie.ranks.begin(), tie.ranks.end(), rank_) == tie.ranks.end()) continue;
    tie.group = next++;
    for (size_t b = 0; b < blocks_.size(); ++b) {
      if (map.rank_of(b) != rank_) continue;
      std::vector<Param*> mine = blocks_[b]->params();
      for (Param* p : blocks_[b]->borrowed()) mine.push_back(p);
      const bool is_user = std::any_of(mine.begin(), mine.end(),
                                       [&](const Param* p) { return contains(tie.params, p); });
      if (is_user) tied_[b].push_back(tie.group);
    }
  }
}

/// Sets of ranks that hold the same parameters, by owner and in the order of the model.
void BlockGroups::find_ties(Model& model, const StageMap& map) {
  std::map<Param*, int> owner;
  for (size_t b = 0; b < model.blocks.size(); ++b) {
    blocks_.push_back(model.blocks[b].get());
    for (Param* p : model.blocks[b]->params()) owner[p] = map.rank_of(b);
  }
  std::vector<std::pair<Param*, std::set<int>>> holders;
  for (size_t b = 0; b < blocks_.size(); ++b) {
    for (Param* p : blocks_[b]->borrowed()) {
      KUAFU_CHECK(owner.count(p) > 0, blocks_[b]->name(), " borrows ", p->name,
                  ", which no block owns");
      auto found =
          std::find_if(holders.begin(), holders.end(), [p](const auto& h) { return h.first == p; });
      if (found == holders.end()) found = holders.insert(holders.end(), {p, {owner[p]}});
      found->second.insert(map.rank_of(b));
    }
  }
  for (const auto& [p, ranks] : holders) {
    if (ranks.size() == 1) continue;
    p->is_copy = owner[p] != rank_;
    const std::vector<int> list(ranks.begin(), ranks.end());
    const auto same =
        std::find_if(ties_.begin(), ties_.end(), [&](const Tied& t) { return t.ranks == list; });
    if (same != ties_.end()) {
      same->params.push_back(p);
    } else {
      ties_.push_back(Tied{list, {p}, nullptr, -1});
    }
  }
}

void BlockGroups::materialise(const ParamFactory& factory) {
  std::set<const Param*> copies;
  for (const HeldGroup& held : held_) {
    blocks_[held.block]->materialise(factory);
    for (Param* p : blocks_[held.block]->borrowed()) {
      if (p->is_copy && copies.insert(p).second) factory.materialise(*p);
    }
  }
}

void BlockGroups::connect(const Mesh& mesh, Store& store) {
  store_ = &store;
  std::vector<Group> groups;
  for (const HeldGroup& held : held_) groups.push_back({blocks_[held.block]->name(), held.params});
  for (Tied& tie : ties_) {
    const auto is_in = [&tie](int r) {
      return std::find(tie.ranks.begin(), tie.ranks.end(), r) != tie.ranks.end();
    };
    Communicator& all = mesh.comm("pipeline");
    tie.comm = all.split([is_in](int r) { return SplitKey{is_in(r) ? 0 : -1, r}; });
    if (tie.comm == nullptr) continue;
    tie.comm->meter(all.ledger(), "pipeline");
    groups.push_back({text("tied.", groups.size()), tie.params});
  }
  store.attach(std::move(groups));
}

std::vector<Param*> BlockGroups::params() const {
  std::vector<Param*> all;
  for (const HeldGroup& held : held_) {
    for (Param* p : blocks_[held.block]->params()) all.push_back(p);
    for (Param* p : blocks_[held.block]->borrowed()) {
      if (p->is_copy && !contains(all, p)) all.push_back(p);
    }
  }
  return all;
}

GroupSet BlockGroups::groups_of(size_t block, BlockUse use) const {
  const bool is_read = use == BlockUse::kForward || recompute_ == Recompute::kFull ||
                       blocks_[block]->backward_reads_parameters();
  if (!is_read) return {};
  GroupSet all = used_[block];
  all.insert(all.end(), tied_[block].begin(), tied_[block].end());
  return all;
}

void BlockGroups::expect(const pipeline::Row& row) {
  std::vector<GroupSet> uses;
  Tiers::Then then = Tiers::Then::kNothing;
  for (const pipeline::Action& a : row) {
    const bool is_forward = a.op == pipeline::Op::kForward;
    if (!is_forward && a.op != pipeline::Op::kBackward && a.op != pipeline::Op::kInputGrad) {
      continue;
    }
    if (!is_forward) then = Tiers::Then::kUpdate;
    const auto stage = static_cast<size_t>(a.stage);
    const size_t first = map_.first_block[stage], end = map_.first_block[stage + 1];
    for (size_t i = first; i < end; ++i) {
      uses.push_back(is_forward ? groups_of(i, BlockUse::kForward)
                                : groups_of(first + end - 1 - i, BlockUse::kBackward));
    }
  }
  store_->expect(std::move(uses), then);
}

void BlockGroups::acquire(size_t block, BlockUse use) {
  if (between_blocks_) between_blocks_();
  store_->acquire(groups_of(block, use));
}

void BlockGroups::release(size_t block, BlockUse use) { store_->release(groups_of(block, use)); }

void BlockGroups::begin(int64_t micro_batches) {
  micro_batches_ = micro_batches;
  for (HeldGroup& held : held_) held.num_ready = 0;
}

void BlockGroups::gradients_ready(size_t block, int micro_batch) {
  if (between_blocks_) between_blocks_();
  for (const int g : used_[block]) {
    HeldGroup& held = held_[static_cast<size_t>(g)];
    const auto [left, is_first] = held.left.try_emplace(micro_batch, held.num_users);
    if (--left->second > 0) continue;
    held.left.erase(left);
    store_->ready(g, ++held.num_ready == micro_batches_);
  }
}

std::vector<ParamShard> BlockGroups::finish() {
  const at::NoGradGuard no_grad;
  for (const Tied& tie : ties_) {
    if (tie.group < 0) continue;
    for (Param* p : tie.params) {
      if (!p->value.grad().defined()) {
        const CategoryScope scope(Category::kGradient);
        p->value.mutable_grad() = at::zeros_like(p->value);
      }
      raw::all_reduce(p->value.grad(), *tie.comm);
    }
    store_->ready(tie.group, true);
  }
  return store_->finish();
}

}  // namespace kuafu
