// SPDX-License-Identifier: Apache-2.0
//
// Every sequence mode on thread ranks against attention over the whole sample on one rank: the
// result, the gradients of blocks of all ranks, and what travelled.

#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include "kuafu/comm/simulated.h"
#include "kuafu/meter/book.h"
#include "kuafu/parallel/sequence/blocks.h"
#include "tests/support/ranks.h"
#include "tests/support/tensors.h"

namespace kuafu {
namespace {

struct Setting {
  const char* mode;
  int64_t ranks, sequence, heads, kv_heads;
  Mask mask = Mask::kCausal;
  Recompute recompute = Recompute::kNone;
  at::ScalarType dtype = at::kDouble;

  std::string name() const {
    return text(mode, " n", ranks, " S", sequence, " N", heads, "/", kv_heads,
                mask == Mask::kCausal ? " causal" : " full",
                recompute == Recompute::kSelective ? " selective" : "");
  }
};

constexpr int64_t kBatch = 2, kHeadDim = 4;

MakeAttention factory(const std::string& mode) {
  Registry<MakeAttention> modes("sequence mode");
  register_sequence_modes(modes);
  return modes.find(mode);
}

/// (B, N, S, D) over memory (B, S, N, D), of the whole sample, in the order of positions.
Tensor whole(const Setting& s, const std::string& name, int64_t heads) {
  const Mesh alone({}, 0);
  const Param p =
      tests::shard(name, {kBatch, s.sequence, heads, kHeadDim}, Layout::replicated(4), alone);
  return p.value.detach().to(s.dtype).to(at::kDouble).transpose(1, 2);
}

struct Inputs {
  Tensor q, k, v, dout;
  explicit Inputs(const Setting& s)
      : q(whole(s, "q", s.heads)),
        k(whole(s, "k", s.kv_heads)),
        v(whole(s, "v", s.kv_heads)),
        dout(whole(s, "dout", s.heads)) {}
};

struct Expected {
  Tensor out, dq, dk, dv;
};

Expected on_one_rank(const Setting& s) {
  const Inputs in(s);
  const bool causal = s.mask == Mask::kCausal;
  const ops::AttentionOut out = ops::attention(in.q, in.k, in.v, causal);
  const auto [dq, dk, dv] = ops::attention_backward(in.dout, in.q, in.k, in.v, out, causal);
  return {out.out, dq, dk, dv};
}

/// What one rank has of an attention: outputs and the bytes received, forward and backward apart.
struct Measured {
  Tensor out, dq, dk, dv;
  int64_t forward = 0, backward = 0;
};

class Rank {
 public:
  Rank(const Setting& s, Communicator& world)
      : me_({{"sequence", s.ranks}}, world),
        setting_(s),
        attention_(factory(s.mode)({me_.mesh, s.sequence, s.recompute})) {}

  /// The part of a whole tensor that this rank holds.
  Tensor mine(const Tensor& t) const {
    const Part p = nth_part(setting_.sequence, setting_.ranks, me_.mesh.coord("sequence"));
    std::vector<int64_t> order = attention_->order();
    if (order.empty()) return t.narrow(2, p.offset, p.extent);
    const std::vector<int64_t> places(order.begin() + p.offset,
                                      order.begin() + p.offset + p.extent);
    return t.index_select(2, at::tensor(places, at::kLong));
  }

  Measured run() {
    const Inputs in(setting_);
    const auto leaf = [&](const Tensor& t) {
      const Tensor part = mine(t).transpose(1, 2).contiguous().transpose(1, 2);
      return part.to(setting_.dtype).requires_grad_(true);
    };
    const Tensor q = leaf(in.q), k = leaf(in.k), v = leaf(in.v);
    Measured m;
    me_.ledger.clear();
    const Tensor out = attention_->attend(q, k, v, setting_.mask);
    m.forward = me_.received();
    torch::autograd::backward({out}, {mine(in.dout).to(setting_.dtype)});
    m.backward = me_.received() - m.forward;
    m.out = out.detach();
    m.dq = q.grad();
    m.dk = k.grad();
    m.dv = v.grad();
    return m;
  }

  const AttentionParallel& attention() const { return *attention_; }

 private:
  tests::MeshRank me_;
  Setting setting_;
  std::unique_ptr<AttentionParallel> attention_;
};

void expect_equal_to_one_rank(const Setting& s, double tolerance) {
  SCOPED_TRACE(s.name());
  const Expected e = on_one_rank(s);
  tests::run_ranks(static_cast<int>(s.ranks), [&](Communicator& world) {
    Rank rank(s, world);
    const Measured m = rank.run();
    // Relative to the whole tensor: a first token's dq is zero but for rounding.
    const auto check = [&](const Tensor& got, const Tensor& expected, const char* what) {
      const Tensor difference = got.to(at::kDouble) - rank.mine(expected);
      const double error = difference.abs().max().item<double>();
      EXPECT_LE(error, tolerance * expected.abs().max().item<double>())
          << what << ", rank " << world.rank();
    };
    check(m.out, e.out, "out");
    check(m.dq, e.dq, "dq");
    check(m.dk, e.dk, "dk");
    check(m.dv, e.dv, "dv");
  });
}

/// Chains of sums of at most S terms (scores D, softmax S, gradients S N/Nkv), and one more sum a
/// block.
double tolerance_of(const Setting& s) {
  return 16 * tests::kEps * static_cast<double>(s.sequence * s.heads / s.kv_heads + s.ranks);
}

const std::vector<const char*> kModes = {"ring", "ring-zigzag", "ulysses", "all-gather"};

TEST(SequenceAttention, EqualsOneRankOnEvenAndUnevenParts) {
  for (const char* mode : kModes) {
    for (const auto& [ranks, sequence] :
         {std::pair{1, 6}, {2, 8}, {2, 9}, {3, 13}, {5, 5}, {5, 17}, {8, 19}, {8, 32}}) {
      for (const Mask mask : {Mask::kCausal, Mask::kNone}) {
        const int64_t heads = std::string(mode) == "ulysses" ? ranks : 2;
        const Setting s{mode, ranks, sequence, heads, heads, mask};
        expect_equal_to_one_rank(s, tolerance_of(s));
      }
    }
  }
}

TEST(SequenceAttention, SharesKeyValueHeads) {
  for (const char* mode : kModes) {
    for (const int64_t kv_heads : {1, 2, 4, 8}) {
      const Setting s{mode, 4, 14, 8, kv_heads};
      expect_equal_to_one_rank(s, tolerance_of(s));
    }
  }
}

TEST(SequenceAttention, EqualsOneRankUnderSelectiveRecomputation) {
  for (const char* mode : kModes) {
    for (const Mask mask : {Mask::kCausal, Mask::kNone}) {
      const Setting s{mode, 3, 11, 6, 3, mask, Recompute::kSelective};
      expect_equal_to_one_rank(s, tolerance_of(s));
    }
  }
}

// Inputs are rounded to 8 bits alike; the weights, the result and each gradient are rounded to 8
// bits once, sums are f32: a few halves of 2^-8 of the largest element.
TEST(SequenceAttention, KeepsSumsOfHalfPrecisionInF32) {
  for (const char* mode : kModes) {
    const Setting s{mode, 4, 30, 4, 2, Mask::kCausal, Recompute::kNone, at::kBFloat16};
    expect_equal_to_one_rank(s, 4 * 0x1.0p-8);
  }
}

void expect_cost(const Setting& s) {
  SCOPED_TRACE(s.name());
  tests::run_ranks(static_cast<int>(s.ranks), [&](Communicator& world) {
    Rank rank(s, world);
    const Measured m = rank.run();
    const AttentionCost c =
        rank.attention().cost({kBatch, s.heads, s.kv_heads, kHeadDim, s.sequence, s.mask});
    EXPECT_EQ(m.forward, 8 * c.forward) << "rank " << world.rank();
    EXPECT_EQ(m.backward, 8 * c.backward) << "rank " << world.rank();
  });
}

TEST(SequenceAttention, ReceivesWhatItsCostSays) {
  for (const char* mode : kModes) {
    for (const auto& [ranks, sequence] : {std::pair{1, 6}, {2, 9}, {3, 12}, {4, 14}, {8, 19}}) {
      for (const Mask mask : {Mask::kCausal, Mask::kNone}) {
        expect_cost({mode, ranks, sequence, 8 * ranks, ranks, mask});
      }
    }
    expect_cost({mode, 4, 14, 8, 2, Mask::kCausal, Recompute::kSelective});
  }
}

TEST(SequenceAttention, SendsSumsOfHalfPrecisionInF32) {
  for (const char* mode : kModes) {
    const Setting s{mode, 3, 11, 6, 3, Mask::kCausal, Recompute::kNone, at::kBFloat16};
    SCOPED_TRACE(s.name());
    tests::run_ranks(3, [&](Communicator& world) {
      Rank rank(s, world);
      const Measured m = rank.run();
      const AttentionCost c = rank.attention().cost({kBatch, 6, 3, kHeadDim, 11, s.mask});
      EXPECT_EQ(m.forward, 2 * c.forward);
      EXPECT_EQ(m.backward, 2 * c.backward + 2 * c.backward_sums);
    });
  }
}

struct Counts {
  std::map<std::string, AxisLedger> axes;
  int64_t flops = 0, recomputed = 0, peak = 0, live = 0;
};

Counts count(const Setting& s, Communicator& world, at::Device device) {
  RankBook book(world.rank());
  const BookScope booked(&book);
  tests::MeshRank me({{"sequence", s.ranks}}, world);
  const auto attention = factory(s.mode)({me.mesh, s.sequence, s.recompute});
  const int64_t tokens = nth_part(s.sequence, s.ranks, world.rank()).extent;
  const auto leaf = [&](int64_t heads) {
    const Tensor t =
        at::zeros({kBatch, tokens, heads, kHeadDim}, at::TensorOptions(at::kFloat).device(device));
    return t.transpose(1, 2).requires_grad_(true);
  };
  {
    const CategoryScope scope(Category::kActivation);
    const Tensor q = leaf(s.heads), k = leaf(s.kv_heads), v = leaf(s.kv_heads);
    const Tensor out = attention->attend(q, k, v, s.mask);
    torch::autograd::backward({out}, {at::ones_like(out)});
  }
  return {me.ledger.axes(), book.flops(), book.flops_recomputed(), book.peak(), book.live()};
}

TEST(SequenceAttention, CountsOnMetaWhatThreadsCount) {
  for (const char* mode : kModes) {
    for (const Recompute recompute : {Recompute::kNone, Recompute::kSelective}) {
      for (const Mask mask : {Mask::kCausal, Mask::kNone}) {
        const Setting s{mode, 4, 150, 8, 2, mask, recompute};
        std::vector<Counts> real(4);
        tests::run_ranks(4, [&](Communicator& world) {
          real[static_cast<size_t>(world.rank())] = count(s, world, at::kCPU);
        });
        SimulatedWorld simulated(4);
        for (size_t r = 0; r < 4; ++r) {
          SCOPED_TRACE(text(s.name(), ", rank ", r));
          const auto world = simulated.communicator(static_cast<int>(r));
          const Counts counts = count(s, *world, at::kMeta);
          EXPECT_EQ(counts.axes, real[r].axes);
          EXPECT_EQ(counts.flops, real[r].flops);
          EXPECT_EQ(counts.recomputed, real[r].recomputed);
          EXPECT_EQ(counts.peak, real[r].peak);
          EXPECT_EQ(real[r].live, 0);
        }
      }
    }
  }
}

int64_t flops_of_rank(const std::string& mode, int rank, int64_t ranks, int64_t sequence) {
  SimulatedWorld world(static_cast<int>(ranks));
  const Setting s{mode.c_str(), ranks, sequence, 8, 8};
  return count(s, *world.communicator(rank), at::kMeta).flops;
}

// In units of half a block of L x L scores, forward and backward.
TEST(SequenceAttention, CausalRingWorksMoreOnLaterRanksAndZigzagAlike) {
  const int64_t n = 4, tokens = 16;
  const int64_t half = 3 * 4 * kBatch * 8 * tokens * tokens * kHeadDim / 2;
  int64_t sum = 0;
  for (int r = 0; r < n; ++r) {
    const int64_t plain = flops_of_rank("ring", r, n, n * tokens);
    EXPECT_EQ(plain, half * (1 + 2 * r));
    EXPECT_EQ(flops_of_rank("ring-zigzag", r, n, n * tokens), half * n);
    EXPECT_EQ(flops_of_rank("ulysses", r, n, n * tokens), half * n);
    EXPECT_EQ(flops_of_rank("all-gather", r, n, n * tokens), plain);
    sum += plain;
  }
  EXPECT_EQ(sum, half * n * n);  // one rank's work, dealt out
}

// Keys and values of other ranks are not kept, nor scores of all tokens: for twice the ranks half
// the memory. All-gather holds keys, values and their gradients of the whole sample.
TEST(SequenceAttention, MemoryFallsWithTheDegree) {
  const auto peak = [](const char* mode, int64_t ranks) {
    SimulatedWorld world(static_cast<int>(ranks));
    return count({mode, ranks, 4096, 16, 16}, *world.communicator(static_cast<int>(ranks) - 1),
                 at::kMeta)
        .peak;
  };
  for (const char* mode : {"ring", "ring-zigzag", "ulysses"}) {
    // Two ranks have fewer blocks under way at a time than four.
    EXPECT_LE(peak(mode, 4), 0.6 * static_cast<double>(peak(mode, 2))) << mode;
    EXPECT_LE(peak(mode, 8), 0.51 * static_cast<double>(peak(mode, 4))) << mode;
    EXPECT_LE(peak(mode, 16), 0.51 * static_cast<double>(peak(mode, 8))) << mode;
  }
  EXPECT_LT(peak("ring", 8), peak("all-gather", 8));
}

TEST(ZigzagOrder, PairsEarlyAndLateTokensOfAnyLength) {
  EXPECT_EQ(zigzag_order(8, 2), (std::vector<int64_t>{0, 1, 6, 7, 2, 3, 4, 5}));
  for (const auto& [sequence, n] : {std::pair{5, 5}, {7, 3}, {19, 8}, {64, 4}}) {
    std::vector<int64_t> order = zigzag_order(sequence, n);
    for (int64_t r = 0; r < n; ++r) {  // within a rank positions rise: its own block is causal
      const Part p = nth_part(sequence, n, r);
      EXPECT_TRUE(std::is_sorted(order.begin() + p.offset, order.begin() + p.offset + p.extent));
    }
    std::sort(order.begin(), order.end());
    for (int64_t i = 0; i < sequence; ++i) EXPECT_EQ(order[static_cast<size_t>(i)], i);
  }
}

TEST(Ulysses, RefusesHeadsThatItCannotDealOut) {
  const Mesh mesh({{"sequence", 4}}, 0);
  const auto attention = make_ulysses_attention({mesh, 16, Recompute::kNone});
  EXPECT_THROW(attention->check(6, 6), NotDivisible);
  EXPECT_THROW(attention->check(2, 2), NotDivisible);
  EXPECT_THROW(attention->check(12, 3), NotDivisible);
  EXPECT_NO_THROW(attention->check(8, 2));
  EXPECT_NO_THROW(attention->check(8, 8));
}

}  // namespace
}  // namespace kuafu
