// SPDX-License-Identifier: Apache-2.0
#include "app/bench_step/stepper.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <thread>

#include "app/bench_step/action_clock.h"
#include "app/bench_step/silent.h"
#include "kuafu/comm/worlds.h"
#include "kuafu/engine/engine.h"
#include "kuafu/meter/book.h"

namespace kuafu {
namespace {

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

void Stepper::lead(const std::function<void(const Run&)>& lead) {
  const auto ranks = static_cast<int>(num_ranks(plan_));
  answers_.resize(static_cast<size_t>(ranks));
  run_on_threads(ranks, [&](Communicator& world) {
    try {
      rank_body(world, lead);
    } catch (...) {
      // Whoever sleeps until the next order is not in a call, and would not hear of it.
      const std::lock_guard lock(mutex_);
      has_failed_ = true;
      changed_.notify_all();
      throw;
    }
  });
}

void Stepper::rank_body(Communicator& world, const std::function<void(const Run&)>& lead) {
  ActionClock clock;
  // Silent ranks that share cores hand them on where others would wait, and are timed while they
  // have one.
  const auto let_others = [&] {
    clock.leave_out([&] {
      if (world.set_turns(false)) world.set_turns(true);
    });
  };
  const auto silent = options_.is_silent ? make_silent(world.rank(), world.size(), let_others)
                                         : std::unique_ptr<Communicator>();
  Communicator& ranks = silent ? *silent : world;
  const Registries registries = builtin_registries();
  const auto data = make_dataset(plan_.data, plan_.model, plan_.train.seed, "");
  RankBook book(world.rank());
  Ledger ledger;
  const BookScope booked(options_.is_metered ? &book : nullptr);
  Engine engine(plan_, registries, ranks, *data,
                {.ledger = options_.is_metered ? &ledger : nullptr});
  if (is_silent_pipeline()) engine.observe(&clock);
  if (world.rank() == 0) schedule_ = engine.stages().schedule;
  const auto steps = [&](int64_t count) {
    RankSamples mine;
    book.restart();
    ranks.barrier();
    mine.begin = now();
    for (int64_t i = 0; i < count; ++i) {
      std::optional<TurnsScope> turns;
      if (is_silent_pipeline()) {
        // In step with each other, as where they talk: whoever runs on alone, the others done with
        // all their steps, has the memory to itself (7 % faster by the fifth step).
        world.barrier();
        turns.emplace(world);
      }
      clock.begin();
      mine.losses.push_back(engine.step().loss);
      mine.ends.push_back(now());
      if (is_silent_pipeline()) mine.actions.push_back(clock.end());
    }
    mine.tensor_bytes = book.peak();
    return mine;
  };
  if (world.rank() != 0) {
    follow(steps, world.rank());
    return;
  }
  lead([&](int64_t count) { return run(steps, count); });
  order(0);
}

void Stepper::follow(const std::function<RankSamples(int64_t)>& steps, int rank) {
  for (int64_t seen = 0;; ++seen) {
    int64_t count = 0;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return num_orders_ > seen || has_failed_; });
      if (has_failed_) return;
      count = ordered_;
    }
    if (count == 0) return;
    RankSamples mine = steps(count);
    const std::lock_guard lock(mutex_);
    answers_[static_cast<size_t>(rank)] = std::move(mine);
    ++num_answers_;
    changed_.notify_all();
  }
}

void Stepper::order(int64_t count) {
  const std::lock_guard lock(mutex_);
  ordered_ = count;
  num_answers_ = 0;
  ++num_orders_;
  changed_.notify_all();
}

Samples Stepper::run(const std::function<RankSamples(int64_t)>& steps, int64_t count) {
  order(count);
  RankSamples mine = steps(count);
  std::unique_lock lock(mutex_);
  answers_[0] = std::move(mine);
  ++num_answers_;
  const auto ranks = static_cast<int>(answers_.size());
  changed_.wait(lock, [&] { return num_answers_ == ranks || has_failed_; });
  KUAFU_REQUIRE(num_answers_ == ranks, "another rank has failed");
  const auto steps_done = static_cast<size_t>(count);
  Samples all{
      .seconds = is_silent_pipeline() ? limit_seconds(steps_done) : step_seconds(steps_done),
      .losses = answers_[0].losses,
      .tensor_bytes = {}};
  for (const RankSamples& a : answers_) all.tensor_bytes.push_back(a.tensor_bytes);
  return all;
}

std::vector<double> Stepper::step_seconds(size_t count) const {
  double last = answers_[0].begin;
  for (const RankSamples& a : answers_) last = std::min(last, a.begin);
  std::vector<double> seconds;
  for (size_t i = 0; i < count; ++i) {
    double end = 0;
    for (const RankSamples& a : answers_) end = std::max(end, a.ends[i]);
    seconds.push_back(end - last);
    last = end;
  }
  return seconds;
}

std::vector<double> Stepper::limit_seconds(size_t count) const {
  const int cores = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  std::vector<double> seconds;
  for (size_t i = 0; i < count; ++i) {
    std::vector<pipeline::RowSeconds> rows;
    for (const RankSamples& a : answers_) rows.push_back(a.actions[i]);
    seconds.push_back(pipeline::length_on_cores(schedule_, rows, cores));
  }
  return seconds;
}

}  // namespace kuafu
