// SPDX-License-Identifier: Apache-2.0
#include "tests/memory/campaign.h"

#include <cmath>
#include <map>

#include "kuafu/base/errors.h"
#include "kuafu/memory/optimum.h"
#include "kuafu/memory/play.h"
#include "tests/memory/exhaustive.h"

namespace kuafu::memory {
namespace {

int64_t regret_of(int64_t bytes, double least) {
  if (static_cast<double>(bytes) <= least) return 0;
  if (least <= 0) return kFromNothing;
  return static_cast<int64_t>(std::ceil(1000 * (static_cast<double>(bytes) / least - 1)));
}

class Checker {
 public:
  Checker(const Sample& sample, const SampleShape& shape) : sample_(sample), shape_(shape) {}

  Checked check() {
    relaxed_ = least_bytes_bound(sample_.trace, sample_.budget);
    check_optimum();
    for (const Contender& contender : contenders()) check_contender(contender);
    return out_;
  }

 private:
  const Optimum& optimum_of(int64_t steps) {
    const auto found = optima_.find(steps);
    if (found != optima_.end()) return found->second;
    const Optimum optimum =
        least_bytes(repeated(sample_.trace, steps), sample_.budget, {.seconds = 10});
    if (!optimum.is_proven) ++out_.unproven;
    // Of several steps the bound may be larger by what rounding took off the one and not the other.
    const double bound = relaxed_ * static_cast<double>(steps);
    demand(bound <= static_cast<double>(optimum.bytes) * (1 + 1e-12), "the bound of ", steps,
           " steps is ", bound, ", their optimum ", optimum.bytes);
    demand(optimum.relaxed <= static_cast<double>(optimum.bytes), "the relaxation of ", steps,
           " steps is ", optimum.relaxed, ", their optimum ", optimum.bytes);
    return optima_.emplace(steps, optimum).first->second;
  }

  void check_optimum() {
    const Optimum& optimum = optimum_of(1);
    out_.over_bound = regret_of(optimum.bytes, relaxed_ * (1 + 1e-12));
    const Segments all = segments_of(sample_.trace, sample_.budget);
    const Played played =
        play(sample_.trace, sample_.budget, keeping(sample_.trace, all, optimum.is_kept));
    demand(played.steps == 1 && played.traffic.bytes() == optimum.bytes, "the optimum of ",
           optimum.bytes, " bytes is played in ", played.steps, " steps of ",
           played.traffic.bytes(), " together");
    if (sample_.trace.num_chunks() > kMostExhaustive || !optimum.is_proven) return;
    out_.is_exhaustive = true;
    const int64_t least = exhaustive_least_bytes(sample_.trace, sample_.budget);
    demand(optimum.bytes == least, "the optimum is ", optimum.bytes, ", of all states tried ",
           least);
  }

  void check_contender(const Contender& contender) {
    const Played played = play(sample_.trace, sample_.budget,
                               builtin_policies().find(contender.policy), contender.knobs);
    const int64_t bytes = played.traffic.bytes();
    const double bound = relaxed_ * static_cast<double>(played.steps);
    demand(bound <= static_cast<double>(bytes) * (1 + 1e-12), contender.label, " moves ", bytes,
           " bytes in ", played.steps, " steps, bound ", bound);
    if (shape_.are_clean && shape_.are_equal && contender.label == "belady") {
      demand(std::abs(bound - static_cast<double>(bytes)) <= 1e-9 * (bound + 1), "belady moves ",
             bytes, " bytes of clean equal chunks, bound ", bound);
    }
    Result result{played.steps, kUnknown};
    if (played.steps <= kMostSteps) {
      const Optimum& optimum = optimum_of(played.steps);
      demand(optimum.bound <= static_cast<double>(bytes), contender.label, " moves ", bytes,
             " bytes in ", played.steps, " steps, optimum at least ", optimum.bound);
      if (optimum.is_proven) result.regret = regret_of(bytes, static_cast<double>(optimum.bytes));
    }
    out_.results.push_back(result);
  }

  template <class... Words>
  void demand(bool holds, const Words&... words) {
    if (!holds) out_.wrong.push_back(text(words...));
  }

  const Sample& sample_;
  const SampleShape& shape_;
  double relaxed_ = 0;
  std::map<int64_t, Optimum> optima_;
  Checked out_;
};

}  // namespace

const std::vector<Contender>& contenders() {
  static const std::vector<Contender> kAll = {
      {"host", "host", {}},
      {"static", "static", {}},
      {"lru", "lru", {}},
      {"belady", "belady", {}},
      {"auto", "auto", {}},
      {"auto, no margin", "auto", {.margin = 0}},
      {"auto, cyclic", "auto", {.horizon = Horizon::kCycle}},
      {"lru, prefetch 2", "lru", {.prefetch = 2}},
      {"belady, prefetch 2", "belady", {.prefetch = 2}},
      {"auto, no margin, prefetch 2", "auto", {.prefetch = 2, .margin = 0}},
  };
  return kAll;
}

Checked check_sample(uint64_t seed, uint64_t index) {
  const SampleShape shape = shape_of(index);
  const Sample drawn = sample(seed, index, shape);
  try {
    return Checker(drawn, shape).check();
  } catch (const Error& e) {
    Checked out;
    out.results.resize(contenders().size());
    out.wrong.push_back(text("ended with: ", e.what()));
    return out;
  }
}

}  // namespace kuafu::memory
