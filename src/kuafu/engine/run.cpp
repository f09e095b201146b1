// SPDX-License-Identifier: Apache-2.0
#include "kuafu/engine/run.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "kuafu/base/errors.h"
#include "kuafu/engine/certificate_replay.h"
#include "kuafu/engine/witness.h"
#include "kuafu/meter/op_trace.h"

namespace kuafu {
namespace {

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double median_of(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  const size_t n = v.size();
  return n % 2 == 1 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

}  // namespace

TrafficByAxis traffic_of(const Ledger& ledger) {
  TrafficByAxis all;
  for (const auto& [label, entry] : ledger.axes()) {
    AxisTraffic& t = all[label];
    t.bytes_sent = entry.bytes_sent;
    t.bytes_received = entry.bytes_received;
    t.messages = entry.messages;
    t.peers = static_cast<int64_t>(entry.peers.size());
    t.wire_peers = static_cast<int64_t>(entry.wire_peers.size());
    t.counting = entry.counting == Counting::kWire ? "wire" : "convention";
    for (int v = 0; v < kNumVerbs; ++v) {
      const int64_t calls = entry.calls[static_cast<size_t>(v)];
      if (calls > 0) t.calls[std::string(to_string(static_cast<Verb>(v)))] = calls;
    }
  }
  return all;
}

StepTime summarise(const std::vector<double>& seconds) {
  StepTime t;
  if (seconds.empty()) return t;
  const auto n = static_cast<int64_t>(seconds.size());
  for (; t.warmup < n / 2; ++t.warmup) {
    const double first = seconds[static_cast<size_t>(t.warmup)];
    const double rest = median_of({seconds.begin() + t.warmup + 1, seconds.end()});
    if (std::abs(first / rest - 1) <= 0.1) break;
  }
  std::vector<double> steady(seconds.begin() + t.warmup, seconds.end());
  t.median = median_of(steady);
  std::sort(steady.begin(), steady.end());
  const auto m = static_cast<double>(steady.size());
  // Ranks m/2 -+ 1.96 sqrt(m)/2 enclose the median in 95 % of samples.
  const double half = 0.98 * std::sqrt(m);
  const auto low = static_cast<int64_t>(std::floor(m / 2 - half));
  const auto high = static_cast<int64_t>(std::ceil(m / 2 + half));
  const auto last = static_cast<int64_t>(steady.size()) - 1;
  t.low = steady[static_cast<size_t>(std::clamp<int64_t>(low, 0, last))];
  t.high = steady[static_cast<size_t>(std::clamp<int64_t>(high, 0, last))];
  return t;
}

RankResult run_rank(const Plan& plan, const Registries& registries, Communicator& world,
                    const RunOptions& options) {
  KUAFU_REQUIRE(!options.checkpoint.resumes || !options.checkpoint.folder.empty(),
                "a run to be resumed needs the folder of its checkpoints");
  RankResult result;
  RankBook book(world.rank(), plan.memory.device.value_or(0));
  Ledger ledger;
  const auto data = options.make_data(plan);
  std::optional<Witness> witness;
  std::optional<StaleRun> stale;
  {
    KUAFU_REQUIRE(plan.parallel.data.staleness == 0 || options.checkpoint.folder.empty(),
                  "--checkpoint with parallel.data.staleness = ", plan.parallel.data.staleness,
                  ": a checkpoint would need the servers' optimizers and the versions that workers "
                  "have read; nearest: staleness = 0, or no --checkpoint");
    const BookScope booked(&book);
    book.is_counting = options.is_metered;
    std::function<double(int64_t)> slowdown;
    if (options.slowdown) {
      slowdown = [&](int64_t step) { return options.slowdown(world.rank(), step); };
    }
    Engine engine(plan, registries, world, *data,
                  {.device = options.device,
                   .ledger = options.is_metered ? &ledger : nullptr,
                   .slowdown = slowdown,
                   .push_script = options.push_script});
    std::optional<Saver> saver;
    if (!options.checkpoint.folder.empty()) saver.emplace(engine, world, options.checkpoint);
    if (options.checkpoint.resumes) {
      result.resumed_from = saver->resume();
      result.resume_changes = saver->changes();
      book.restart();  // what loading took is no step's
    }
    const int64_t first = engine.steps_done();
    if (options.is_certified && engine.is_in_step()) {
      const bool is_whole = is_certified_whole(plan, options.certificate_memory);
      witness.emplace(plan, first, is_whole ? Witness::Depth::kFull : Witness::Depth::kReportsOnly);
    }
    std::optional<OpTraceScope> traced;
    for (int64_t step = first; step < plan.train.steps; ++step) {
      if (witness) witness->before_step(engine);
      const int64_t left = plan.train.steps - step;
      if (options.recorder != nullptr && left <= 2) {
        if (!traced) traced.emplace(*options.recorder);
        options.recorder->clear();
      }
      const double start = seconds_now();
      const StepReport report = engine.step();
      if (left == 1) traced.reset();
      result.step_seconds.push_back(seconds_now() - start);
      result.losses.push_back(report.loss);
      if (plan.has_loss_scale()) result.loss_scales.push_back(report.loss_scale);
      if (report.is_skipped) result.skipped.push_back(step);
      if (saver) {
        saver->after_step();
        result.save_seconds.push_back(seconds_now() - start - result.step_seconds.back());
      }
      if (witness) witness->after_step(engine, report);
      if (options.on_step && world.rank() == 0) options.on_step(step, report);
    }
    engine.settle();
    if (saver) {
      result.saves = saver->num_saves();
      result.saved_bytes = saver->saved_bytes();
    }
    const int64_t steps = std::max<int64_t>(plan.train.steps - first, 1);
    result.flops = book.flops() / steps;
    result.flops_recomputed = book.flops_recomputed() / steps;
    result.peak_bytes = book.peak();
    result.at_peak = book.at_peak();
    result.peak_by_category = book.peak_by_category();
    result.traffic = traffic_of(ledger);
    ledger.set_counting(false);
    book.is_counting = false;
    if (options.is_certified && !engine.is_in_step()) {
      stale = stale_run(engine, world, result.losses);
    }
    result.losses = engine.mean_over_replicas(std::move(result.losses));
    result.pushes = engine.pushes();
    result.experts = engine.expert_loads();
    if (plan.train.validation_batches > 0) result.validation_loss = engine.validate();
  }
  if (options.on_measured) options.on_measured(result);
  if (options.is_certified) {
    result.certificate =
        certify(plan, registries, world, options.make_data, {.device = options.device},
                options.certificate_memory,
                {.witness = witness ? &*witness : nullptr, .stale = stale ? &*stale : nullptr});
  }
  return result;
}

}  // namespace kuafu
