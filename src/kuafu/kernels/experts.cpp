// SPDX-License-Identifier: Apache-2.0
#include "kuafu/kernels/experts.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <type_traits>
#include <vector>

namespace kuafu::kernels {
namespace {

/// Scores that differ by less than this share of themselves are equal to an expert that chooses.
/// Far above what rounding does to equal scores, sqrt(K) eps for sums of K terms, and far below what
/// training notices: 2^26 eps for f64, 2^5 eps for f32, whose certificate is the f64 twin's.
template <class T>
constexpr T kTie = std::is_same_v<T, double> ? T{0x1.0p-26} : T{0x1.0p-18};

/// What experts and tokens are chosen by: a score that is no number, of a run that has diverged, is
/// below all others, so that every choice stays one.
template <class T>
T ranked(T score) {
  return std::isnan(score) ? T{-1} : score;
}

/// Routes one sample after the other.
template <class T>
class Sampler {
 public:
  Sampler(const RouteShape& n, const RouteArrays<T>& a)
      : a_(a),
        top_k_(n.top_k),
        capacity_(n.capacity),
        sequence_(n.tokens),
        experts_(n.experts),
        slots_(n.slots),
        picks_(static_cast<size_t>(sequence_ * std::max<int64_t>(n.top_k, 1))),
        fill_(static_cast<size_t>(experts_)) {}

  void sample(int64_t b) {
    probs_ = a_.probs + b * sequence_ * experts_;
    norm_ = a_.norm + b * sequence_;
    token_ = a_.token + b * experts_ * slots_;
    gates_ = a_.gates + b * experts_ * slots_;
    std::fill_n(token_, experts_ * slots_, -1);
    std::fill_n(gates_, experts_ * slots_, T{0});
    std::fill_n(norm_, sequence_, T{1});
    std::fill(fill_.begin(), fill_.end(), 0);
    softmax(a_.logits + b * sequence_ * experts_, a_.lse + b * sequence_);
    if (top_k_ == 0) {
      experts_choose();
    } else {
      tokens_choose(b);
    }
    balance(b);
  }

  double balance_sum = 0, z_sum = 0;
  int64_t dropped = 0, total = 0;

 private:
  void softmax(const T* logits, T* lse) {
    for (int64_t t = 0; t < sequence_; ++t) {
      const T* in = logits + t * experts_;
      T* p = probs_ + t * experts_;
      const T top = *std::max_element(in, in + experts_);
      T sum = 0;
      for (int64_t e = 0; e < experts_; ++e) sum += p[e] = std::exp(in[e] - top);
      for (int64_t e = 0; e < experts_; ++e) p[e] /= sum;
      lse[t] = top + std::log(sum);
      z_sum += static_cast<double>(lse[t]) * static_cast<double>(lse[t]);
    }
  }

  void put(int64_t expert, int64_t t) {
    int64_t& used = fill_[static_cast<size_t>(expert)];
    int64_t* counts = a_.counts;
    ++counts[experts_ + expert];
    if (used == capacity_) {
      ++dropped;
      return;
    }
    ++counts[expert];
    token_[expert * slots_ + used] = t;
    gates_[expert * slots_ + used] = probs_[t * experts_ + expert] / norm_[t];
    ++used;
  }

  /// The k best experts of a token, best first.
  void pick(int64_t t, int64_t* best) {
    const T* p = probs_ + t * experts_;
    T last = std::numeric_limits<T>::infinity();
    int64_t last_at = -1;
    for (int64_t k = 0; k < top_k_; ++k) {
      int64_t at = -1;
      for (int64_t e = 0; e < experts_; ++e) {
        const T score = ranked(p[e]);
        const bool is_after = score < last || (score == last && e > last_at);
        if (is_after && (at < 0 || score > ranked(p[at]))) at = e;
      }
      best[k] = at;
      last = ranked(p[at]);
      last_at = at;
    }
  }

  void tokens_choose(int64_t b) {
    for (int64_t t = 0; t < sequence_; ++t) {
      int64_t* best = &picks_[static_cast<size_t>(t * top_k_)];
      pick(t, best);
      std::copy_n(best, top_k_, a_.chosen + (b * sequence_ + t) * top_k_);
      if (top_k_ == 1) continue;
      T sum = 0;
      for (int64_t k = 0; k < top_k_; ++k) sum += probs_[t * experts_ + best[k]];
      norm_[t] = sum;
    }
    for (int64_t k = 0; k < top_k_; ++k) {
      for (int64_t t = 0; t < sequence_; ++t) {
        const int64_t expert = picks_[static_cast<size_t>(t * top_k_ + k)];
        if (k == 1 && a_.coin != nullptr && !visits(b, t, expert)) continue;
        ++total;
        put(expert, t);
      }
    }
  }

  bool visits(int64_t b, int64_t t, int64_t expert) {
    const double chance = 2.0 * static_cast<double>(probs_[t * experts_ + expert] / norm_[t]);
    return a_.coin[b * sequence_ + t] < chance;
  }

  /// Each expert takes the `capacity_` tokens that it scores highest. Scores within kTie of the
  /// least that is taken, v, are equal, and equal scores go to the first tokens: tokens of equal
  /// bytes that see equal tokens (without a position's table) have equal scores in exact
  /// arithmetic, and which rounding left larger depends on the layout. v is the order statistic,
  /// which moves no further than the scores do, so only a score at the rim of the band can fall
  /// otherwise.
  void experts_choose() {
    std::vector<int64_t> order(static_cast<size_t>(sequence_));
    std::vector<char> is_taken(static_cast<size_t>(sequence_), 0);
    for (int64_t e = 0; e < experts_; ++e) {
      const auto score = [&](int64_t t) { return ranked(probs_[t * experts_ + e]); };
      std::iota(order.begin(), order.end(), int64_t{0});
      const auto last = order.begin() + (capacity_ - 1);
      std::nth_element(order.begin(), last, order.end(),
                       [&](int64_t a, int64_t b) { return score(a) > score(b); });
      const T least = score(*last), band = least * kTie<T>;
      // Which of three ranks a token has: clearly in, tied, clearly out.
      const auto rank = [&](int64_t t) {
        return score(t) > least + band ? 0 : score(t) >= least - band ? 1 : 2;
      };
      std::sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
        if (rank(a) != rank(b)) return rank(a) < rank(b);
        return rank(a) == 1 || score(a) == score(b) ? a < b : score(a) > score(b);
      });
      for (int64_t c = 0; c < capacity_; ++c) {
        put(e, order[static_cast<size_t>(c)]);
        is_taken[static_cast<size_t>(order[static_cast<size_t>(c)])] = 1;
      }
    }
    total += sequence_;
    dropped += std::count(is_taken.begin(), is_taken.end(), 0);
  }

  /// share and E sum f P of the sample.
  void balance(int64_t b) {
    T* share = a_.share + b * experts_;
    std::fill_n(share, experts_, T{0});
    if (top_k_ == 0) return;
    const T unit = static_cast<T>(experts_) / static_cast<T>(sequence_ * sequence_);
    for (int64_t t = 0; t < sequence_; ++t) share[picks_[static_cast<size_t>(t * top_k_)]] += unit;
    for (int64_t t = 0; t < sequence_; ++t) {
      for (int64_t e = 0; e < experts_; ++e) balance_sum += share[e] * probs_[t * experts_ + e];
    }
  }

  const RouteArrays<T>& a_;
  int64_t top_k_, capacity_, sequence_, experts_, slots_;
  std::vector<int64_t> picks_;  // (S, k)
  std::vector<int64_t> fill_;   // slots used by expert
  T *probs_ = nullptr, *norm_ = nullptr, *gates_ = nullptr;
  int64_t* token_ = nullptr;
};

/// Calls f(sample, slot of (E, B, C), row) for each slot in the order of (B, E, C).
template <class F>
void for_slots(const SlotShape& n, const int64_t* rows, F f) {
  for (int64_t b = 0; b < n.samples; ++b) {
    for (int64_t e = 0; e < n.experts; ++e) {
      for (int64_t c = 0; c < n.slots; ++c) f(b, (e * n.samples + b) * n.slots + c, *rows++);
    }
  }
}

}  // namespace

template <class T>
void route(const RouteShape& n, const RouteArrays<T>& a) {
  std::fill_n(a.counts, 2 * n.experts + 2, int64_t{0});
  Sampler<T> sampler(n, a);
  for (int64_t b = 0; b < n.samples; ++b) sampler.sample(b);
  a.losses[0] = static_cast<T>(sampler.balance_sum);
  a.losses[1] = static_cast<T>(sampler.z_sum);
  a.counts[2 * n.experts] = sampler.dropped;
  a.counts[2 * n.experts + 1] = sampler.total;
}

void take_slots(const SlotShape& n, const int64_t* rows, const void* x, void* slots,
                int64_t bytes) {
  const auto* from = static_cast<const char*>(x);
  auto* to = static_cast<char*>(slots);
  for_slots(n, rows, [&](int64_t sample, int64_t slot, int64_t row) {
    if (row < 0) {
      std::memset(to + slot * bytes, 0, static_cast<size_t>(bytes));
    } else {
      std::memcpy(to + slot * bytes, from + (sample * n.num_rows + row) * bytes,
                  static_cast<size_t>(bytes));
    }
  });
}

template <class T>
void sum_slots(const SlotShape& n, const int64_t* rows, const T* slots, const T* gates, T* y) {
  for_slots(n, rows, [&](int64_t sample, int64_t slot, int64_t row) {
    const T weight = gates != nullptr ? *gates++ : T{1};
    if (row < 0) return;
    T* to = y + (sample * n.num_rows + row) * n.hidden;
    const T* from = slots + slot * n.hidden;
    for (int64_t h = 0; h < n.hidden; ++h) to[h] += weight * from[h];
  });
}

template <class T>
void combine_backward(const SlotShape& n, const int64_t* rows, const CombineArrays<T>& a) {
  const T* gate = a.gates;
  T* dgate = a.dgates;
  for_slots(n, rows, [&](int64_t sample, int64_t slot, int64_t row) {
    const T weight = *gate++;
    T* dslot = a.dslots + slot * n.hidden;
    if (row < 0) {
      std::fill_n(dslot, n.hidden, T{0});
      *dgate++ = 0;
      return;
    }
    const T *dy = a.dy + (sample * n.num_rows + row) * n.hidden, *y = a.slots + slot * n.hidden;
    for (int64_t h = 0; h < n.hidden; ++h) dslot[h] = weight * dy[h];
    constexpr int64_t kLanes = 16;  // independent sums, to be vectorised
    std::array<T, kLanes> part{};
    const int64_t even = n.hidden / kLanes * kLanes;
    for (int64_t h = 0; h < even; h += kLanes) {
      for (int64_t i = 0; i < kLanes; ++i) part[static_cast<size_t>(i)] += dy[h + i] * y[h + i];
    }
    T dot = std::accumulate(part.begin(), part.end(), T{0});
    for (int64_t h = even; h < n.hidden; ++h) dot += dy[h] * y[h];
    *dgate++ = dot;
  });
}

template void route(const RouteShape&, const RouteArrays<float>&);
template void sum_slots(const SlotShape&, const int64_t*, const float*, const float*, float*);
template void combine_backward(const SlotShape&, const int64_t*, const CombineArrays<float>&);
template void route(const RouteShape&, const RouteArrays<double>&);
template void sum_slots(const SlotShape&, const int64_t*, const double*, const double*, double*);
template void combine_backward(const SlotShape&, const int64_t*, const CombineArrays<double>&);

}  // namespace kuafu::kernels
