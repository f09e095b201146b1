// SPDX-License-Identifier: Apache-2.0
#include "tests/support/traces.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <vector>

#include "kuafu/comm/simulated.h"
#include "kuafu/meter/op_kinds.h"
#include "kuafu/meter/op_trace.h"
#include "kuafu/states/tiers.h"

namespace kuafu::tests {
namespace {

constexpr int64_t kSteps = 2;

}  // namespace

TracedSteps traced_steps(const Plan& plan, Communicator& world, at::Device device,
                         TraceRecorder& recorder) {
  const Registries registries = builtin_registries();
  const auto data = data_of(plan);
  RankBook book = device_book(plan, world.rank(), device);
  const BookScope booked(&book);
  Ledger ledger;
  Engine engine(plan, registries, world, *data, {.device = device, .ledger = &ledger});
  book.restart();
  ledger.clear();
  TracedSteps steps;
  steps.live_before = book.live();
  const OpTraceScope traced(recorder);
  for (int64_t step = 0; step < kSteps; ++step) engine.step();
  steps.trace = recorder.take();
  steps.live = book.live();
  steps.peak = book.peak();
  steps.flops = book.flops() + book.flops_optimizer();  // a trace tells them by the op
  steps.flops_recomputed = book.flops_recomputed();
  for (const auto& [axis, entry] : ledger.axes()) {
    for (int v = 0; v < kNumVerbs; ++v) {
      const int64_t counted = entry.calls[static_cast<size_t>(v)];
      if (counted > 0) steps.calls[{axis, std::string(to_string(static_cast<Verb>(v)))}] = counted;
    }
  }
  return steps;
}

TracedSteps simulated_steps(const Plan& plan, int rank, int ranks, const Trace& real) {
  SimulatedWorld recorded(ranks);
  const auto me = recorded.communicator(rank);
  TraceRecorder alone(TraceRecorder::Clock::kNone);
  alone.give_oracles(real);
  return traced_steps(plan, *me, at::kMeta, alone);
}

std::string not_as_booked(const TracedSteps& steps) {
  const Trace& trace = steps.trace;
  int64_t live = steps.live_before, peak = live, flops = 0, again = 0;
  std::map<std::pair<std::string, std::string>, int64_t> calls;
  for (const TraceRecord& r : trace.records) {
    const std::string& name = trace.names[static_cast<size_t>(r.name)];
    if (r.kind == TraceKind::kAlloc) live += r.payload[1];
    if (r.kind == TraceKind::kFree) live -= r.payload[1];
    peak = std::max(peak, live);
    if (r.kind == TraceKind::kOp) ((r.flags & kRecompute) != 0 ? again : flops) += r.payload[1];
    if (r.kind != TraceKind::kCall) continue;
    const TraceCall& call = trace.calls[static_cast<size_t>(r.payload[0])];
    ++calls[{trace.groups[static_cast<size_t>(call.group)].label, name}];
  }
  const auto differs = [](const char* what, int64_t traced, int64_t booked) {
    return traced == booked ? "" : text(what, ": ", traced, " traced, ", booked, " booked; ");
  };
  std::string all;
  for (const std::string& op : unbooked_ops(trace)) all += text(op, " is booked by nothing; ");
  all += differs("bytes at the end", live, steps.live) + differs("peak bytes", peak, steps.peak) +
         differs("FLOPs", flops, steps.flops) +
         differs("FLOPs again", again, steps.flops_recomputed);
  for (const auto& [key, counted] : steps.calls) calls[key];
  for (const auto& [key, counted] : calls) {
    const auto booked = steps.calls.find(key);
    all += differs(text("calls of ", key.second, " on ", key.first).c_str(), counted,
                   booked == steps.calls.end() ? 0 : booked->second);
  }
  return all;
}

void expect_traced_as_simulated(const Plan& plan, Communicator& world, const std::string& name) {
  TraceRecorder recorder;
  const TracedSteps real = traced_steps(plan, world, at::kCPU, recorder);
  const TracedSteps simulated = simulated_steps(plan, world.rank(), world.size(), real.trace);
  EXPECT_EQ(not_as_booked(real), "") << name;
  EXPECT_EQ(not_as_booked(simulated), "") << name << ", simulated";
  EXPECT_GT(real.trace.records.size(), 100u);
  EXPECT_EQ(first_difference(real.trace, simulated.trace), "") << name << ", rank " << world.rank();
}

}  // namespace kuafu::tests
