// SPDX-License-Identifier: Apache-2.0
#include "kuafu/simulate/simulate.h"

#include <algorithm>

#include "kuafu/comm/simulated.h"
#include "kuafu/dataset/no_data.h"
#include "kuafu/meter/op_trace.h"
#include "kuafu/simulate/activities.h"
#include "kuafu/simulate/last_step.h"
#include "kuafu/simulate/priced_events.h"
#include "kuafu/simulate/replay.h"

namespace kuafu {
namespace {

constexpr double kPicosecond = 1e-12;

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

void require_simulated(const Plan& plan) {
  if (can_simulate(plan)) return;
  throw Refused(text("parallel.data.staleness = ", plan.parallel.data.staleness,
                     " cannot be simulated: ",
                     "each rank is recorded alone, and who waits for whom depends on the order in ",
                     "which pushes arrive; nearest: staleness = 0, or thread ranks"));
}

/// With tiers the first step is none of those that follow: it may be a policy's warm-up, and a disk has
/// no slots to read yet. The last one alone is priced, from when all ranks have ended the one before.
void price_last_step(const std::vector<Trace>& traces, const Plan& plan, Prediction& prediction) {
  struct Step {
    int64_t end_ps = 0, stall_ps = 0;
  };
  std::vector<std::vector<Step>> ranks(traces.size(), {Step{}});  // the last is under way
  replay(traces, plan.cluster, [&](const ReplaySpan& span) {
    const auto r = static_cast<size_t>(span.rank);
    if (span.kind == ReplaySpan::Kind::kStall) {
      ranks[r].back().stall_ps += span.end_ps - span.start_ps;
    } else if (span.kind == ReplaySpan::Kind::kMark &&
               traces[r].names[static_cast<size_t>(span.name)] == kStepPhase) {
      ranks[r].back().end_ps = span.end_ps;
      ranks[r].emplace_back();
    }
  });
  const size_t made = ranks[0].size() - 1;
  int64_t begin = 0, end = 0;
  for (size_t r = 0; r < ranks.size(); ++r) {
    int64_t waited = 0;
    for (size_t step = 0; step < made; ++step) waited += ranks[r][step].stall_ps;
    if (made > 1) begin = std::max(begin, ranks[r][made - 2].end_ps);
    if (made == 0) continue;
    end = std::max(end, ranks[r][made - 1].end_ps);
    waited += (plan.train.steps - static_cast<int64_t>(made)) * ranks[r][made - 1].stall_ps;
    prediction.ranks[r].moves.wait_seconds = static_cast<double>(waited) * kPicosecond;
  }
  prediction.step_seconds = static_cast<double>(end - begin) * kPicosecond;
}

}  // namespace

bool can_simulate(const Plan& plan) { return !plan.parallel.data.is_stale(); }

RankResult simulate_rank(const Plan& plan, const Registries& registries, SimulatedWorld& world,
                         int rank, TraceRecorder* recorder) {
  require_simulated(plan);
  RankResult result;
  RankBook book = device_book(plan, rank, at::kMeta);
  const BookScope booked(&book);
  const TraceScope traced(recorder);
  Ledger ledger;
  const auto me = world.communicator(rank);
  const NoData data(plan.model);
  Engine engine(plan, registries, *me, data, {.device = at::kMeta, .ledger = &ledger});
  const int64_t recorded = std::min(plan.train.steps, kRecorded);
  for (int64_t step = 0; step < recorded; ++step) engine.step();
  result.flops = book.flops() / std::max<int64_t>(recorded, 1);
  result.flops_recomputed = book.flops_recomputed() / std::max<int64_t>(recorded, 1);
  result.flops_optimizer = book.flops_optimizer() / std::max<int64_t>(recorded, 1);
  result.peak_bytes = book.peak();
  result.at_peak = book.at_peak();
  result.peak_by_category = book.peak_by_category();
  result.uses = engine.uses();
  result.moves = engine.moves().stretched(recorded, plan.train.steps);
  result.traffic = traffic_of(ledger);
  scale(result.traffic, plan.train.steps, std::max<int64_t>(recorded, 1));
  return result;
}

RankResult simulate_need(const Plan& plan, const Registries& registries, SimulatedWorld& world,
                         int rank) {
  Plan free = plan;
  free.memory.device.reset();
  free.memory.host.reset();
  if (!plan.memory.has_tiers()) return simulate_rank(free, registries, world, rank);
  int64_t needed = 0;
  try {
    return simulate_rank(plan, registries, world, rank);
  } catch (const TierFull& e) {
    if (e.fields.tier == "device") needed = e.live + e.requested;
  }
  free.memory.policy = "host";
  free.memory.prefetch = 0;
  SimulatedWorld again(static_cast<int>(num_ranks(plan)));
  RankResult result = simulate_rank(free, registries, again, rank);
  result.peak_bytes = std::max(result.peak_bytes, needed);
  return result;
}

Prediction simulate(const Plan& plan, const Registries& registries, Transport transport,
                    const std::function<void(int ranks_done)>& told) {
  const auto ranks = static_cast<int>(num_ranks(plan));
  SimulatedWorld world(ranks, transport);
  Prediction prediction;
  std::vector<Trace> traces;
  for (int r = 0; r < ranks; ++r) {
    // By phase: an update's bytes do not pass behind the products of the steps around it.
    TraceRecorder recorder(TraceRecorder::Clock::kNone, TraceRecorder::Keeps::kWorkByPhase);
    prediction.ranks.push_back(simulate_rank(plan, registries, world, r, &recorder));
    traces.push_back(recorder.take());
    if (told) told(r + 1);
  }
  const int64_t recorded = std::min(plan.train.steps, kRecorded);
  if (plan.memory.has_tiers()) {
    price_last_step(traces, plan, prediction);
  } else {
    prediction.step_seconds =
        replay(traces, plan.cluster).makespan_seconds() / static_cast<double>(recorded);
  }
  return prediction;
}

std::vector<Trace> trace_last_step(const Plan& plan, const Registries& registries,
                                   const std::vector<Trace>& real) {
  require_simulated(plan);
  const auto ranks = static_cast<int>(num_ranks(plan));
  KUAFU_REQUIRE(real.empty() || static_cast<int>(real.size()) == ranks, "oracles of ", real.size(),
                " ranks for a plan of ", ranks);
  SimulatedWorld world(ranks);
  const NoData data(plan.model);
  std::vector<Trace> traces;
  for (int r = 0; r < ranks; ++r) {
    RankBook book = device_book(plan, r, at::kMeta);
    const BookScope booked(&book);
    Ledger ledger;  // groups are named by the axis they are booked under
    const auto me = world.communicator(r);
    Engine engine(plan, registries, *me, data, {.device = at::kMeta, .ledger = &ledger});
    const int64_t last = std::min(plan.train.steps, kRecorded) - 1;
    for (int64_t step = 0; step < last; ++step) engine.step();
    TraceRecorder recorder(TraceRecorder::Clock::kNone);
    if (!real.empty()) recorder.give_oracles(real[static_cast<size_t>(r)]);
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
  std::vector<Trace> traces;
  for (int r = 0; r < ranks; ++r) {
    TraceRecorder recorder(TraceRecorder::Clock::kNone, TraceRecorder::Keeps::kWorkByPhase);
    simulate_rank(plan, registries, world, r, &recorder);
    traces.push_back(recorder.take());
  }
  return activities_of(traces, plan.cluster, name);
}

}  // namespace kuafu
