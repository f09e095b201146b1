// SPDX-License-Identifier: Apache-2.0
#include "app/worker/document_parts.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "app/worker/document.h"

namespace kuafu {
namespace {

Json text_or_null(const std::string& words) { return words.empty() ? Json() : Json(words); }

/// Errors and bounds of a proof; null where nothing was compared.
void add_measures(Json& j, const Proof& p) {
  const bool has_steps = !p.steps.empty();
  const auto add = [&](const char* name, double x) {
    j[name] = has_steps ? finite_or_null(x) : Json();
  };
  add("loss_error", p.loss.error);
  add("loss_tolerance", p.loss.bound);
  add("gradient_error", p.gradient.error);
  add("tolerance", p.gradient.bound);
  add("routes_error", p.routes.error);
  add("routes_tolerance", p.routes.bound);
  add("parameter_error", p.update.error);
  add("parameter_tolerance", p.update.bound);
  add("ratio", p.ratio());
  j["why_far"] = text_or_null(p.why_far());
  j["worst"] = has_steps ? Json(p.worst().where) : Json();
}

Json native_json(const Proof& p) {
  Json j = {{"verdict", p.verdict},
            {"reason", text_or_null(p.reason)},
            {"level", p.level},
            {"steps", p.steps}};
  const bool has_steps = !p.steps.empty();
  const auto add = [&](const std::string& name, const Measure& m) {
    j[name + "_error"] = has_steps ? finite_or_null(m.error) : Json();
    j[name + "_bound"] = has_steps ? finite_or_null(m.bound) : Json();
  };
  add("loss", p.loss);
  add("gradient", p.gradient);
  add("routes", p.routes);
  add("blocks", p.blocks);
  add("update", p.update);
  j["random_rounding"] = p.random_rounding > 0 ? Json(p.random_rounding) : Json();
  j["unseen"] = text_or_null(p.unseen);
  j["ratio"] = has_steps ? finite_or_null(p.ratio()) : Json();
  j["why_far"] = text_or_null(p.why_far());
  j["worst"] = has_steps ? Json(p.worst().where) : Json();
  return j;
}

double drop_rate(const ExpertCounts& c) {
  return static_cast<double>(c.dropped) / static_cast<double>(c.made);
}

double imbalance(const ExpertCounts& c) {
  const auto sum =
      static_cast<double>(std::accumulate(c.choices.begin(), c.choices.end(), int64_t{0}));
  const auto most = static_cast<double>(*std::max_element(c.choices.begin(), c.choices.end()));
  return most * static_cast<double>(c.choices.size()) / sum;
}

Json load_json(const ExpertLoad& load) {
  Json j = {{"tokens", load.tokens},
            {"choices", load.choices},
            {"drop_rate", drop_rate(load)},
            {"imbalance", imbalance(load)}};
  for (const ExpertCounts& step : load.steps) {
    j["steps"]["tokens"].push_back(step.tokens);
    j["steps"]["drop_rate"].push_back(drop_rate(step));
    j["steps"]["imbalance"].push_back(imbalance(step));
  }
  return j;
}

/// The last step beside the least there is; what is not known of every rank is null, with the reason
/// of the first.
void add_regret(Json& moves, const std::vector<RankResult>& ranks) {
  for (const char* key : {"regret_bytes", "least_bytes", "bound_bytes", "gap", "regret_reason"}) {
    moves[key] = nullptr;
  }
  bool is_known = true, is_proven = true;
  for (const RankResult& r : ranks) {
    is_known = is_known && r.least.is_known;
    is_proven = is_proven && r.least.is_proven;
    if (moves["regret_reason"].is_null() && !r.least.why_not.empty()) {
      moves["regret_reason"] = r.least.why_not;
    }
  }
  for (const RankResult& r : ranks) {
    if (is_proven) moves["regret_bytes"].push_back(r.moves.step_to_device - r.least.bytes);
    if (!is_known) continue;
    moves["least_bytes"].push_back(r.least.bytes);
    moves["bound_bytes"].push_back(r.least.bound);
    moves["gap"].push_back(r.least.gap());
  }
}

}  // namespace

Json finite_or_null(double x) { return std::isfinite(x) ? Json(x) : Json(nullptr); }

Json memory_json(const std::vector<RankResult>& ranks) {
  Json memory = {{"peak_bytes", Json::array()},
                 {"peak_by_category", Json::array()},
                 {"at_peak", Json::array()},
                 {"scratch_bytes", Json::array()}};
  for (const RankResult& r : ranks) {
    memory["peak_bytes"].push_back(r.peak_bytes);
    memory["peak_by_category"].push_back(by_category(r.peak_by_category));
    memory["at_peak"].push_back(by_category(r.at_peak));
    memory["scratch_bytes"].push_back(r.peak_by_category[static_cast<size_t>(Category::kScratch)]);
  }
  return memory;
}

Json moves_json(const Plan& plan, const std::vector<RankResult>& ranks) {
  if (!plan.memory.has_tiers()) return nullptr;
  Json moves = Json::object();
  for (const RankResult& r : ranks) {
    moves["chunks"].push_back(r.moves.chunks);
    moves["to_device_bytes"].push_back(r.moves.to_device);
    moves["to_host_bytes"].push_back(r.moves.to_host);
    moves["foretold_bytes"].push_back(r.moves.foretold);
    moves["step_to_device_bytes"].push_back(r.moves.step_to_device);
    moves["step_to_host_bytes"].push_back(r.moves.step_to_host);
    moves["warm_up_steps"].push_back(r.moves.warm_ups);
    moves["prefetches"].push_back(r.moves.prefetches);
    moves["prefetch_hits"].push_back(r.moves.prefetch_hits);
    moves["wait_s"].push_back(r.moves.wait_seconds);
    moves["host_peak_bytes"].push_back(r.moves.host_peak);
    moves["disk_read_bytes"].push_back(r.moves.disk.read);
    moves["disk_written_bytes"].push_back(r.moves.disk.written);
    moves["disk_bytes"].push_back(r.moves.disk.bytes);
    moves["step_activation_bytes"].push_back(r.moves.step_activations);
  }
  add_regret(moves, ranks);
  return moves;
}

Json ledger_json(const std::vector<RankResult>& ranks) {
  std::set<std::string> axes;
  for (const RankResult& r : ranks) {
    for (const auto& [axis, traffic] : r.traffic) axes.insert(axis);
  }
  Json ledger = Json::object();
  for (const std::string& axis : axes) {
    Json& entry = ledger[axis];
    std::set<std::string> verbs;
    for (const RankResult& r : ranks) {
      const auto found = r.traffic.find(axis);
      const AxisTraffic t = found == r.traffic.end() ? AxisTraffic{} : found->second;
      entry["bytes_sent"].push_back(t.bytes_sent);
      entry["bytes_received"].push_back(t.bytes_received);
      entry["messages"].push_back(t.messages);
      entry["peers"].push_back(t.peers);
      entry["wire_peers"].push_back(t.wire_peers.size());
      for (const auto& [verb, count] : t.calls) verbs.insert(verb);
      if (!t.counting.empty()) entry["counting"] = t.counting;
    }
    entry["calls"] = Json::object();
    for (const std::string& verb : verbs) {
      for (const RankResult& r : ranks) {
        const auto found = r.traffic.find(axis);
        const bool has = found != r.traffic.end() && found->second.calls.contains(verb);
        entry["calls"][verb].push_back(has ? found->second.calls.at(verb) : 0);
      }
    }
  }
  return ledger;
}

Json certificate_json(const Certificate& c) {
  Json j = {{"verdict", c.verdict}, {"reason", c.reason.empty() ? Json() : Json(c.reason)}};
  const bool was_tried = c.verdict != "not_run" || !c.reason.empty();
  j["level"] = was_tried ? Json(c.level) : Json();
  j["reference"] = was_tried ? Json(c.reference) : Json();
  j["steps"] = was_tried ? Json(c.steps.size()) : Json();
  add_measures(j, c);
  j["native"] = was_tried ? native_json(c.native) : Json();
  return j;
}

Json experts_json(const std::vector<ExpertLoad>& loads) {
  if (loads.empty()) return nullptr;
  ExpertLoad all;
  for (const ExpertLoad& load : loads) {
    all.add(load);
    all.steps.resize(load.steps.size());
    for (size_t s = 0; s < load.steps.size(); ++s) all.steps[s].add(load.steps[s]);
  }
  Json j = load_json(all);
  for (const ExpertLoad& load : loads) {
    j["blocks"][load.block.substr(load.block.rfind('.') + 1)] = load_json(load);
  }
  return j;
}

Json pushes_json(const std::vector<PushOrder>& servers) {
  if (servers.empty()) return nullptr;
  Json j = Json::object();
  for (size_t s = 0; s < servers.size(); ++s) {
    Json& columns = j[std::to_string(s)];
    columns = {{"worker", Json::array()}, {"step", Json::array()}, {"version", Json::array()}};
    for (const AppliedPush& push : servers[s]) {
      columns["worker"].push_back(push.worker);
      columns["step"].push_back(push.step);
      columns["version"].push_back(push.version);
    }
  }
  return j;
}

Json scale_json(const RankResult& rank) {
  if (rank.loss_scales.empty()) return nullptr;
  return {{"scale", rank.loss_scales}, {"skipped", rank.skipped}};
}

Json checkpoint_json(const std::vector<RankResult>& ranks) {
  const RankResult& first = ranks[0];
  if (first.saves == 0 && first.last_good.empty()) return nullptr;
  std::vector<double> samples = first.save_seconds;  // all wait for the slowest rank
  Json bytes = Json::array();
  for (const RankResult& r : ranks) {
    bytes.push_back(r.saved_bytes);
    for (size_t i = 0; i < samples.size(); ++i)
      samples[i] = std::max(samples[i], r.save_seconds[i]);
  }
  return {{"saves", first.saves},
          {"bytes", bytes},
          {"samples", samples},
          {"last_good", first.last_good.empty() ? Json(nullptr) : Json(first.last_good)}};
}

Json validation_json(const ValidationSeries& series) {
  if (series.steps.empty()) return nullptr;
  Json losses = Json::array();
  for (const double loss : series.losses) losses.push_back(finite_or_null(loss));
  const auto best = series.best();
  return {{"steps", series.steps},
          {"losses", losses},
          {"best_step", best ? Json(series.steps[*best]) : Json(nullptr)},
          {"best_loss", best ? Json(series.losses[*best]) : Json(nullptr)}};
}

Json telemetry_json(const TelemetrySeries& series) {
  if (series.is_empty()) return nullptr;
  Json j = to_json(series);  // NaN is null when it is written
  for (auto& [name, rows] : j.items()) {
    if (rows.empty()) rows = nullptr;
  }
  return j;
}

Json compute_json(double peak, double flops, double step_seconds) {
  if (peak <= 0) return nullptr;
  const bool is_known = flops > 0 && step_seconds > 0;
  return {{"peak_flops_per_s", peak},
          {"share_of_peak", is_known ? Json(flops / step_seconds / peak) : Json(nullptr)}};
}

}  // namespace kuafu
