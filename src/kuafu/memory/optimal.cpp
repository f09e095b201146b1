// SPDX-License-Identifier: Apache-2.0
#include <deque>
#include <mutex>

#include "kuafu/memory/optimum.h"
#include "kuafu/memory/policy.h"

namespace kuafu::memory {
namespace {

/// What was searched for last: ranks of one process often have the same trace, and a policy, its
/// score and a simulation ask for the same least.
class Searches {
 public:
  Optimum find(const UseTrace& trace, int64_t budget, const SearchLimits& limits) {
    const std::lock_guard lock(mutex_);  // held while CBC searches: it is not made for threads
    for (const Search& done : done_) {
      const bool is_enough = done.optimum.is_proven || done.seconds >= limits.seconds;
      if (is_enough && done.budget == budget && done.trace == trace) return done.optimum;
    }
    const Optimum optimum = least_bytes(trace, budget, limits);
    done_.push_front({trace, budget, limits.seconds, optimum});
    if (done_.size() > kKept) done_.pop_back();
    return optimum;
  }

 private:
  static constexpr size_t kKept = 16;

  struct Search {
    UseTrace trace;
    int64_t budget;
    double seconds;
    Optimum optimum;
  };
  std::mutex mutex_;
  std::deque<Search> done_;
};

}  // namespace

Optimum found_least_bytes(const UseTrace& trace, int64_t budget, const SearchLimits& limits) {
  static Searches searches;
  return searches.find(trace, budget, limits);
}

Policy make_optimal_policy(const UseTrace& trace, int64_t budget) {
  const Optimum least = found_least_bytes(trace, budget);
  return keeping(trace, segments_of(trace, budget), least.is_kept);
}

}  // namespace kuafu::memory
