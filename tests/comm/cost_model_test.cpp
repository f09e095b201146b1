// SPDX-License-Identifier: Apache-2.0
#include "kuafu/comm/cost_model.h"

#include <gtest/gtest.h>

namespace kuafu {
namespace {

constexpr Link kLink{1000, 1'000'000'000};  // 1 ns, 1 byte a ns
constexpr Verb kCollectives[] = {Verb::kBroadcast, Verb::kReduce,        Verb::kAllReduce,
                                 Verb::kAllGather, Verb::kReduceScatter, Verb::kAllToAll,
                                 Verb::kBarrier};

TEST(CostModel, PricesAreTheClosedForms) {
  EXPECT_EQ(price_ps(Verb::kSend, 50, 2, kLink), 1000 + 50'000);
  EXPECT_EQ(price_ps(Verb::kAllReduce, 800, 4, kLink), 6 * (1000 + 200'000));
  EXPECT_EQ(price_ps(Verb::kAllGather, 800, 4, kLink), 3 * (1000 + 200'000));
  EXPECT_EQ(price_ps(Verb::kReduceScatter, 801, 4, kLink), 3 * (1000 + 201'000));
  EXPECT_EQ(price_ps(Verb::kAllToAll, 800, 4, kLink), 3 * (1000 + 200'000));
  EXPECT_EQ(price_ps(Verb::kBroadcast, 800, 4, kLink), 3 * 1000 + 800'000);
  EXPECT_EQ(price_ps(Verb::kReduce, 800, 4, kLink), 3 * 1000 + 800'000);
  for (const auto& [n, rounds] : {std::pair{2, 1}, {3, 2}, {4, 2}, {5, 3}, {8, 3}, {9, 4}}) {
    EXPECT_EQ(price_ps(Verb::kBarrier, 0, n, kLink), rounds * 1000) << n << " ranks";
  }
}

TEST(CostModel, OneRankIsFree) {
  for (const Verb verb : kCollectives) EXPECT_EQ(price_ps(verb, 1000, 1, kLink), 0);
}

TEST(CostModel, PricesOfHugeTransfersDoNotOverflow) {
  const Link slow{0, 1000};
  EXPECT_EQ(transfer_ps(slow, 9'000'000'000), 9'000'000'000 * 1'000'000'000);
  EXPECT_EQ(transfer_ps(kLink, 1), 1000);
  EXPECT_EQ(transfer_ps({0, 3}, 1), 333'333'333'334);  // rounded up
  EXPECT_THROW(transfer_ps({0, 0}, 1), ConfigError);
}

TEST(CostModel, GroupsThatCrossNodesPayTheSlowerLink) {
  const CostModel model{{1, 10}, {2, 5}, 4};
  EXPECT_EQ(model.link(0, 3), model.intra_node);
  EXPECT_EQ(model.link(3, 4), model.inter_node);
  EXPECT_EQ(model.link({4, 5, 7}), model.intra_node);
  EXPECT_EQ(model.link({4, 5, 8}), model.inter_node);
}

// What all ranks together send, they receive, for every verb, root and odd size.
TEST(Convention, SendsWhatItReceives) {
  for (const int n : {1, 2, 3, 5, 8}) {
    for (const int64_t count : {0, 1, 2, 3, 7, 1000}) {
      for (int root = 0; root < n; ++root) {
        for (const Verb verb : {Verb::kBroadcast, Verb::kReduce, Verb::kAllReduce}) {
          const Buffer b{.count = count, .dtype = DType::kBF16};
          int64_t sent = 0, received = 0, messages = 0;
          for (int r = 0; r < n; ++r) {
            const WireTraffic t = convention({.verb = verb, .out = b, .in = b, .root = root}, n, r);
            sent += t.sent;
            received += t.received;
            messages += t.messages;
            EXPECT_EQ(t.messages > 0, t.sent > 0);
          }
          EXPECT_EQ(sent, received);
          const int64_t passes = verb == Verb::kAllReduce ? 2 * (n - 1) : n - 1;
          EXPECT_EQ(received, passes * b.bytes()) << to_string(verb) << " on " << n;
          const int64_t whole = verb == Verb::kAllReduce ? std::min<int64_t>(count, n) : count > 0;
          EXPECT_EQ(messages, passes * whole);
        }
      }
    }
  }
}

}  // namespace
}  // namespace kuafu
