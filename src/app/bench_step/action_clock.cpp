// SPDX-License-Identifier: Apache-2.0
#include "app/bench_step/action_clock.h"

#include <chrono>
#include <utility>

#include "kuafu/parallel/pipeline/play.h"

namespace kuafu {
namespace {

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

void ActionClock::begin() {
  seconds_.clear();
  so_far_ = 0;
  mark_ = seconds_now();
}

void ActionClock::leave_out(const std::function<void()>& wait) {
  so_far_ += seconds_now() - mark_;
  wait();
  mark_ = seconds_now();
}

void ActionClock::note(int, const pipeline::Action& action, double, double) {
  if (!pipeline::is_message(action.op)) take_down();
}

pipeline::RowSeconds ActionClock::end() {
  take_down();
  return std::move(seconds_);
}

void ActionClock::take_down() {
  const double now = seconds_now();
  seconds_.push_back(so_far_ + now - mark_);
  so_far_ = 0;
  mark_ = now;
}

}  // namespace kuafu
