// SPDX-License-Identifier: Apache-2.0
#include "app/bench_step/stepper.h"

#include <algorithm>
#include <chrono>
#include <optional>

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
  const auto silent = options_.is_silent ? make_silent(world.rank(), world.size())
                                         : std::unique_ptr<Communicator>();
  Communicator& ranks = silent ? *silent : world;
  const Registries registries = builtin_registries();
  const auto data = make_dataset(plan_.data, plan_.model, plan_.train.seed, "");
  RankBook book(world.rank());
  Ledger ledger;
  const BookScope booked(options_.is_metered ? &book : nullptr);
  Engine engine(plan_, registries, ranks, *data,
                {.ledger = options_.is_metered ? &ledger : nullptr});
  const auto steps = [&](int64_t count) {
    RankSamples mine;
    book.restart();
    ranks.barrier();
    mine.begin = now();
    for (int64_t i = 0; i < count; ++i) {
      mine.losses.push_back(engine.step().loss);
      mine.ends.push_back(now());
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
  Samples all;
  all.losses = answers_[0].losses;
  double last = answers_[0].begin;
  for (const RankSamples& a : answers_) {
    last = std::min(last, a.begin);
    all.tensor_bytes.push_back(a.tensor_bytes);
  }
  for (size_t i = 0; i < static_cast<size_t>(count); ++i) {
    double end = 0;
    for (const RankSamples& a : answers_) end = std::max(end, a.ends[i]);
    all.seconds.push_back(end - last);
    last = end;
  }
  return all;
}

}  // namespace kuafu
