// SPDX-License-Identifier: Apache-2.0
#include "kuafu/kernels/layer_updates.h"

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "kuafu/kernels/loops.h"

#define KUAFU_INLINE inline __attribute__((always_inline))

namespace kuafu::kernels {
namespace {

constexpr int64_t kBlock = 512;  // elements whose steps are kept between two loops: in cache

/// Elements of a run that follow each other and are of one layer. (Blocks that went over the borders of
/// parts, an element's layer looked up, kept LAMB at 0.83 of the limit of memory: a quarter of a GPT is
/// fused.)
struct Block {
  int64_t begin, count;
  int64_t layer;
};

KUAFU_INLINE Block block_at(const LayerRun& run, int64_t begin) {
  const int64_t at = run.first + begin;
  Block b{begin, std::min(kBlock, run.count - begin), 0};
  if (run.stacked > 0) {
    b.layer = at / run.stacked * run.parts;
    b.count = std::min(b.count, run.stacked - at % run.stacked);
  }
  if (run.parts > 1) {
    const int64_t left = run.columns - at % run.columns, column = run.column + at % run.columns;
    b.layer += column / run.width % run.parts;
    b.count = std::min({b.count, left, run.width - column % run.width});
  }
  return b;
}

/// Calls make(begin, end) over a block, a step at a time, and adds the squares of x, which it leaves as it
/// is, and y there to sums (layers, 2) while they are at hand: in a loop of their own behind it they take a
/// fifth longer (LAMB's first pass at 0.76 of the limit of memory, 0.95 like this). Those of y follow
/// kBehind elements later: roots and quotients of a step are not done when the next one begins, and a sum
/// that waits for them fills the processor's window (an EPYC's first pass of LAMB in cache: 0.57 ns an
/// element, 0.46 like this). Before each step it asks for what a later one will read of the streams
/// `next`. On Intel's cores of the next block and no further: streams begin at the same place of a page, and
/// more blocks of four of them than one and the next are more than the first cache has ways for.
template <class T, class Make, class... Next>
KUAFU_INLINE void add_squares(const Block& b, const Make& make, const T* x, const T* y,
                              double* sums, const Next*... next) {
  constexpr int64_t kStep = BlockSquares<T>::kStep, kBehind = 2 * kStep;
  BlockSquares<T> of_x, of_y;
  int64_t i = 0;
  for (; i + kStep <= b.count; i += kStep) {
    for (int64_t line = i; kAsksAhead && line < i + kStep; line += kLanes) {
      (__builtin_prefetch(next + b.begin + kLayerAhead + line),
       ...);  // beyond the end it does nothing
    }
    of_x.add(x +
             i);  // before `make` writes at the same place of other pages: a read behind that waits
    make(i, i + kStep);
    if (i >= kBehind) of_y.add(y + i - kBehind);
  }
  for (int64_t late = std::max<int64_t>(0, i - kBehind); late < i; late += kStep)
    of_y.add(y + late);
  make(i, b.count);
  sums[2 * b.layer] += of_x.sum(x, i, b.count);
  sums[2 * b.layer + 1] += of_y.sum(y, i, b.count);
}

/// The direction of an element whose moments are those of this step.
template <class T>
struct Direction {
  explicit Direction(const LambFactors& f)
      : rate(static_cast<T>(f.rate)),
        spread(static_cast<T>(f.spread)),
        epsilon(static_cast<T>(f.epsilon)),
        decay(static_cast<T>(f.decay)) {}
  KUAFU_INLINE T operator()(T m, T v, T w) const {
    return m * rate / (std::sqrt(v) * spread + epsilon) + decay * w;
  }
  T rate, spread, epsilon, decay;
};

template <class T, class Grad>
KUAFU_INLINE void lamb_norms_loop(const LayerRun& run, const AdamWData<T, Grad>& data,
                                  const LambFactors& f, double* sums, T* kept) {
  const T beta1 = static_cast<T>(f.beta1), rest1 = static_cast<T>(1 - f.beta1);
  const T beta2 = static_cast<T>(f.beta2), rest2 = static_cast<T>(1 - f.beta2);
  const T factor = static_cast<T>(f.grad);
  const Direction<T> direction(f);
  T block[kBlock];
  for (Block b = block_at(run, 0); b.count > 0; b = block_at(run, b.begin + b.count)) {
    const T* __restrict w = data.w + b.begin;
    T* __restrict m = data.m + b.begin;
    T* __restrict v = data.v + b.begin;
    const auto moved = [&](int64_t i, T gradient) __attribute__((always_inline)) {
      const T g = gradient * factor;
      const T first = beta1 * m[i] + rest1 * g, second = beta2 * v[i] + rest2 * (g * g),
              weight = w[i];
      m[i] = first;  // behind all reads, as in AdamW
      v[i] = second;
      return direction(first, second, weight);
    };
    if (kept != nullptr) {
      T* __restrict place = kept + b.begin;
      const auto make = [&](int64_t i, int64_t end) __attribute__((always_inline)) {
        for (; i < end; ++i) place[i] = moved(i, place[i]);
      };
      add_squares(b, make, w, place, sums, data.w, data.grad, data.m, data.v);
    } else {
      const Grad* __restrict grad = data.grad + b.begin;
      const auto make = [&](int64_t i, int64_t end) __attribute__((always_inline)) {
        for (; i < end; ++i) block[i] = moved(i, widen(grad[i]));
      };
      add_squares(b, make, w, block, sums, data.w, data.grad, data.m, data.v);
    }
  }
}

/// Nothing but memory: the square root and the quotient of each element were in the pass before.
template <class T>
KUAFU_INLINE void layer_step_loop(const LayerRun& run, T* values, const T* steps,
                                  const double* rates) {
  for (Block b = block_at(run, 0); b.count > 0; b = block_at(run, b.begin + b.count)) {
    T* __restrict w = values + b.begin;
    const T* __restrict r = steps + b.begin;
    const T rate = static_cast<T>(rates[b.layer]);
    const auto part = [&](int64_t i, int64_t end) __attribute__((always_inline)) {
      for (; i < end; ++i) w[i] = w[i] - rate * r[i];
    };
    each_ahead<false>(b.count, part, w, r);
  }
}

template <class T>
KUAFU_INLINE void lamb_loop(const LayerRun& run, const AdamWData<T, T>& data, const LambFactors& f,
                            const double* rates) {
  const Direction<T> direction(f);
  for (Block b = block_at(run, 0); b.count > 0; b = block_at(run, b.begin + b.count)) {
    T* __restrict w = data.w + b.begin;
    const T* __restrict m = data.m + b.begin;
    const T* __restrict v = data.v + b.begin;
    const T rate = static_cast<T>(rates[b.layer]);
    for (int64_t i = 0; i < b.count; ++i) w[i] = w[i] - rate * direction(m[i], v[i], w[i]);
  }
}

template <class T, class Grad>
KUAFU_INLINE void lars_norms_loop(const LayerRun& run, const SgdData<T, Grad>& data,
                                  const SgdFactors& f, double* sums) {
  const T factor = static_cast<T>(f.grad), decay = static_cast<T>(f.weight_decay);
  T g[kBlock];
  for (Block b = block_at(run, 0); b.count > 0; b = block_at(run, b.begin + b.count)) {
    const Grad* __restrict from = data.grad + b.begin;
    const T* w = data.w + b.begin;
    if constexpr (std::is_same_v<T, Grad>) {
      if (factor == 1 && decay == 0) {  // the gradient as it is: no copy
        add_squares(
            b, [](int64_t, int64_t) {}, w, from, sums, data.w, data.grad);
        continue;
      }
    }
    const auto make = [&](int64_t i, int64_t end) __attribute__((always_inline)) {
      for (; i < end; ++i) g[i] = widen(from[i]) * factor + decay * w[i];
    };
    add_squares(b, make, w, g, sums, data.w, data.grad);
  }
}

template <class T, class Grad>
KUAFU_INLINE void lars_loop(const LayerRun& run, const SgdData<T, Grad>& data, const SgdFactors& f,
                            const double* rates) {
  const T momentum = static_cast<T>(f.momentum), decay = static_cast<T>(f.weight_decay);
  const T factor = static_cast<T>(f.grad);
  const T most = static_cast<T>(f.most);
  for (Block b = block_at(run, 0); b.count > 0; b = block_at(run, b.begin + b.count)) {
    T* __restrict w = data.w + b.begin;
    T* __restrict u = data.velocity + b.begin;
    const Grad* __restrict grad = data.grad + b.begin;
    const double* of_layer = rates + f.rates_of_layer * b.layer;
    const T rate = static_cast<T>(of_layer[0]);
    const T lr = static_cast<T>(f.rates_of_layer == 2 ? f.lr * of_layer[1] : f.lr);
    const auto part = [&](int64_t i, int64_t end) __attribute__((always_inline)) {
      for (; i < end; ++i) {
        T x = widen(grad[i]) * factor + decay * w[i];
        x = x > most ? most : x < -most ? -most : x;  // what is no number stays so
        u[i] = momentum * u[i] + rate * x;
        w[i] = w[i] - lr * u[i];
      }
    };
    each_ahead<false>(b.count, part, w, u, grad);
  }
}

}  // namespace

#define KUAFU_LAYER_KERNELS(T, Grad)                                              \
  KUAFU_WIDE void lamb_norms(const LayerRun& run, const AdamWData<T, Grad>& data, \
                             const LambFactors& factors, double* sums, T* kept) { \
    lamb_norms_loop(run, data, factors, sums, kept);                              \
  }                                                                               \
  KUAFU_WIDE void lars_norms(const LayerRun& run, const SgdData<T, Grad>& data,   \
                             const SgdFactors& factors, double* sums) {           \
    lars_norms_loop(run, data, factors, sums);                                    \
  }                                                                               \
  KUAFU_WIDE void lars(const LayerRun& run, const SgdData<T, Grad>& data,         \
                       const SgdFactors& factors, const double* rates) {          \
    lars_loop(run, data, factors, rates);                                         \
  }
KUAFU_LAYER_KERNELS(float, float)
KUAFU_LAYER_KERNELS(float, BF16)
KUAFU_LAYER_KERNELS(float, F16)
KUAFU_LAYER_KERNELS(double, double)

KUAFU_WIDE void lamb(const LayerRun& run, const AdamWData<float, float>& data,
                     const LambFactors& factors, const double* rates) {
  lamb_loop(run, data, factors, rates);
}
KUAFU_WIDE void lamb(const LayerRun& run, const AdamWData<double, double>& data,
                     const LambFactors& factors, const double* rates) {
  lamb_loop(run, data, factors, rates);
}
KUAFU_WIDE void layer_step(const LayerRun& run, float* w, const float* r, const double* rates) {
  layer_step_loop(run, w, r, rates);
}
KUAFU_WIDE void layer_step(const LayerRun& run, double* w, const double* r, const double* rates) {
  layer_step_loop(run, w, r, rates);
}

}  // namespace kuafu::kernels
