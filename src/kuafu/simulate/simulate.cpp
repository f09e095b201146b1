// SPDX-License-Identifier: Apache-2.0
#include "kuafu/simulate/simulate.h"

#include <algorithm>

#include "kuafu/engine/observed_step.h"
#include "kuafu/meter/op_trace.h"
#include "kuafu/simulate/activities.h"
#include "kuafu/simulate/last_step.h"
#include "kuafu/simulate/replay.h"

namespace kuafu {
namespace {

/// Tokens without substance: the rank program on meta tensors needs their number only.
class NoData : public Dataset {
 public:
  explicit NoData(const ModelPlan& model) : model_(model) {}
  int64_t vocab() const override { return model_.vocab; }
  int64_t num_train_samples() const override { return 0; }
  int64_t num_validation_samples() const override { return 0; }
  Tokens train(int64_t, int64_t count) const override { return blank_tokens(model_, count); }
  Tokens validation(int64_t, int64_t count) const override { return train(0, count); }
  std::string describe() const override { return "no data"; }

 private:
  ModelPlan model_;
};

/// Recorded steps: the first makes the optimizer's state, the second is like all later ones.
constexpr int64_t kRecorded = 2;

void scale(TrafficByAxis& traffic, int64_t steps, int64_t recorded) {
  for (auto& [axis, t] : traffic) {
    const auto stretch = [&](int64_t& x) { x = x / recorded * steps; };
    stretch(t.bytes_sent);
    stretch(t.bytes_received);
    stretch(t.messages);
    for (auto& [verb, count] : t.calls) stretch(count);
  }
}

void refuse_staleness(const Plan& plan) {
  const int64_t staleness = plan.parallel.data.staleness;
  if (staleness == 0) return;
  throw Refused(text("parallel.data.staleness = ", staleness, " cannot be simulated: ",
                     "each rank is recorded alone, and who waits for whom depends on the order in ",
                     "which pushes arrive; nearest: staleness = 0, or thread ranks"));
}

/// Marks a rank's trace where an action that computes ends.
class Marks : public pipeline::ActionObserver {
 public:
  Marks(SimulatedWorld& world, int rank) : world_(world), rank_(rank) {}
  void note(int, const pipeline::Action& action, double, double) override {
    const std::string mark = mark_of(action);
    if (!mark.empty()) world_.mark(rank_, mark);
  }

 private:
  SimulatedWorld& world_;
  int rank_;
};

}  // namespace

RankResult simulate_rank(const Plan& plan, const Registries& registries, SimulatedWorld& world,
                         int rank) {
  refuse_staleness(plan);
  RankResult result;
  RankBook book(rank, plan.memory.device.value_or(0));
  book.on_work = [&](int64_t flops, int64_t bytes) { world.compute(rank, flops, bytes); };
  const BookScope booked(&book);
  Ledger ledger;
  const auto me = world.communicator(rank);
  const NoData data(plan.model);
  Engine engine(plan, registries, *me, data, {.device = at::kMeta, .ledger = &ledger});
  const int64_t recorded = std::min(plan.train.steps, kRecorded);
  for (int64_t step = 0; step < recorded; ++step) engine.step();
  result.flops = book.flops() / std::max<int64_t>(recorded, 1);
  result.flops_recomputed = book.flops_recomputed() / std::max<int64_t>(recorded, 1);
  result.peak_bytes = book.peak();
  result.at_peak = book.at_peak();
  result.peak_by_category = book.peak_by_category();
  result.traffic = traffic_of(ledger);
  scale(result.traffic, plan.train.steps, std::max<int64_t>(recorded, 1));
  return result;
}

Prediction simulate(const Plan& plan, const Registries& registries, Transport transport) {
  const auto ranks = static_cast<int>(num_ranks(plan));
  SimulatedWorld world(ranks, transport);
  Prediction prediction;
  for (int r = 0; r < ranks; ++r) {
    prediction.ranks.push_back(simulate_rank(plan, registries, world, r));
  }
  const PricedTimes times = replay(world, plan.cluster);
  prediction.step_seconds =
      times.makespan_seconds() / static_cast<double>(std::min(plan.train.steps, kRecorded));
  return prediction;
}

std::vector<Trace> trace_last_step(const Plan& plan, const Registries& registries) {
  refuse_staleness(plan);
  const auto ranks = static_cast<int>(num_ranks(plan));
  SimulatedWorld world(ranks);
  const NoData data(plan.model);
  std::vector<Trace> traces;
  for (int r = 0; r < ranks; ++r) {
    RankBook book(r, plan.memory.device.value_or(0));
    const BookScope booked(&book);
    Ledger ledger;  // groups are named by the axis they are booked under
    const auto me = world.communicator(r);
    Engine engine(plan, registries, *me, data, {.device = at::kMeta, .ledger = &ledger});
    const int64_t last = std::min(plan.train.steps, kRecorded) - 1;
    for (int64_t step = 0; step < last; ++step) engine.step();
    TraceRecorder recorder(TraceRecorder::Clock::kNone);
    const OpTraceScope traced(recorder);
    if (last >= 0) engine.step();
    traces.push_back(recorder.take());
  }
  return traces;
}

ActivityLog simulate_last_step(const Plan& plan, const Registries& registries,
                               const std::string& name) {
  const auto ranks = static_cast<int>(num_ranks(plan));
  SimulatedWorld world(ranks);
  const NoData data(plan.model);
  for (int r = 0; r < ranks; ++r) {
    RankBook book(r, plan.memory.device.value_or(0));
    book.on_work = [&](int64_t flops, int64_t bytes) { world.compute(r, flops, bytes); };
    const BookScope booked(&book);
    Ledger ledger;  // groups are named by the axis they are booked under
    const auto me = world.communicator(r);
    Engine engine(plan, registries, *me, data, {.device = at::kMeta, .ledger = &ledger});
    Marks marks(world, r);
    engine.observe(&marks);
    for (int64_t step = 0; step < std::min(plan.train.steps, kRecorded); ++step) {
      engine.step();
      world.mark(r, kStepMark);
    }
  }
  return activities_of(world, plan.cluster, name);
}

}  // namespace kuafu
