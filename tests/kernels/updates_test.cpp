// SPDX-License-Identifier: Apache-2.0
//
// Loops of optimizers against their formulas in a wider type: gradients, moments and weights of every
// magnitude, steps 1 to 1,000,000, betas from 0 to near 1, gradients in every type.
#include "kuafu/kernels/updates.h"
#include "kuafu/kernels/layer_updates.h"
#include "tests/kernels/wide.h"

namespace kuafu {
namespace {

using test::is_near;
using test::kEpsilon;
using test::spread;
using test::Wide;

template <class T, class Grad>
struct Pair {
  using Value = T;
  using Gradient = Grad;
};
template <class P>
class Updates : public testing::Test {};
using Pairs = testing::Types<Pair<float, float>, Pair<float, kernels::BF16>,
                             Pair<float, kernels::F16>, Pair<double, double>>;
TYPED_TEST_SUITE(Updates, Pairs);

void put(float& to, double value) { to = static_cast<float>(value); }
void put(double& to, double value) { to = value; }
void put(kernels::BF16& to, double value) {
  to.bits = static_cast<uint16_t>(std::bit_cast<uint32_t>(static_cast<float>(value)) >> 16);
}
/// Cut to ten bits: 2^-14 .. 2^15, else zero.
void put(kernels::F16& to, double value) {
  const auto wide = std::bit_cast<uint32_t>(static_cast<float>(value));
  const int exponent = int(wide >> 23 & 0xff) - 112;
  const uint32_t sign = wide >> 16 & 0x8000, fraction = wide >> 13 & 0x3ff;
  const bool is_normal = exponent > 0 && exponent < 31;
  to.bits = static_cast<uint16_t>(sign | (is_normal ? uint32_t(exponent) << 10 | fraction : 0));
}

constexpr int64_t kCount = 1500;

/// What an update reads and changes, twice.
template <class P>
struct State {
  using T = typename P::Value;
  explicit State(uint64_t salt)
      : w(spread<T>(kCount, salt, -20, 10)),
        m(spread<T>(kCount, salt + 1, -30, 12)),
        v(spread<T>(kCount, salt + 2, -60, 25)),
        grad(size_t(kCount)) {
    for (T& x : v) x = std::abs(x);
    const std::vector<double> g = spread<double>(kCount, salt + 3, -30, 12);
    for (size_t i = 0; i < grad.size(); ++i) put(grad[i], g[i]);
  }
  std::vector<T> w, m, v;
  std::vector<typename P::Gradient> grad;
};

/// A value that was computed, and how far it may be off.
template <class T>
struct Off {
  Wide<T> value, error;
};
template <class T>
testing::AssertionResult is_near(T got, const Off<T>& expected) {
  return is_near(got, expected.value, expected.error / kEpsilon<T>, 1);
}

/// Factors as the loop has them, of T.
template <class T>
Wide<T> of(double factor) {
  return static_cast<T>(factor);
}

/// Moments after a step by g, whose terms add up to `size`; errors of the roundings of each.
template <class T>
struct Moments {
  Off<T> m, v;
  Moments(Wide<T> old_m, Wide<T> old_v, Wide<T> g, Wide<T> size, double beta1, double beta2) {
    const Wide<T> eps = kEpsilon<T>, b1 = of<T>(beta1), b2 = of<T>(beta2);
    const Wide<T> r1 = of<T>(1 - beta1), r2 = of<T>(1 - beta2);
    const Wide<T> least = std::numeric_limits<T>::min();
    m = {b1 * old_m + r1 * g, 4 * eps * (b1 * std::abs(old_m) + r1 * size + least)};
    v = {b2 * old_v + r2 * g * g, 6 * eps * (b2 * old_v + r2 * size * size + least)};
  }
  /// rate m / (sqrt(v) spread + epsilon)
  Off<T> direction(double rate, double spread, double epsilon) const {
    const Wide<T> eps = kEpsilon<T>, root = std::sqrt(v.value), by = of<T>(spread);
    const Wide<T> below = root * by + of<T>(epsilon);
    const Wide<T> of_root = std::min(std::sqrt(v.error), v.value > 0 ? v.error / root : v.error);
    const Wide<T> value = of<T>(rate) * m.value / below;
    const Wide<T> share = (by * of_root) / below + 6 * eps;
    return {value, std::abs(value) * share + of<T>(rate) * m.error / below};
  }
};

struct Time {
  double beta1, beta2;
  int64_t step;
};
const std::vector<Time> kTimes = {{0.9, 0.999, 1},      {0.9, 0.999, 1'000'000},
                                  {0.0, 0.0, 3},        {0.5, 0.95, 10},
                                  {0.999, 0.999999, 1}, {0.999999, 0.9, 100'000}};

TYPED_TEST(Updates, AdamAndAdamWOfEveryMagnitudeBetaAndStep) {
  using T = typename TypeParam::Value;
  for (const auto& [beta1, beta2, step] : kTimes) {
    for (const kernels::Decay decay : {kernels::Decay::kInGradient, kernels::Decay::kOfWeight}) {
      for (const double epsilon : {1e-16, 1e-8, 1e-2}) {
        const kernels::AdamWFactors f{.beta1 = beta1,
                                      .beta2 = beta2,
                                      .epsilon = epsilon,
                                      .rate = 1e-2 / (1 - std::pow(beta1, double(step))),
                                      .spread = 1 / std::sqrt(1 - std::pow(beta2, double(step))),
                                      .grad = 0.25,
                                      .coupled = 0.1,
                                      .keep = 0.75};
        const State<TypeParam> old(3);
        State<TypeParam> now = old;
        kernels::adam(decay,
                      kernels::AdamWData<T, typename TypeParam::Gradient>{
                          now.w.data(), now.grad.data(), now.m.data(), now.v.data(), kCount},
                      f);
        const bool is_coupled = decay == kernels::Decay::kInGradient;
        for (size_t i = 0; i < old.w.size(); ++i) {
          const Wide<T> w = old.w[i], grad = of<T>(0.25) * Wide<T>(kernels::widen(old.grad[i]));
          const Wide<T> added = is_coupled ? of<T>(0.1) * w : 0;
          const Moments<T> moments(old.m[i], old.v[i], grad + added,
                                   std::abs(grad) + std::abs(added), beta1, beta2);
          ASSERT_TRUE(is_near(now.m[i], moments.m)) << i;
          ASSERT_TRUE(is_near(now.v[i], moments.v)) << i;
          const Off<T> r = moments.direction(f.rate, f.spread, epsilon);
          const Wide<T> kept = is_coupled ? w : w * of<T>(0.75);
          ASSERT_TRUE(is_near(
              now.w[i], Off<T>{kept - r.value,
                               r.error + 2 * kEpsilon<T> * (std::abs(kept) + std::abs(r.value))}))
              << i << " step " << step;
        }
      }
    }
  }
}

TYPED_TEST(Updates, SgdOfEveryMagnitude) {
  using T = typename TypeParam::Value;
  for (const kernels::Momentum kind : {kernels::Momentum::kPlain, kernels::Momentum::kNesterov}) {
    for (const double momentum : {0.0, 0.9, 0.99999}) {
      const kernels::SgdFactors f{
          .lr = 0.3, .momentum = momentum, .weight_decay = 0.1, .grad = 0.25};
      const State<TypeParam> old(9);
      State<TypeParam> now = old;
      kernels::sgd(kind,
                   kernels::SgdData<T, typename TypeParam::Gradient>{now.w.data(), now.grad.data(),
                                                                     now.m.data(), kCount},
                   f);
      for (size_t i = 0; i < old.w.size(); ++i) {
        const Wide<T> w = old.w[i], grad = of<T>(0.25) * Wide<T>(kernels::widen(old.grad[i]));
        const Wide<T> mu = of<T>(momentum), decay = of<T>(0.1) * w;
        const Wide<T> g = grad + decay, size = std::abs(grad) + std::abs(decay);
        const Wide<T> u = mu * old.m[i] + g, u_size = std::abs(mu * old.m[i]) + size;
        ASSERT_TRUE(is_near(now.m[i], u, u_size, 4)) << i;
        const bool is_plain = kind == kernels::Momentum::kPlain;
        const Wide<T> step = of<T>(0.3) * (is_plain ? u : g + mu * u);
        const Wide<T> step_size = of<T>(0.3) * (is_plain ? u_size : size + mu * u_size);
        ASSERT_TRUE(is_near(now.w[i], w - step, std::abs(w) + step_size, 6)) << i;
      }
    }
  }
}

/// Runs of one layer, of stacked layers, of parts side by side, and of both.
const std::vector<kernels::LayerRun> kRuns = {
    {.count = kCount},
    {.count = kCount, .first = 7, .columns = 10, .stacked = 500},
    {.count = kCount, .first = 5, .columns = 30, .parts = 3, .width = 20, .column = 30},
    {.count = kCount, .first = 11, .columns = 40, .stacked = 400, .parts = 2, .width = 20}};

/// Of element i, written apart from the loop.
int64_t layer_of(const kernels::LayerRun& run, int64_t i) {
  const int64_t at = run.first + i;
  const int64_t stack = run.stacked > 0 ? at / run.stacked : 0;
  return stack * run.parts + (run.column + at % run.columns) / run.width % run.parts;
}

constexpr size_t kLayers = 16;
/// Sums of squares of values of T: those of f32 are added in f32 four at a time, which is three
/// roundings, the rest in f64.
template <class T>
struct Squares {
  static constexpr long double kShare = std::is_same_v<T, float> ? 1.5L * kEpsilon<T> : 0x1.0p-40L;
  std::vector<long double> sums = std::vector<long double>(2 * kLayers), errors = sums;
  void add(size_t at, long double value, long double error) {
    sums[at] += value * value;
    errors[at] += 2 * std::abs(value) * error + error * error + kShare * value * value;
  }
  void expect(const std::vector<double>& got) const {
    for (size_t i = 0; i < got.size(); ++i) {
      ASSERT_LE(std::abs(got[i] - sums[i]), errors[i]) << got[i] << " for " << double(sums[i]);
    }
  }
};

TYPED_TEST(Updates, LambOfEveryMagnitudeBetaStepAndLayer) {
  using T = typename TypeParam::Value;
  std::vector<double> rates;
  for (size_t i = 0; i < kLayers; ++i) rates.push_back(0.1 / double(i + 1));
  for (const kernels::LayerRun& run : kRuns) {
    for (const auto& [beta1, beta2, step] : kTimes) {
      const kernels::LambFactors f{.beta1 = beta1,
                                   .beta2 = beta2,
                                   .epsilon = 1e-6,
                                   .decay = 0.1,
                                   .rate = 1 / (1 - std::pow(beta1, double(step))),
                                   .spread = 1 / std::sqrt(1 - std::pow(beta2, double(step))),
                                   .grad = 0.25};
      const State<TypeParam> old(5);
      State<TypeParam> now = old;
      std::vector<double> got(2 * kLayers);
      kernels::lamb_norms(run,
                          kernels::AdamWData<T, typename TypeParam::Gradient>{
                              now.w.data(), now.grad.data(), now.m.data(), now.v.data(), kCount},
                          f, got.data());
      Squares<T> squares;
      std::vector<Off<T>> r;
      for (size_t i = 0; i < old.w.size(); ++i) {
        const Wide<T> w = old.w[i], g = of<T>(0.25) * Wide<T>(kernels::widen(old.grad[i]));
        const Moments<T> moments(old.m[i], old.v[i], g, std::abs(g), beta1, beta2);
        ASSERT_TRUE(is_near(now.m[i], moments.m)) << i;
        ASSERT_TRUE(is_near(now.v[i], moments.v)) << i;
        Off<T> one = moments.direction(f.rate, f.spread, 1e-6);
        const Wide<T> decayed = of<T>(0.1) * w;
        one.error += 2 * kEpsilon<T> * (std::abs(one.value) + std::abs(decayed));
        one.value += decayed;
        r.push_back(one);
        const size_t layer = size_t(layer_of(run, int64_t(i)));
        squares.add(2 * layer, w, 0);
        squares.add(2 * layer + 1, one.value, one.error);
      }
      squares.expect(got);
      if constexpr (std::is_same_v<T, typename TypeParam::Gradient>) {
        // The direction in the place of the gradient: the bits of the one that is made again.
        State<TypeParam> keeping = old;
        std::vector<double> sums(2 * kLayers);
        kernels::lamb_norms(run,
                            kernels::AdamWData<T, T>{keeping.w.data(), keeping.grad.data(),
                                                     keeping.m.data(), keeping.v.data(), kCount},
                            f, sums.data(), keeping.grad.data());
        EXPECT_EQ(sums, got);
        EXPECT_EQ(keeping.m, now.m);
        EXPECT_EQ(keeping.v, now.v);
        kernels::layer_step(run, keeping.w.data(), keeping.grad.data(), rates.data());
        kernels::lamb(run, {now.w.data(), now.grad.data(), now.m.data(), now.v.data(), kCount}, f,
                      rates.data());
        for (size_t i = 0; i < old.w.size(); ++i) {
          const Wide<T> w = old.w[i], rate = of<T>(rates[size_t(layer_of(run, int64_t(i)))]);
          const Wide<T> move = rate * r[i].value;
          ASSERT_EQ(keeping.w[i], now.w[i]) << i;
          ASSERT_TRUE(is_near(
              now.w[i], Off<T>{w - move, rate * r[i].error +
                                             2 * kEpsilon<T> * (std::abs(w) + std::abs(move))}))
              << i;
        }
      }
    }
  }
}

TYPED_TEST(Updates, LarsOfEveryMagnitudeAndLayer) {
  using T = typename TypeParam::Value;
  std::vector<double> single, pairs;
  for (size_t i = 0; i < kLayers; ++i) {
    single.push_back(0.1 / double(i + 1));
    pairs.insert(pairs.end(), {0.1 / double(i + 1), 0.7 / double(i + 2)});
  }
  for (const kernels::LayerRun& run : kRuns) {
    for (const double factor : {0.25, 1.0}) {
      for (const double most : {2.0, std::numeric_limits<double>::infinity()}) {
        const bool has_two = (factor == 1) == (most == 2);
        const std::vector<double>& rates = has_two ? pairs : single;
        const kernels::SgdFactors f{.lr = 0.3,
                                    .momentum = 0.9,
                                    .weight_decay = factor == 1 ? 0 : 0.1,
                                    .grad = factor,
                                    .most = most,
                                    .rates_of_layer = has_two ? 2 : 1};
        const State<TypeParam> old(7);
        State<TypeParam> now = old;
        const kernels::SgdData<T, typename TypeParam::Gradient> data{now.w.data(), now.grad.data(),
                                                                     now.m.data(), kCount};
        std::vector<double> got(2 * kLayers);
        kernels::lars_norms(run, data, f, got.data());
        kernels::lars(run, data, f, rates.data());
        Squares<T> squares;
        for (size_t i = 0; i < old.w.size(); ++i) {
          const Wide<T> w = old.w[i], grad = of<T>(factor) * Wide<T>(kernels::widen(old.grad[i]));
          const Wide<T> decay = of<T>(f.weight_decay) * w, x = grad + decay;
          const Wide<T> size = std::abs(grad) + std::abs(decay);
          const size_t layer = size_t(layer_of(run, int64_t(i)));
          squares.add(2 * layer, w, 0);
          squares.add(2 * layer + 1, x, 3 * kEpsilon<T> * size);
          const Wide<T> bound = most, kept = std::clamp(x, -bound, bound), mu = of<T>(0.9);
          const Wide<T> rate = of<T>(rates[has_two ? 2 * layer : layer]);
          const Wide<T> lr = of<T>(has_two ? 0.3 * rates[2 * layer + 1] : 0.3);
          const Wide<T> u = mu * old.m[i] + rate * kept;
          const Wide<T> u_size = std::abs(mu * old.m[i]) + rate * size;
          ASSERT_TRUE(is_near(now.m[i], u, u_size, 6)) << i;
          ASSERT_TRUE(is_near(now.w[i], w - lr * u, std::abs(w) + lr * u_size, 8)) << i;
        }
        squares.expect(got);
      }
    }
  }
}

/// Squares of f32 end at 2^-126 and 2^128: sums of smaller and larger ones are as right.
TEST(LayerNorms, OfWeightsWhoseSquaresLeaveF32) {
  using Float = Pair<float, float>;
  const kernels::LayerRun run{.count = kCount};
  for (const auto& [least, most] : {std::pair{-126, -100}, {-75, -55}, {40, 70}, {-140, 120}}) {
    State<Float> now(11);
    now.w = spread<float>(kCount, 12, least, most);
    now.grad = spread<float>(kCount, 13, least, most);
    std::vector<double> got(2 * kLayers);
    kernels::lars_norms(run, {now.w.data(), now.grad.data(), now.m.data(), kCount},
                        {.lr = 1, .momentum = 0, .weight_decay = 0, .grad = 1}, got.data());
    Squares<float> squares;
    for (size_t i = 0; i < now.w.size(); ++i) {
      squares.add(0, now.w[i], 0);
      squares.add(1, now.grad[i], 0);
    }
    squares.expect(got);
    ASSERT_GT(got[0], 0);
  }
}

}  // namespace
}  // namespace kuafu
