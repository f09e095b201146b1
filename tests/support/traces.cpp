// SPDX-License-Identifier: Apache-2.0
#include "tests/support/traces.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <vector>

#include "kuafu/comm/simulated.h"
#include "kuafu/meter/op_kinds.h"
#include "kuafu/meter/op_trace.h"

namespace kuafu::tests {
namespace {

constexpr int64_t kSteps = 2;

/// What a trace says of memory, work and calls is what the books and the ledger say.
void expect_as_booked(const Trace& trace, int64_t live, const RankBook& book,
                      const Ledger& ledger) {
  int64_t peak = live, flops = 0, again = 0;
  std::map<std::pair<std::string, std::string>, int64_t> calls;  // by axis and verb
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
  EXPECT_EQ(live, book.live());
  EXPECT_EQ(peak, book.peak());
  EXPECT_EQ(flops, book.flops());
  EXPECT_EQ(again, book.flops_recomputed());
  for (const auto& [axis, entry] : ledger.axes()) {
    for (int v = 0; v < kNumVerbs; ++v) {
      const std::string verb(to_string(static_cast<Verb>(v)));
      const int64_t counted = entry.calls[static_cast<size_t>(v)];
      if (counted > 0) {
        EXPECT_EQ((calls[{axis, verb}]), counted) << axis << " " << verb;
      }
      calls.erase({axis, verb});
    }
  }
  EXPECT_TRUE(calls.empty()) << calls.size() << " kinds of calls are in no ledger, as "
                             << calls.begin()->first.first << " " << calls.begin()->first.second;
}

/// A rank's steps.
Trace trace_of(const Plan& plan, Communicator& world, at::Device device, TraceRecorder& recorder) {
  const Registries registries = builtin_registries();
  const auto data = data_of(plan);
  RankBook book(world.rank());
  const BookScope booked(&book);
  Ledger ledger;
  Engine engine(plan, registries, world, *data, {.device = device, .ledger = &ledger});
  book.restart();
  ledger.clear();
  const int64_t live = book.live();
  const OpTraceScope traced(recorder);
  for (int64_t step = 0; step < kSteps; ++step) engine.step();
  Trace trace = recorder.take();
  EXPECT_EQ(unbooked_ops(trace), std::vector<std::string>{}) << "rank " << world.rank();
  expect_as_booked(trace, live, book, ledger);
  return trace;
}

}  // namespace

void expect_traced_as_simulated(const Plan& plan, Communicator& world, const std::string& name) {
  TraceRecorder recorder;
  const Trace real = trace_of(plan, world, at::kCPU, recorder);
  SimulatedWorld recorded(world.size());
  const auto me = recorded.communicator(world.rank());
  TraceRecorder alone(TraceRecorder::Clock::kNone);
  alone.give_oracles(real);
  const Trace simulated = trace_of(plan, *me, at::kMeta, alone);
  EXPECT_GT(real.records.size(), 100u);
  EXPECT_EQ(first_difference(real, simulated), "") << name << ", rank " << world.rank();
}

}  // namespace kuafu::tests
