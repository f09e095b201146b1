// SPDX-License-Identifier: Apache-2.0
//
// Sums, merged attention and embeddings against their formulas in a wider type.
#include "kuafu/kernels/kernels.h"
#include "tests/kernels/wide.h"

namespace kuafu {
namespace {

using test::is_near;
using test::spread;
using test::Wide;

template <class T>
class Sums : public testing::Test {};
using Types = testing::Types<float, double>;
TYPED_TEST_SUITE(Sums, Types);

TYPED_TEST(Sums, OfSquaresOfEveryMagnitudeAndCount) {
  using T = TypeParam;
  for (const int64_t count : {1, 15, 16, 17, 33, 1000, 4099}) {
    for (const int from : {-120, -60, 0, 55}) {
      const std::vector<T> x = spread<T>(count, 1, from, from + 5);
      Wide<T> expected = 0;
      for (const T v : x) expected += Wide<T>(v) * v;
      // Added in f64 in both.
      ASSERT_TRUE(is_near(kernels::sum_of_squares(x.data(), count),
                          static_cast<long double>(expected), static_cast<long double>(expected),
                          double(count + 4)))
          << count << " from 2^" << from;
    }
  }
}

TYPED_TEST(Sums, OfRowsOfEveryMagnitudeAndCount) {
  using T = TypeParam;
  for (const int64_t rows : {1, 7, 8, 9, 300}) {
    for (const int64_t hidden : {1, 5, 64}) {
      for (const int from : {-120, -5, 90}) {
        const std::vector<T> x = spread<T>(rows * hidden, 2, from, from + 8);
        std::vector<double> sums(static_cast<size_t>(hidden));
        kernels::sum_rows({rows, hidden}, x.data(), sums.data());
        for (int64_t h = 0; h < hidden; ++h) {
          Wide<T> expected = 0, size = 0;
          for (int64_t r = 0; r < rows; ++r) {
            const Wide<T> v = x[size_t(r * hidden + h)];
            expected += v, size += std::abs(v);
          }
          // Eight at a time in T, those in f64.
          const auto bound = (8 * test::kEpsilon<T> + rows * Wide<T>(0x1.0p-52)) * size;
          ASSERT_LE(std::abs(sums[size_t(h)] - expected), bound) << rows << " from 2^" << from;
        }
      }
    }
  }
}

// Parts whose scores are equal, near, and thousands apart; a part that saw no keys changes nothing.
TYPED_TEST(Sums, AttentionMergeJoinsPartsOfScoresHoweverFarApart) {
  using T = TypeParam;
  const int64_t batch = 2, heads = 3, sequence = 37, dim = 7, rows = batch * heads * sequence;
  const T none = -std::numeric_limits<T>::infinity();
  for (const double apart : {0.0, 1e-3, 1.0, 30.0, 80.0, 3000.0}) {
    std::vector<T> out = spread<T>(rows * dim, 3, -20, 20),
                   part = spread<T>(rows * dim, 4, -20, 20);
    std::vector<T> lse = spread<T>(rows, 5, -10, 13), part_lse;
    for (size_t r = 0; r < lse.size(); ++r) {
      const double away = (r % 2 == 0 ? 1 : -1) * apart * double(r + 1) / double(rows);
      part_lse.push_back(r % 11 == 3 ? none : static_cast<T>(lse[r] + away));
      if (r % 13 == 5) lse[r] = none;
    }
    const std::vector<T> old_out = out, old_lse = lse;
    kernels::attention_merge(
        {batch, heads, sequence, dim},
        kernels::AttentionMerge<T>{{out.data(), heads * sequence * dim, sequence * dim, dim},
                                   {lse.data(), heads * sequence, sequence, 1},
                                   {part.data(), heads * sequence * dim, sequence * dim, dim},
                                   {part_lse.data(), heads * sequence, sequence, 1}});
    for (size_t r = 0; r < lse.size(); ++r) {
      const Wide<T> a = old_lse[r], b = part_lse[r], top = std::max(a, b);
      const bool is_same = part_lse[r] == none;
      const Wide<T> wa = is_same ? 1 : std::exp(a - top), wb = is_same ? 0 : std::exp(b - top);
      if (!is_same) {
        ASSERT_TRUE(is_near(lse[r], top + std::log(wa + wb), std::abs(top) + 1, 4)) << r;
      } else {
        ASSERT_EQ(lse[r], old_lse[r]) << r;
      }
      for (size_t d = 0; d < size_t(dim); ++d) {
        const Wide<T> x = wa / (wa + wb) * old_out[r * dim + d],
                      y = wb / (wa + wb) * part[r * dim + d];
        // Scores are exact here, so their difference is rounded once: by up to 100
        // where both count.
        const double roundings = is_same ? 1 : 8 + std::min(double(std::abs(a - b)), 800.0);
        ASSERT_TRUE(is_near(out[r * dim + d], x + y, std::abs(x) + std::abs(y), roundings)) << r;
      }
    }
  }
}

TYPED_TEST(Sums, EmbeddingCopiesRowsAndAddsTheirGradients) {
  using T = TypeParam;
  const kernels::RowExtents table{9, 5};
  const int64_t first = 1000, num_ids = 64;
  std::vector<int64_t> ids;
  for (int64_t i = 0; i < num_ids; ++i) ids.push_back(first - 2 + i * 7 % 13);  // some outside
  const std::vector<T> w = spread<T>(45, 6, -100, 100), dy = spread<T>(num_ids * 5, 7, -40, 40);
  std::vector<T> y(dy.size(), T{7}), dw(w.size());
  kernels::embedding(ids.data(), num_ids, first, table, w.data(), y.data());
  kernels::embedding_backward(ids.data(), num_ids, first, table, dy.data(), dw.data());
  std::vector<Wide<T>> sum(w.size()), size(w.size());
  for (size_t i = 0; i < y.size(); ++i) {
    const int64_t row = ids[i / 5] - first;
    const bool is_mine = row >= 0 && row < table.rows;
    const size_t at = is_mine ? size_t(row) * 5 + i % 5 : 0;
    ASSERT_EQ(y[i], is_mine ? w[at] : T{0}) << i;
    if (is_mine) sum[at] += dy[i], size[at] += std::abs(Wide<T>(dy[i]));
  }
  for (size_t i = 0; i < dw.size(); ++i) ASSERT_TRUE(is_near(dw[i], sum[i], size[i], 8)) << i;
}

}  // namespace
}  // namespace kuafu
