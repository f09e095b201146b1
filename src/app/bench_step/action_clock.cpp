// SPDX-License-Identifier: Apache-2.0
#include "app/bench_step/action_clock.h"

#include <time.h>

#include <utility>

#include "kuafu/parallel/pipeline/play.h"

namespace kuafu {
namespace {

double thread_seconds() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

}  // namespace

void ActionClock::begin() {
  seconds_.clear();
  mark_ = thread_seconds();
}

void ActionClock::note(int, const pipeline::Action& action, double, double) {
  if (pipeline::is_message(action.op)) return;
  const double now = thread_seconds();
  seconds_.push_back(now - mark_);
  mark_ = now;
}

pipeline::RowSeconds ActionClock::end() {
  seconds_.push_back(thread_seconds() - mark_);
  return std::move(seconds_);
}

}  // namespace kuafu
