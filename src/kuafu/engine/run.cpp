// SPDX-License-Identifier: Apache-2.0
#include "kuafu/engine/run.h"

#include <algorithm>
#include <cmath>

#include "kuafu/base/errors.h"
#include "kuafu/engine/proof/certificate_replay.h"
#include "kuafu/engine/training.h"
#include "kuafu/parallel/stale/replicas.h"

namespace kuafu {
namespace {

double median_of(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  const size_t n = v.size();
  return n % 2 == 1 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

void take_counts(const RankBook& book, const Training::Counts& counts, RankResult& result) {
  const auto steps = std::max<int64_t>(static_cast<int64_t>(result.losses.size()), 1);
  result.flops = counts.flops / steps;
  result.flops_recomputed = counts.flops_recomputed / steps;
  result.flops_optimizer = counts.flops_optimizer / steps;
  result.peak_bytes = book.peak();
  result.at_peak = book.at_peak();
  result.peak_by_category = book.peak_by_category();
  result.traffic = traffic_of(counts.traffic);
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
    t.wire_peers = entry.wire_peers;
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
  if (last + 1 < kFewestForInterval) return t;
  t.ci95 = {steady[static_cast<size_t>(std::clamp<int64_t>(low, 0, last))],
            steady[static_cast<size_t>(std::clamp<int64_t>(high, 0, last))]};
  return t;
}

void check_can_be_saved(const Plan& plan, const SaveOptions& saving) {
  KUAFU_REQUIRE((!saving.resumes && saving.from.empty()) || !saving.folder.empty(),
                "a run to be resumed needs the folder of its checkpoints");
  KUAFU_REQUIRE(
      !saving.is_async || !plan.parallel.data.is_stale(),
      "--async with parallel.data.staleness = ", plan.parallel.data.staleness,
      ": workers wait for each other at saves alone, where one would be made known at the "
      "next; nearest: staleness = 0, or no --async");
}

RankResult run_rank(const Plan& plan, const Registries& registries, Communicator& world,
                    const RunOptions& options) {
  check_can_be_saved(plan, options.checkpoint);
  RankResult result;
  RankBook book = device_book(plan, world.rank(), options.device);
  Ledger ledger;
  const auto data = options.make_data(plan);
  std::optional<Witness> witness;
  std::optional<Proof> last_step;
  std::optional<PushedRun> pushed;
  {
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
    Training training(plan, registries, options, world, engine, {book, ledger}, result);
    training.run();
    take_counts(book, training.counts(), result);
    result.moves = engine.moves();
    result.uses = engine.uses();
    ledger.set_counting(false);
    book.is_counting = false;
    if (options.is_certified && result.is_whole() && !engine.is_in_step()) {
      pushed = pushed_run(engine, world, result.losses);
      pushed->is_resumed = result.resumed_from.has_value();
    }
    result.losses = engine.means(std::move(result.losses));
    result.pushes = engine.pushes();
    if (engine.stale() != nullptr) result.met = engine.stale()->met();
    result.experts = engine.expert_loads();
    if (result.is_whole()) training.finish();
    witness = training.take_witness();
    last_step = training.last_step();
  }
  if (const auto tiers = tier_options(plan, registries.policies)) {
    result.least = memory::least_for_record(result.uses, tiers->budget());
  }
  if (options.on_measured) options.on_measured(result);
  const bool is_ended = witness && !result.diverged.empty();  // the reference says whether rightly
  if (options.is_certified && !result.is_whole() && !is_ended) {
    result.certificate.reason =
        result.diverged.empty() ? "the run ended before its last step" : result.diverged;
  }
  if (options.is_certified && (result.is_whole() || is_ended)) {
    // A run that has made all its steps may have ended by a validation loss that is no number.
    const bool has_validation =
        plan.train.validation_batches > 0 &&
        result.resumed_from.value_or(0) + std::ssize(result.losses) == plan.train.steps;
    const auto validated = has_validation ? std::optional(result.validation_loss) : std::nullopt;
    if (pushed) pushed->validation_loss = validated;
    result.certificate = certify(plan, registries, world, options.make_data,
                                 {.device = options.device}, options.certificate_memory,
                                 {.witness = witness ? &*witness : nullptr,
                                  .last_step = last_step ? &*last_step : nullptr,
                                  .pushed = pushed ? &*pushed : nullptr,
                                  .is_resumed = result.resumed_from.has_value(),
                                  .validation_loss = validated,
                                  .diverged = result.diverged,
                                  .on_refuted = options.on_refuted});
  }
  return result;
}

}  // namespace kuafu
