// SPDX-License-Identifier: Apache-2.0
#include "app/bench_step/stepper.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <thread>

#include "app/bench_step/action_clock.h"
#include "app/bench_step/resident.h"
#include "app/bench_step/silent.h"
#include "kuafu/comm/gather.h"
#include "kuafu/comm/turns.h"
#include "kuafu/comm/worlds.h"
#include "kuafu/engine/engine.h"
#include "kuafu/meter/book.h"
#include "kuafu/record/json.h"

namespace kuafu {
namespace {

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

void Stepper::lead(const std::function<void(const RunSteps&)>& lead) {
  if (options_.is_mpi) {
    run_on_mpi([&](Communicator& world) {
      KUAFU_REQUIRE(world.size() == num_ranks(plan_), "the launcher started ", world.size(),
                    " ranks, the plan has ", num_ranks(plan_));
      answers_.resize(static_cast<size_t>(world.size()));
      rank_body(world, lead);
    });
    return;
  }
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

void Stepper::rank_body(Communicator& world, const std::function<void(const RunSteps&)>& lead) {
  ActionClock clock;
  std::optional<Turns> turns = turns_of(world);
  // Silent ranks that share cores hand them on where others would wait, and are timed while they
  // have one.
  const auto let_others = [&] {
    clock.leave_out([&] {
      if (turns && turns->leave()) turns->enter();
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
    if (options_.is_mpi || world.rank() == 0) restart_resident_peak();
    ranks.barrier();
    mine.begin = now();
    for (int64_t i = 0; i < count; ++i) {
      std::optional<TurnsScope> in_turns;
      if (is_silent_pipeline()) {
        // In step with each other, as where they talk: whoever runs on alone, the others done with
        // all their steps, has the memory to itself (7 % faster by the fifth step).
        world.barrier();
        in_turns.emplace(turns);
      }
      clock.begin();
      mine.losses.push_back(engine.step().loss);
      mine.ends.push_back(now());
      if (is_silent_pipeline()) mine.actions.push_back(clock.end());
    }
    mine.tensor_bytes = book.peak();
    mine.resident_bytes = resident_peak() - options_.resident_before;
    return mine;
  };
  if (options_.is_mpi) {
    lead_by_calls(world, steps, lead);
    return;
  }
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

StepSamples Stepper::run(const std::function<RankSamples(int64_t)>& steps, int64_t count) {
  order(count);
  RankSamples mine = steps(count);
  std::unique_lock lock(mutex_);
  answers_[0] = std::move(mine);
  ++num_answers_;
  const auto ranks = static_cast<int>(answers_.size());
  changed_.wait(lock, [&] { return num_answers_ == ranks || has_failed_; });
  KUAFU_REQUIRE(num_answers_ == ranks, "another rank has failed");
  StepSamples all = samples_of_all(count);
  all.resident_bytes = {resident_peak() - options_.resident_before};  // threads share a process
  return all;
}

StepSamples Stepper::samples_of_all(int64_t count) const {
  const auto steps_done = static_cast<size_t>(count);
  StepSamples all{
      .seconds = is_silent_pipeline() ? limit_seconds(steps_done) : step_seconds(steps_done),
      .losses = answers_[0].losses,
      .tensor_bytes = {},
      .resident_bytes = {}};
  for (const RankSamples& a : answers_) {
    all.tensor_bytes.push_back(a.tensor_bytes);
    all.resident_bytes.push_back(a.resident_bytes);
  }
  return all;
}

void Stepper::lead_by_calls(Communicator& world, const std::function<RankSamples(int64_t)>& steps,
                            const std::function<void(const RunSteps&)>& lead) {
  if (world.rank() != 0) {
    while (!together(world, steps, 0).seconds.empty()) {
    }
    return;
  }
  lead([&](int64_t count) { return together(world, steps, count); });
  together(world, steps, 0);
}

StepSamples Stepper::together(Communicator& world, const std::function<RankSamples(int64_t)>& steps,
                              int64_t count) {
  auto ordered = static_cast<double>(count);
  world.broadcast({&ordered, 1, DType::kF64}, 0).wait_host();
  count = static_cast<int64_t>(ordered);
  if (count == 0) return {};
  const RankSamples mine = steps(count);
  // One clock for all processes of a machine.
  const Json told = {{"begin", mine.begin},
                     {"ends", mine.ends},
                     {"losses", mine.losses},
                     {"tensor_bytes", mine.tensor_bytes},
                     {"resident_bytes", mine.resident_bytes},
                     {"actions", mine.actions}};
  const std::vector<std::string> all = gather_texts(world, told.dump());
  for (size_t rank = 0; rank < all.size(); ++rank) {
    const Json answer = Json::parse(all[rank]);
    answers_[rank] = {.begin = answer["begin"],
                      .ends = answer["ends"].get<std::vector<double>>(),
                      .losses = answer["losses"].get<std::vector<double>>(),
                      .tensor_bytes = answer["tensor_bytes"],
                      .resident_bytes = answer["resident_bytes"],
                      .actions = answer["actions"].get<std::vector<pipeline::RowSeconds>>()};
  }
  if (world.rank() != 0)
    return {.seconds = {0}, .losses = {}, .tensor_bytes = {}, .resident_bytes = {}};
  return samples_of_all(count);
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
