// SPDX-License-Identifier: Apache-2.0
//
// Tokens for heads and back, on parts that differ by one.

#include "kuafu/parallel/sequence/exchange.h"

#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "tests/support/ranks.h"

namespace kuafu {
namespace {

/// Element (b, n, s, d) = its index in the whole tensor.
Tensor counted(int64_t batch, int64_t heads, int64_t sequence, int64_t dim) {
  return at::arange(batch * heads * sequence * dim, at::kDouble)
      .view({batch, heads, sequence, dim});
}

TEST(HeadExchange, GivesEachRankItsHeadsOfAllTokensAndBack) {
  for (const int64_t batch : {1, 2}) {
    for (const int64_t sequence : {6, 7, 8}) {
      const Tensor whole = counted(batch, 6, sequence, 2), other = counted(batch, 3, sequence, 2);
      tests::run_ranks(3, [&](Communicator& world) {
        const tests::MeshRank me({{"sequence", 3}}, world);
        const HeadExchange exchange(me.mesh, sequence);
        const Part p = exchange.tokens();
        const Tensor a = whole.narrow(2, p.offset, p.extent),
                     b = other.narrow(2, p.offset, p.extent);
        const int64_t rank = world.rank();
        const Tensor mine = exchange.to_heads({a, b});
        EXPECT_TRUE(at::equal(mine.narrow(1, 0, 2), whole.narrow(1, 2 * rank, 2)));
        EXPECT_TRUE(at::equal(mine.narrow(1, 2, 1), other.narrow(1, rank, 1)));
        const Tensors back =
            exchange.to_tokens({mine.narrow(1, 0, 2), mine.narrow(1, 2, 1)}, {6, 3});
        EXPECT_TRUE(at::equal(back[0], a));
        EXPECT_TRUE(at::equal(back[1], b));
      });
    }
  }
}

TEST(HeadExchange, CopiesHeadsThatRanksOutnumberAndSumsTheirGradients) {
  const Tensor whole = counted(2, 2, 9, 3);
  tests::run_ranks(4, [&](Communicator& world) {
    const tests::MeshRank me({{"sequence", 4}}, world);
    const HeadExchange exchange(me.mesh, 9);
    const Part p = exchange.tokens();
    const Tensor a = whole.narrow(2, p.offset, p.extent);
    const Tensor mine = exchange.to_heads({a});
    EXPECT_TRUE(at::equal(mine, whole.narrow(1, world.rank() / 2, 1)));
    EXPECT_TRUE(at::equal(exchange.to_tokens({mine}, {2})[0], 2 * a));
  });
}

}  // namespace
}  // namespace kuafu
