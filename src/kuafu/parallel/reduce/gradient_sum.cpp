// SPDX-License-Identifier: Apache-2.0
//
// Sums over replicas by a named algorithm.
//
// Picture of "hierarchical" (2 nodes of 3 ranks, parts a b c of the gradients):
//
//   inside a node, ring reduce-scatter   rank 0: b  1: c  2: a     3: b  4: c  5: a
//   between nodes, ring all-reduce       0 <-> 3 on b     1 <-> 4 on c     2 <-> 5 on a
//   inside a node, ring all-gather       every rank: a b c
//
// Cost, bytes received a rank, B bytes of gradients, n = g m ranks on g nodes of m, |p_i| the i-th
// of m parts of B, |q_j| the j-th of g parts of my part p_{l+1}, l my place in the node:
//
//   ring           2B - |p_r| - |p_{r+1}| with n parts, 2 (n-1)/n B on average
//   tree           B from the parent and B from each child
//   hierarchical   intra 2B - |p_l| - |p_{l+1}|      2 (m-1)/m B
//                  inter 2|p_{l+1}| - |q_k| - |q_{k+1}|      2 (g-1)/g B/m, k my node
//
// So a link between nodes carries 1/m of what one rank's ring would.
// [Patarasuk and Yuan, JPDC 2009; Jia et al., arXiv 1807.11205, section 3.3]

#include "kuafu/parallel/reduce/gradient_sum.h"

#include <ATen/ATen.h>

#include <memory>
#include <utility>
#include <vector>

#include "kuafu/comm/algorithms/algorithms.h"
#include "kuafu/comm/algorithms/messages.h"
#include "kuafu/meter/allocator.h"

namespace kuafu {
namespace {

using algorithms::GroupRank;
using algorithms::Messages;
using algorithms::Program;
using algorithms::Range;

/// A program and the group it runs on.
struct Leg {
  Communicator* group;
  Program program;
};

/// Legs that follow each other on one buffer: a leg's first round is posted with the end of the last
/// round before it.
class LegRounds final : public SumRounds {
 public:
  LegRounds(std::vector<Leg> legs, const Tensor& flat, int tag)
      : legs_(std::move(legs)), flat_(flat), tag_(tag) {
    int64_t elements = 0;
    for (const Leg& leg : legs_) elements = std::max(elements, leg.program.scratch);
    const CategoryScope scope(Category::kCommunication);
    scratch_ = at::empty({elements}, flat.options().requires_grad(false));
    next_leg();
  }

  bool advance() override {
    if (running_ && !running_->advance()) next_leg();
    return running_ != nullptr;
  }

 private:
  void next_leg() {
    running_.reset();
    while (leg_ < legs_.size() && legs_[leg_].program.rounds.empty()) ++leg_;
    if (leg_ == legs_.size()) return;
    const Leg& leg = legs_[leg_++];
    const Messages::Memory memory{view(flat_), view(flat_), view(scratch_)};
    running_ = std::make_unique<Messages>(*leg.group, leg.program, memory, tag_,
                                          [memory](const algorithms::Local& local) {
                                            algorithms::work_locally(local, memory, ReduceOp::kSum);
                                          });
  }

  std::vector<Leg> legs_;
  Tensor flat_, scratch_;
  int tag_;
  size_t leg_ = 0;
  std::unique_ptr<Messages> running_;
};

PendingSum run(std::vector<Leg> legs, const Tensor& flat, int tag) {
  return PendingSum(std::make_unique<LegRounds>(std::move(legs), flat, tag));
}

GroupRank rank_in(const Communicator& group) { return {group.size(), group.rank()}; }

class Hierarchical {
 public:
  Hierarchical(Communicator& group, int64_t ranks_per_node) {
    const auto node = [members = group.members(), ranks_per_node](int r) {
      return static_cast<int>(members[static_cast<size_t>(r)] / ranks_per_node);
    };
    const auto place = [node](int r) {  // in the node: members stand in rank order
      int before = 0;
      while (before < r && node(r - before - 1) == node(r)) ++before;
      return before;
    };
    inside_ = group.split([node](int r) { return SplitKey{node(r), r}; });
    between_ = group.split([place](int r) { return SplitKey{place(r), r}; });
    inside_->meter(group.ledger(), group.label() + ".intra");
    between_->meter(group.ledger(), group.label() + ".inter");
  }

  PendingSum start(const Tensor& flat, int tag) const {
    const GroupRank me = rank_in(*inside_);
    const Range whole{0, flat.numel()}, mine = whole.part(me.next(), me.n);
    return run({{inside_.get(), algorithms::ring_sum_parts(me, whole)},
                {between_.get(), algorithms::ring_all_reduce(rank_in(*between_), mine)},
                {inside_.get(), algorithms::ring_share_parts(me, whole)}},
               flat, tag);
  }

 private:
  std::unique_ptr<Communicator> inside_, between_;
};

}  // namespace

GradientSum make_gradient_sum(const SumOptions& options, Communicator& group) {
  const auto flat_sum = [&group](auto algorithm) -> GradientSum {
    return [&group, algorithm](const Tensor& flat, int tag) {
      return run({{&group, algorithm(rank_in(group), Range{0, flat.numel()})}}, flat, tag);
    };
  };
  if (options.mode == "ring") {
    return flat_sum([](GroupRank me, Range all) { return algorithms::ring_all_reduce(me, all); });
  }
  if (options.mode == "tree") return flat_sum(&algorithms::tree_all_reduce);
  if (options.mode == "hierarchical") {
    return [sum = std::make_shared<Hierarchical>(group, options.ranks_per_node)](
               const Tensor& flat, int tag) { return sum->start(flat, tag); };
  }
  KUAFU_REQUIRE(options.mode == "auto", "no sum is called \"", options.mode,
                "\"; allowed: \"auto\", \"ring\", \"tree\", \"hierarchical\"");
  return [&group](const Tensor& flat, int) {
    return PendingSum(group.all_reduce(view(flat), ReduceOp::kSum));
  };
}

}  // namespace kuafu
