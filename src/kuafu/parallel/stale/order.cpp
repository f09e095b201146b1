// SPDX-License-Identifier: Apache-2.0
#include "kuafu/parallel/stale/order.h"

#include <algorithm>

#include "kuafu/base/errors.h"

namespace kuafu {
namespace {

/// Why one server can have recorded no such order; empty: it can.
std::string why_unlawful(const PushOrder& order, const PushRules& rules) {
  if (std::ssize(order) != rules.workers * rules.steps) {
    return text(order.size(), " updates for ", rules.steps, " steps of ", rules.workers,
                " workers");
  }
  const auto workers = static_cast<size_t>(rules.workers);
  const int64_t first = rules.begun > 0 && !order.empty() ? order[0].version : 0;
  std::vector<int64_t> pushed(workers, rules.begun), read(workers, first);  // -1: waits for others
  for (int64_t i = 0; i < std::ssize(order); ++i) {
    const AppliedPush& push = order[static_cast<size_t>(i)];
    const std::string what = text("update ", i + 1, ", of worker ", push.worker);
    if (push.worker < 0 || push.worker >= rules.workers) return what + ": there is no such worker";
    const auto w = static_cast<size_t>(push.worker);
    if (push.step != pushed[w]) {
      return text(what, ", is its step ", push.step + 1, " after step ", pushed[w]);
    }
    const int64_t ahead = push.step - *std::min_element(pushed.begin(), pushed.end());
    if (ahead > rules.staleness) {
      return text(what, ", is its step ", push.step + 1, ", ", ahead,
                  " ahead of the slowest; allowed: parallel.data.staleness = ", rules.staleness);
    }
    if (push.version != read[w]) {
      return text(what, ", was computed with version ", push.version, "; the worker had read ",
                  read[w]);
    }
    ++pushed[w];
    const int64_t slowest = *std::min_element(pushed.begin(), pushed.end());
    const int64_t newest = first + i + 1;
    for (size_t other = 0; other < workers; ++other) {  // it reads as soon as it may go on
      if (other != w && read[other] >= 0) continue;
      read[other] = pushed[other] - slowest <= rules.staleness ? newest : -1;
    }
    const bool is_even = *std::max_element(pushed.begin(), pushed.end()) == slowest;
    if (is_even && std::count(rules.met.begin(), rules.met.end(), slowest) > 0)
      read.assign(workers, newest);
  }
  return {};
}

}  // namespace

std::string why_unlawful(const std::vector<PushOrder>& orders, const PushRules& rules) {
  for (size_t s = 0; s < orders.size(); ++s) {
    const std::string why = why_unlawful(orders[s], rules);
    if (!why.empty()) return text("server ", s, ": ", why);
  }
  return {};
}

void check_script(const std::vector<int>& script, int64_t workers, int64_t staleness) {
  std::vector<int64_t> pushed(static_cast<size_t>(workers));
  for (size_t i = 0; i < script.size(); ++i) {
    const int w = script[i];
    KUAFU_REQUIRE(w >= 0 && w < workers, "entry ", i, " of the script is worker ", w,
                  "; allowed: 0 to ", workers - 1);
    const int64_t slowest = *std::min_element(pushed.begin(), pushed.end());
    const int64_t ahead = pushed[static_cast<size_t>(w)] - slowest;
    KUAFU_REQUIRE(ahead <= staleness, "entry ", i, " of the script is step ",
                  pushed[static_cast<size_t>(w)], " of worker ", w, ", ", ahead,
                  " steps ahead of the slowest; allowed: parallel.data.staleness = ", staleness);
    ++pushed[static_cast<size_t>(w)];
  }
}

}  // namespace kuafu
