// SPDX-License-Identifier: Apache-2.0
#include "kuafu/parallel/reduce/gradient_sum.h"

#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "kuafu/comm/simulated.h"
#include "kuafu/meter/book.h"
#include "tests/parallel/reduce/closed_forms.h"
#include "tests/support/ranks.h"

namespace kuafu {
namespace {

using tests::Sent;

struct Case {
  const char* mode;
  int ranks;
  int per_node;
};
std::ostream& operator<<(std::ostream& out, const Case& c) {
  return out << c.mode << c.ranks << "_" << c.per_node;
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const int n : {1, 2, 3, 4, 5, 6, 7, 8}) {
    for (const char* mode : {"auto", "ring", "tree"}) all.push_back({mode, n, 8});
    for (int m = 1; m <= n; ++m) {
      if (n % m == 0) all.push_back({"hierarchical", n, m});
    }
  }
  return all;
}

/// Element i of rank r: sums are exact in any order.
Tensor values(int64_t elements, int r) {
  return at::arange(elements, at::kDouble).mul_(3).add_(100 * r + 1);
}

class Sums : public testing::TestWithParam<Case> {
 protected:
  std::map<std::string, Sent> expected(int64_t elements, int r) const {
    const auto [mode, n, m] = GetParam();
    if (std::string(mode) == "tree") return {{"data", tests::tree(elements, n, r)}};
    if (std::string(mode) != "hierarchical") return {{"data", tests::ring(elements, n, r)}};
    return {{"data", {}},
            {"data.intra", tests::intra(elements, m, r)},
            {"data.inter", tests::inter(elements, n, m, r)}};
  }
};

TEST_P(Sums, AreThoseOfAllRanksAndSendTheClosedForm) {
  const Case c = GetParam();
  for (const int64_t elements : {0, 1, 3, 17, 240, 5003}) {
    tests::run_ranks(c.ranks, [&](Communicator& world) {
      Ledger ledger;
      world.meter(&ledger, "data");
      const auto sum = make_gradient_sum({c.mode, c.per_node}, world);
      const Tensor mine = values(elements, world.rank());
      sum(mine, 3).wait();
      Tensor all = values(elements, 0);
      for (int r = 1; r < c.ranks; ++r) all = all + values(elements, r);
      EXPECT_TRUE(at::equal(mine, all)) << elements << " on rank " << world.rank();
      const auto forms = expected(elements, world.rank());
      EXPECT_EQ(ledger.axes().size(), forms.size());
      for (const auto& [label, form] : forms) {
        const Sent sent = tests::of(ledger.axis(label));
        EXPECT_EQ(sent.sent, form.sent) << label << ", " << elements;
        EXPECT_EQ(sent.received, form.received) << label << ", " << elements;
        EXPECT_EQ(sent.messages, form.messages) << label << ", " << elements;
      }
      world.meter(nullptr, "");
    });
  }
}

// Several under way at once, each a round further where the next one starts.
TEST_P(Sums, DoNotMixWhenTheyOverlap) {
  const Case c = GetParam();
  constexpr int kSums = 5;
  tests::run_ranks(c.ranks, [&](Communicator& world) {
    const auto sum = make_gradient_sum({c.mode, c.per_node}, world);
    std::vector<Tensor> mine;
    std::vector<PendingSum> sums;
    for (int k = 0; k < kSums; ++k) {
      mine.push_back(values(700 + 900 * k, world.rank() + k));
      for (PendingSum& before : sums) before.advance();
      sums.push_back(sum(mine.back(), k));
    }
    for (PendingSum& under_way : sums) under_way.wait();
    for (int k = 0; k < kSums; ++k) {
      Tensor all = values(700 + 900 * k, k);
      for (int r = 1; r < c.ranks; ++r) all = all + values(700 + 900 * k, r + k);
      EXPECT_TRUE(at::equal(mine[static_cast<size_t>(k)], all)) << k;
    }
  });
}

TEST_P(Sums, RepeatBitForBit) {
  const Case c = GetParam();
  std::vector<Tensor> first(static_cast<size_t>(c.ranks));
  for (const bool is_again : {false, true}) {
    tests::run_ranks(c.ranks, [&](Communicator& world) {
      const auto sum = make_gradient_sum({c.mode, c.per_node}, world);
      const Tensor mine = values(1009, world.rank()).div_(7).to(at::kFloat);
      sum(mine, 0).wait();
      Tensor& before = first[static_cast<size_t>(world.rank())];
      EXPECT_TRUE(!is_again || at::equal(mine, before));
      before = mine.clone();
    });
    for (const Tensor& t : first) EXPECT_TRUE(at::equal(t, first[0])) << "ranks must agree";
  }
}

INSTANTIATE_TEST_SUITE_P(All, Sums, testing::ValuesIn(cases()),
                         [](const auto& info) { return testing::PrintToString(info.param); });

TEST(GradientSum, OfAnUnknownModeListsThem) {
  tests::run_ranks(1, [](Communicator& world) {
    try {
      make_gradient_sum({"star", 8}, world);
      ADD_FAILURE() << "a star was made";
    } catch (const ConfigError& e) {
      EXPECT_NE(std::string(e.what()).find("hierarchical"), std::string::npos) << e.what();
    }
  });
}

// Nodes of three on eight ranks are unequal, and a plan refuses them; but two groups of four ranks
// that lie across nodes of two are fine: what counts is where the group's own ranks are.
TEST(GradientSum, CountsTheRanksOfItsGroupOnANode) {
  tests::run_ranks(8, [](Communicator& world) {
    const auto group = world.split([](int r) { return SplitKey{r % 2, r}; });  // 0 2 4 6, 1 3 5 7
    Ledger ledger;
    group->meter(&ledger, "data");
    const auto sum = make_gradient_sum({"hierarchical", 4}, *group);  // two of the group on a node
    const Tensor mine = values(41, world.rank());
    sum(mine, 0).wait();
    EXPECT_EQ(tests::of(ledger.axis("data.intra")), tests::intra(41, 2, group->rank()));
    EXPECT_EQ(tests::of(ledger.axis("data.inter")), tests::inter(41, 4, 2, group->rank()));
    group->meter(nullptr, "");
  });
}

}  // namespace
}  // namespace kuafu
