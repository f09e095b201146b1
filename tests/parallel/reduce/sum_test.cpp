// SPDX-License-Identifier: Apache-2.0
#include "kuafu/parallel/reduce/sum.h"

#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include <cmath>

#include "kuafu/comm/simulated.h"
#include "tests/support/ranks.h"
#include "tests/support/tensors.h"

namespace kuafu {
namespace {

constexpr int64_t kPart = 7;

/// What rank r adds: numbers of many sizes, so that the order of additions shows in the bits.
Tensor addend(int r, int64_t count, at::ScalarType type) {
  const Tensor t = at::empty({count}, at::TensorOptions(at::kDouble));
  for (int64_t i = 0; i < count; ++i) {
    t[i] = std::sin(static_cast<double>(7 * r + i) + 0.5) * std::pow(10.0, (r + i) % 5);
  }
  return t.to(type);
}

/// ((a0 + a1) + a2) + ..., halves in f32.
Tensor in_rank_order(int n, int64_t count, at::ScalarType type) {
  const at::ScalarType wide = type == at::kBFloat16 ? at::kFloat : type;
  Tensor sum = addend(0, count, type).to(wide);
  for (int r = 1; r < n; ++r) sum = sum + addend(r, count, type).to(wide);
  return sum.to(type);
}

TEST(SumInRankOrder, HasTheBitsOfTheSequentialSumForEveryLength) {
  for (const int n : {1, 2, 3, 5}) {
    for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kBFloat16}) {
      for (const int64_t count : {int64_t{1}, int64_t{n}, int64_t{23}}) {
        tests::run_ranks(n, [&](Communicator& world) {
          const Tensor flat = addend(world.rank(), count, type);
          sum_everywhere(flat, world, SumOrder::kRank).wait();
          EXPECT_TRUE(tests::is_same(flat, in_rank_order(n, count, type))) << n << ", " << count;
        });
      }
    }
  }
}

TEST(SumInParts, IsMyPartOfTheSumInPlaceOrNot) {
  for (const SumOrder order : {SumOrder::kAny, SumOrder::kRank}) {
    for (const int n : {1, 2, 3, 5}) {
      tests::run_ranks(n, [&](Communicator& world) {
        const Tensor expected =
            in_rank_order(n, n * kPart, at::kDouble).narrow(0, world.rank() * kPart, kPart);
        const double bound = tests::kEps * n;  // n - 1 additions
        const Tensor flat = addend(world.rank(), n * kPart, at::kDouble);
        const Tensor out = at::empty({kPart}, flat.options());
        sum_in_parts(out, flat.clone(), world, order).wait();
        EXPECT_LE((out - expected).abs().max().item<double>(), bound * 1e4 * n);
        const Tensor mine = flat.narrow(0, world.rank() * kPart, kPart);
        sum_in_parts(mine, flat, world, order).wait();
        EXPECT_TRUE(tests::is_same(mine, out));
        if (order == SumOrder::kRank) {
          EXPECT_TRUE(tests::is_same(out, expected.contiguous()));
        }
      });
    }
  }
}

// Both orders receive (n-1)/n of the buffer, twice where everybody gets the sum.
TEST(SumInRankOrder, ReceivesWhatAReduceScatterDoes) {
  for (const int n : {2, 3, 5}) {
    for (const SumOrder order : {SumOrder::kAny, SumOrder::kRank}) {
      for (int rank = 0; rank < n; ++rank) {
        SimulatedWorld world(n);
        Ledger ledger;
        const auto me = world.communicator(rank);
        me->meter(&ledger, "data");
        const Tensor flat =
            at::empty({n * kPart}, at::TensorOptions(at::kDouble).device(at::kMeta));
        sum_in_parts(flat.narrow(0, rank * kPart, kPart), flat, *me, order).wait();
        EXPECT_EQ(ledger.axis("data").bytes_received, (n - 1) * kPart * 8);
        sum_everywhere(flat, *me, order).wait();
        EXPECT_EQ(ledger.axis("data").bytes_received, 3 * (n - 1) * kPart * 8);
      }
    }
  }
}

TEST(PendingSum, RunsWhatFollowsInOrder) {
  std::vector<int> steps;
  PendingSum sum(Work(), [&] { steps.push_back(1); });
  sum.then([&] { steps.push_back(2); });
  sum.wait();
  const std::vector<int> expected = {1, 2};
  EXPECT_EQ(steps, expected);
}

}  // namespace
}  // namespace kuafu
