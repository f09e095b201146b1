// SPDX-License-Identifier: Apache-2.0
//
// Routing, and rows in and out of experts' slots, against plain loops in a wider type.
#include "kuafu/kernels/experts.h"

#include <numeric>

#include "tests/kernels/wide.h"

namespace kuafu {
namespace {

using test::is_near;
using test::spread;
using test::Wide;

template <class T>
class Experts : public testing::Test {};
using Types = testing::Types<float, double>;
TYPED_TEST_SUITE(Experts, Types);

/// What route() gives.
template <class T>
struct Routed {
  Routed(const kernels::RouteShape& n, const std::vector<T>& logits, const double* coin)
      : gates(size_t(n.samples * n.experts * n.slots)),
        losses(2),
        probs(logits.size()),
        lse(size_t(n.samples * n.tokens)),
        norm(lse.size()),
        share(size_t(n.samples * n.experts)),
        token(gates.size()),
        chosen(size_t(n.samples * n.tokens * std::max<int64_t>(1, n.top_k))),
        counts(size_t(2 * n.experts + 2)) {
    kernels::route(n, kernels::RouteArrays<T>{logits.data(), coin, gates.data(), losses.data(),
                                              probs.data(), lse.data(), norm.data(), share.data(),
                                              token.data(), chosen.data(), counts.data()});
  }
  std::vector<T> gates, losses, probs, lse, norm, share;
  std::vector<int64_t> token, chosen, counts;
};

/// Indices 0 .. n - 1 by falling score, the first of equal ones first.
template <class Score>
std::vector<int64_t> best_first(int64_t n, Score score) {
  std::vector<int64_t> order(size_t(n), 0);
  std::iota(order.begin(), order.end(), int64_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t a, int64_t b) { return score(a) > score(b); });
  return order;
}

/// The softmax and its two losses. Decisions are left to the loop: they are `r`'s.
template <class T>
void expect_scores(const kernels::RouteShape& n, const std::vector<T>& logits, const Routed<T>& r) {
  Wide<T> z = 0, z_size = 0, balance = 0;
  for (int64_t row = 0; row < n.samples * n.tokens; ++row) {
    const T* in = &logits[size_t(row * n.experts)];
    const Wide<T> top = *std::max_element(in, in + n.experts);
    Wide<T> sum = 0;
    for (int64_t e = 0; e < n.experts; ++e) sum += std::exp(in[e] - top);
    const Wide<T> lse = top + std::log(sum);
    ASSERT_TRUE(is_near(r.lse[size_t(row)], lse, std::abs(top) + 1, 4)) << row;
    z += lse * lse, z_size += 2 * (std::abs(top) + 1) * (std::abs(top) + 1);
    for (int64_t e = 0; e < n.experts; ++e) {
      const Wide<T> p = std::exp(in[e] - top) / sum;
      // The difference of two logits is rounded once.
      const double roundings = 8 + std::min(double(top - in[e]), 800.0);
      ASSERT_TRUE(is_near(r.probs[size_t(row * n.experts + e)], p, p, roundings)) << row;
      const int64_t sample = row / n.tokens;
      balance += r.share[size_t(sample * n.experts + e)] * p;
    }
  }
  ASSERT_TRUE(is_near(r.losses[0], balance, balance, 16));
  ASSERT_TRUE(is_near(r.losses[1], z, z_size, 8));
}

/// The slots as the loop's own probabilities, which were compared before, ask for them.
template <class T>
void expect_slots(const kernels::RouteShape& n, const double* coin, const Routed<T>& r) {
  for (int64_t b = 0; b < n.samples; ++b) {
    const auto p = [&](int64_t t, int64_t e) {
      return Wide<T>(r.probs[size_t((b * n.tokens + t) * n.experts + e)]);
    };
    std::vector<std::vector<int64_t>> slots(size_t(n.experts));
    std::vector<Wide<T>> norm(size_t(n.tokens), 1);
    std::vector<int64_t> first(size_t(n.experts));
    for (int64_t k = 0; k < std::max<int64_t>(1, n.top_k); ++k) {
      for (int64_t t = 0; t < n.tokens && n.top_k > 0; ++t) {
        const auto best = best_first(n.experts, [&](int64_t e) { return p(t, e); });
        if (k == 0 && n.top_k > 1) {
          norm[size_t(t)] = 0;
          for (int64_t i = 0; i < n.top_k; ++i) norm[size_t(t)] += p(t, best[size_t(i)]);
        }
        const int64_t e = best[size_t(k)];
        if (k == 0) ++first[size_t(e)];
        ASSERT_EQ(r.chosen[size_t((b * n.tokens + t) * n.top_k + k)], e) << t;
        const auto chance = double(2 * p(t, e) / norm[size_t(t)]);
        if (k == 1 && coin != nullptr && coin[b * n.tokens + t] >= chance) continue;
        if (int64_t(slots[size_t(e)].size()) < n.capacity) slots[size_t(e)].push_back(t);
      }
    }
    for (int64_t e = 0; e < n.experts; ++e) {
      if (n.top_k == 0) {
        slots[size_t(e)] = best_first(n.tokens, [&](int64_t t) { return p(t, e); });
        slots[size_t(e)].resize(size_t(n.capacity));
      }
      const auto share = Wide<T>(first[size_t(e)] * n.experts) / (n.tokens * n.tokens);
      ASSERT_TRUE(is_near(r.share[size_t(b * n.experts + e)], share, share, double(n.tokens)));
      for (int64_t c = 0; c < n.slots; ++c) {
        const auto at = size_t((b * n.experts + e) * n.slots + c);
        const bool is_taken = c < int64_t(slots[size_t(e)].size());
        const int64_t t = is_taken ? slots[size_t(e)][size_t(c)] : -1;
        ASSERT_EQ(r.token[at], t) << e << " slot " << c;
        const Wide<T> gate = is_taken ? p(t, e) / norm[size_t(t)] : 0;
        ASSERT_TRUE(is_near(r.gates[at], gate, gate, 4)) << e << " slot " << c;
      }
    }
    for (int64_t t = 0; t < n.tokens; ++t) {
      ASSERT_TRUE(is_near(r.norm[size_t(b * n.tokens + t)], norm[size_t(t)], norm[size_t(t)], 4));
    }
  }
}

TYPED_TEST(Experts, RouteOfLogitsOfEveryMagnitude) {
  using T = TypeParam;
  std::vector<double> coin;
  for (uint64_t i = 0; i < 3 * 29; ++i) coin.push_back(CounterRandom(1, 2).uniform(i));
  for (const int to : {-20, 0, 3, 6, 14}) {
    for (const int64_t top_k : {0, 1, 2, 3}) {
      if (top_k == 0 && to != 3) continue;  // scores that underflow or hardly differ are ties there
      for (const int64_t capacity : {3, 12}) {
        const kernels::RouteShape n{3, 29, 6, capacity + 1, top_k, capacity};
        const std::vector<T> logits = spread<T>(n.samples * n.tokens * n.experts, 4, to - 4, to);
        const double* coins = top_k == 2 ? coin.data() : nullptr;
        const Routed<T> routed(n, logits, coins);
        expect_scores(n, logits, routed);
        expect_slots(n, coins, routed);
      }
    }
  }
}

/// Slots of which some are empty: row of (b, e, c), or -1.
const kernels::SlotShape kSlots{2, 3, 4, 9, 37};
std::vector<int64_t> rows_of_slots() {
  std::vector<int64_t> rows;
  for (int64_t i = 0; i < 2 * 3 * 4; ++i) rows.push_back(i % 5 == 2 ? -1 : i * 4 % 9);
  return rows;
}
/// Where (b, e, c) lies among the slots of (E, B, C).
size_t slot_at(int64_t b, int64_t e, int64_t c) { return size_t((e * 2 + b) * 4 + c); }

TYPED_TEST(Experts, SlotsTakeRowsAndGiveThemBackTimesTheirGates) {
  using T = TypeParam;
  const std::vector<int64_t> rows = rows_of_slots();
  const auto hidden = size_t(kSlots.hidden);
  const std::vector<T> x = spread<T>(2 * 9 * 37, 1, -60, 60),
                       slots = spread<T>(24 * 37, 2, -60, 60);
  const std::vector<T> gates = spread<T>(24, 3, -20, 0);
  std::vector<T> taken(slots.size(), T{7}), summed(x.size()), plain(x.size());
  kernels::take_slots(kSlots, rows.data(), x.data(), taken.data(), int64_t(hidden * sizeof(T)));
  kernels::sum_slots(kSlots, rows.data(), slots.data(), gates.data(), summed.data());
  kernels::sum_slots<T>(kSlots, rows.data(), slots.data(), nullptr, plain.data());
  std::vector<Wide<T>> sum(x.size()), size(sum), ones(sum), ones_size(sum);
  for (int64_t b = 0, at = 0; b < 2; ++b) {
    for (int64_t e = 0; e < 3; ++e) {
      for (int64_t c = 0; c < 4; ++c, ++at) {
        for (size_t h = 0; h < hidden; ++h) {
          const int64_t row = rows[size_t(at)];
          const size_t slot = slot_at(b, e, c) * hidden + h, to = size_t(b * 9 + row) * hidden + h;
          ASSERT_EQ(taken[slot], row < 0 ? T{0} : x[to]) << at;
          if (row < 0) continue;
          const Wide<T> term = Wide<T>(gates[size_t(at)]) * slots[slot];
          sum[to] += term, size[to] += std::abs(term);
          ones[to] += slots[slot], ones_size[to] += std::abs(Wide<T>(slots[slot]));
        }
      }
    }
  }
  for (size_t i = 0; i < x.size(); ++i) {
    ASSERT_TRUE(is_near(summed[i], sum[i], size[i], 8)) << i;
    ASSERT_TRUE(is_near(plain[i], ones[i], ones_size[i], 8)) << i;
  }
}

TYPED_TEST(Experts, CombineHasTheGradientsOfSlotsAndGates) {
  using T = TypeParam;
  const std::vector<int64_t> rows = rows_of_slots();
  const auto hidden = size_t(kSlots.hidden);
  const std::vector<T> dy = spread<T>(2 * 9 * 37, 1, -30, 30),
                       slots = spread<T>(24 * 37, 2, -30, 30);
  const std::vector<T> gates = spread<T>(24, 3, -20, 0);
  std::vector<T> dslots(slots.size(), T{7}), dgates(gates.size(), T{7});
  kernels::combine_backward(kSlots, rows.data(),
                            kernels::CombineArrays<T>{dy.data(), slots.data(), gates.data(),
                                                      dslots.data(), dgates.data()});
  for (int64_t b = 0, at = 0; b < 2; ++b) {
    for (int64_t e = 0; e < 3; ++e) {
      for (int64_t c = 0; c < 4; ++c, ++at) {
        Wide<T> dot = 0, size = 0;
        const int64_t row = rows[size_t(at)];
        for (size_t h = 0; h < hidden; ++h) {
          const size_t slot = slot_at(b, e, c) * hidden + h;
          const Wide<T> d = row < 0 ? Wide<T>(0) : Wide<T>(dy[size_t(b * 9 + row) * hidden + h]);
          const Wide<T> term = d * slots[slot], expected = d * gates[size_t(at)];
          dot += term, size += std::abs(term);
          ASSERT_TRUE(is_near(dslots[slot], expected, std::abs(expected), 2)) << at;
        }
        ASSERT_TRUE(is_near(dgates[size_t(at)], dot, size, 24)) << at;
      }
    }
  }
}

}  // namespace
}  // namespace kuafu
