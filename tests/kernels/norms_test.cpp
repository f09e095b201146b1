// SPDX-License-Identifier: Apache-2.0
//
// Norms against their formulas in a wider type: rows tiny and huge, one element and many, means far
// from zero; whole rows, and by moments of a row that is sharded.
#include "kuafu/kernels/kernels.h"
#include "tests/kernels/wide.h"

namespace kuafu {
namespace {

using test::is_near;
using test::spread;
using test::Wide;

template <class T>
class Norms : public testing::Test {};
using Types = testing::Types<float, double>;
TYPED_TEST_SUITE(Norms, Types);

/// Rows of one magnitude each, from 2^-40 to 2^40, and what goes with them.
template <class T>
struct NormCase {
  NormCase(int64_t rows, int64_t hidden, double offset)
      : n{rows, hidden},
        w(spread<T>(hidden, 2, -6, 3)),
        b(spread<T>(hidden, 3, -6, 3)),
        dy(spread<T>(rows * hidden, 4, -6, 3)),
        residual(spread<T>(rows * hidden, 5, -6, 3)) {
    const std::vector<T> part = spread<T>(rows * hidden, 1, -3, 1);
    for (int64_t i = 0; i < rows * hidden; ++i) {
      const double scale = std::exp2(-40 + 80.0 * double(i / hidden) / double(rows));
      x.push_back(static_cast<T>(scale * (double(part[size_t(i)]) + offset)));
    }
  }
  kernels::RowExtents n;
  std::vector<T> x, w, b, dy, residual;
};

template <class T>
std::vector<NormCase<T>> cases() {
  return {{5, 1, 0.5}, {33, 7, 0.0}, {40, 64, 3.0}, {17, 1000, 0.1}};
}

constexpr double kSmall = 1e-5;  // epsilon

/// A row's statistics as the loop is given them or should find them.
template <class T>
struct Row {
  Wide<T> sum = 0, squares = 0, size = 0;
  Row(const NormCase<T>& c, int64_t r) {
    for (int64_t h = 0; h < c.n.hidden; ++h) {
      const Wide<T> x = c.x[size_t(r * c.n.hidden + h)];
      sum += x, squares += x * x, size += std::abs(x);
    }
  }
};

TYPED_TEST(Norms, LayerNormIsItsDefinition) {
  using T = TypeParam;
  for (const NormCase<T>& c : cases<T>()) {
    const int64_t hidden = c.n.hidden;
    std::vector<T> y(c.x.size()), mean(size_t(c.n.rows)), rstd(mean.size());
    kernels::layer_norm(
        c.n, {c.x.data(), c.w.data(), c.b.data(), kSmall, y.data(), mean.data(), rstd.data()});
    for (int64_t r = 0; r < c.n.rows; ++r) {
      const Row<T> row(c, r);
      const Wide<T> m = row.sum / hidden, size = row.size / hidden;
      Wide<T> variance = 0;
      for (int64_t h = 0; h < hidden; ++h) {
        const Wide<T> d = c.x[size_t(r * hidden + h)] - m;
        variance += d * d / hidden;
      }
      const Wide<T> inverse = 1 / std::sqrt(variance + kSmall);
      const T got = mean[size_t(r)];
      // Partial sums of at most hidden / 32 terms.
      ASSERT_TRUE(is_near(got, m, size, 4 + double(hidden) / 32)) << r;
      // The mean that is taken off is rounded, which adds its error's square to the variance.
      const Wide<T> off = (Wide<T>(got) - m) * (Wide<T>(got) - m);
      const Wide<T> slack = inverse * off / (2 * (variance + kSmall));
      ASSERT_TRUE(is_near(rstd[size_t(r)], inverse, inverse + slack / test::kEpsilon<T>, 40)) << r;
      for (int64_t h = 0; h < hidden; ++h) {
        const size_t i = size_t(r * hidden + h);
        const Wide<T> w = c.w[size_t(h)], b = c.b[size_t(h)];
        const Wide<T> xhat = (c.x[i] - Wide<T>(got)) * rstd[size_t(r)];
        ASSERT_TRUE(is_near(y[i], xhat * w + b, std::abs(xhat * w) + std::abs(b), 4)) << r;
      }
      std::vector<T> applied(c.w.size());
      kernels::norm_apply({1, hidden}, &c.x[size_t(r * hidden)], &mean[size_t(r)], &rstd[size_t(r)],
                          c.w.data(), c.b.data(), applied.data());
      for (int64_t h = 0; h < hidden; ++h) {
        ASSERT_EQ(applied[size_t(h)], y[size_t(r * hidden + h)]) << r;
      }
    }
  }
}

TYPED_TEST(Norms, MomentsAreSumsInF64) {
  using T = TypeParam;
  for (const NormCase<T>& c : cases<T>()) {
    std::vector<double> both(size_t(2 * c.n.rows)), squares(size_t(c.n.rows));
    kernels::norm_moments(c.n, c.x.data(), both.data());
    kernels::rms_moments(c.n, c.x.data(), squares.data());
    for (int64_t r = 0; r < c.n.rows; ++r) {
      const Row<T> row(c, r);
      const double count = 4 + double(c.n.hidden);
      ASSERT_TRUE(is_near<double>(both[size_t(2 * r)], row.sum, row.size, count));
      ASSERT_TRUE(is_near<double>(both[size_t(2 * r + 1)], row.squares, row.squares, count));
      ASSERT_TRUE(is_near<double>(squares[size_t(r)], row.squares, row.squares, count));
    }
  }
}

/// Sums over a row of g = dy w and of g xhat, and of their magnitudes.
template <class T>
struct BackwardSums {
  Wide<T> g = 0, gx = 0, size_g = 0, size_gx = 0;
  BackwardSums(const NormCase<T>& c, int64_t r, T mean, T rstd) {
    for (int64_t h = 0; h < c.n.hidden; ++h) {
      const size_t i = size_t(r * c.n.hidden + h);
      const Wide<T> product = Wide<T>(c.dy[i]) * c.w[size_t(h)];
      const Wide<T> xhat = (Wide<T>(c.x[i]) - mean) * rstd;
      g += product, gx += product * xhat;
      size_g += std::abs(product), size_gx += std::abs(product * xhat);
    }
  }
};

/// dx, dw and db of either norm from statistics that the loop was given: `has_mean` is layer norm's.
template <class T>
void expect_gradients(const NormCase<T>& c, const std::vector<T>& mean, const std::vector<T>& rstd,
                      const std::vector<T>* residual, const std::vector<T>& dx,
                      const std::vector<double>& dw, const std::vector<double>* db) {
  const int64_t hidden = c.n.hidden;
  const double count = 8 + double(hidden) / 16;  // partial sums of 32 terms, in T
  std::vector<Wide<T>> w_sum(c.w.size()), w_size(w_sum), b_sum(w_sum), b_size(w_sum);
  for (int64_t r = 0; r < c.n.rows; ++r) {
    const T m = mean[size_t(r)], s = rstd[size_t(r)];
    const BackwardSums<T> sums(c, r, m, s);
    const Wide<T> mean_g = db != nullptr ? sums.g / hidden : 0, mean_gx = sums.gx / hidden;
    for (int64_t h = 0; h < hidden; ++h) {
      const size_t i = size_t(r * hidden + h), at = size_t(h);
      const Wide<T> g = Wide<T>(c.dy[i]) * c.w[at], xhat = (Wide<T>(c.x[i]) - m) * s;
      const Wide<T> rest = residual == nullptr ? Wide<T>(0) : Wide<T>((*residual)[i]);
      const Wide<T> size = std::abs(s) * (std::abs(g) + (db != nullptr ? sums.size_g / hidden : 0) +
                                          std::abs(xhat) * sums.size_gx / hidden) +
                           std::abs(rest);
      ASSERT_TRUE(is_near(dx[i], s * (g - mean_g - xhat * mean_gx) + rest, size, count)) << r;
      w_sum[at] += c.dy[i] * xhat, w_size[at] += std::abs(c.dy[i] * xhat);
      b_sum[at] += c.dy[i], b_size[at] += std::abs(Wide<T>(c.dy[i]));
    }
  }
  // Sixteen rows at a time in T, those in f64.
  const auto near = [](double got, Wide<T> sum, Wide<T> size) {
    return std::abs(got - sum) <= 24 * test::kEpsilon<T> * size;
  };
  for (size_t h = 0; h < dw.size(); ++h) {
    ASSERT_TRUE(near(dw[h], w_sum[h], w_size[h])) << h;
    ASSERT_TRUE(db == nullptr || near((*db)[h], b_sum[h], b_size[h])) << h;
  }
}

TYPED_TEST(Norms, LayerNormHasTheGradientsOfItsDefinition) {
  using T = TypeParam;
  for (const NormCase<T>& c : cases<T>()) {
    std::vector<T> y(c.x.size()), mean(size_t(c.n.rows)), rstd(mean.size());
    kernels::layer_norm(
        c.n, {c.x.data(), c.w.data(), c.b.data(), kSmall, y.data(), mean.data(), rstd.data()});
    std::vector<double> moments(size_t(2 * c.n.rows));
    for (const bool is_given : {false, true}) {
      std::vector<T> dx(c.x.size());
      std::vector<double> dw(c.w.size()), db(dw);
      kernels::NormBackward<T> a{c.dy.data(), c.x.data(),
                                 mean.data(), rstd.data(),
                                 c.w.data(),  is_given ? moments.data() : nullptr,
                                 c.n.hidden,  is_given ? c.residual.data() : nullptr,
                                 dx.data(),   dw.data(),
                                 db.data()};
      if (is_given) {
        kernels::norm_backward_moments(c.n, a, moments.data());
        for (int64_t r = 0; r < c.n.rows; ++r) {
          const BackwardSums<T> sums(c, r, mean[size_t(r)], rstd[size_t(r)]);
          const Wide<T> bound = (8 + Wide<T>(c.n.hidden) / 16) * test::kEpsilon<T>;
          ASSERT_LE(std::abs(moments[size_t(2 * r)] - sums.g), bound * sums.size_g);
          ASSERT_LE(std::abs(moments[size_t(2 * r + 1)] - sums.gx), bound * sums.size_gx);
        }
      }
      kernels::norm_backward(c.n, a);
      expect_gradients(c, mean, rstd, is_given ? &c.residual : nullptr, dx, dw, &db);
    }
  }
}

TYPED_TEST(Norms, RmsNormIsItsDefinitionWithItsGradients) {
  using T = TypeParam;
  for (const NormCase<T>& c : cases<T>()) {
    const int64_t hidden = c.n.hidden;
    std::vector<double> moments(size_t(c.n.rows));
    kernels::rms_moments(c.n, c.x.data(), moments.data());
    const std::vector<T> none(size_t(c.n.rows));
    for (const bool is_given : {false, true}) {
      std::vector<T> y(c.x.size()), rstd(size_t(c.n.rows)), dx(c.x.size());
      kernels::rms_norm(c.n, {c.x.data(), c.w.data(), is_given ? moments.data() : nullptr, hidden,
                              kSmall, y.data(), rstd.data()});
      for (int64_t r = 0; r < c.n.rows; ++r) {
        const Wide<T> inverse = 1 / std::sqrt(Row<T>(c, r).squares / hidden + kSmall);
        ASSERT_TRUE(is_near(rstd[size_t(r)], inverse, inverse, 2 + double(hidden) / 16)) << r;
        for (int64_t h = 0; h < hidden; ++h) {
          const size_t i = size_t(r * hidden + h);
          const Wide<T> expected = Wide<T>(c.x[i]) * rstd[size_t(r)] * c.w[size_t(h)];
          ASSERT_TRUE(is_near(y[i], expected, std::abs(expected), 3)) << r;
        }
      }
      std::vector<double> dw(c.w.size()), back(rstd.size());
      kernels::RmsBackward<T> a{c.dy.data(),
                                c.x.data(),
                                rstd.data(),
                                c.w.data(),
                                is_given ? back.data() : nullptr,
                                hidden,
                                is_given ? c.residual.data() : nullptr,
                                dx.data(),
                                dw.data()};
      kernels::rms_backward_moments(c.n, a, back.data());
      for (int64_t r = 0; r < c.n.rows; ++r) {
        const BackwardSums<T> sums(c, r, T{0}, rstd[size_t(r)]);
        ASSERT_TRUE(is_near<double>(back[size_t(r)], sums.gx, sums.size_gx, 4 + double(hidden)));
      }
      kernels::rms_backward(c.n, a);
      expect_gradients(c, none, rstd, is_given ? &c.residual : nullptr, dx, dw, nullptr);
    }
  }
}

}  // namespace
}  // namespace kuafu
