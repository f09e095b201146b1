// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <set>

#include "app/worker/document.h"
#include "kuafu/comm/gather.h"
#include "kuafu/record/json_text.h"

namespace kuafu {

namespace {

Json to_json(const MoveCounts& m) {
  return {m.to_device,    m.to_host,    m.foretold,      m.step_to_device,
          m.step_to_host, m.prefetches, m.prefetch_hits, m.wait_seconds,
          m.host_peak,    m.chunks,     m.disk.read,     m.disk.written,
          m.disk.bytes,   m.warm_ups,   m.activations,   m.step_activations};
}

MoveCounts moves_from(const Json& j) {
  return {.to_device = j.at(0),
          .to_host = j.at(1),
          .foretold = j.at(2),
          .step_to_device = j.at(3),
          .step_to_host = j.at(4),
          .prefetches = j.at(5),
          .prefetch_hits = j.at(6),
          .wait_seconds = j.at(7),
          .host_peak = j.at(8),
          .chunks = j.at(9),
          .warm_ups = j.at(13),
          .disk = {.read = j.at(10), .written = j.at(11), .bytes = j.at(12)},
          .activations = j.at(14),
          .step_activations = j.at(15)};
}

Json to_json(const memory::LeastBytes& least) {
  return {least.is_known, least.bytes, least.bound, least.is_proven, least.why_not};
}

memory::LeastBytes least_from(const Json& j) {
  return {.is_known = j.at(0),
          .bytes = j.at(1),
          .bound = j.at(2),
          .is_proven = j.at(3),
          .why_not = j.at(4)};
}

}  // namespace

Json to_json(const RankResult& r) {
  Json traffic = Json::object();
  for (const auto& [axis, t] : r.traffic) {
    const std::set<int> wire_peers(t.wire_peers.begin(), t.wire_peers.end());
    traffic[axis] = {t.bytes_sent, t.bytes_received, t.messages, t.peers,
                     wire_peers,   t.calls,          t.counting};
  }
  // NaN travels as null and comes back as NaN; a loss is finite here.
  return {{"losses", r.losses},
          {"step_seconds", r.step_seconds},
          {"validation_loss", r.validation_loss},
          {"flops", r.flops},
          {"flops_recomputed", r.flops_recomputed},
          {"flops_optimizer", r.flops_optimizer},
          {"peak_bytes", r.peak_bytes},
          {"at_peak", r.at_peak},
          {"peak_by_category", r.peak_by_category},
          {"traffic", traffic},
          {"moves", to_json(r.moves)},
          {"least", to_json(r.least)},
          {"saves", r.saves},
          {"saved_bytes", r.saved_bytes},
          {"save_seconds", r.save_seconds},
          {"diverged", r.diverged},
          {"load", to_json(r.load)}};
}

RankResult rank_result_from(const Json& j) {
  RankResult r;
  r.losses = j.at("losses").get<std::vector<double>>();
  r.step_seconds = j.at("step_seconds").get<std::vector<double>>();
  r.validation_loss =
      j.at("validation_loss").is_null() ? std::nan("") : j.at("validation_loss").get<double>();
  r.flops = j.at("flops");
  r.flops_recomputed = j.at("flops_recomputed");
  r.flops_optimizer = j.at("flops_optimizer");
  r.peak_bytes = j.at("peak_bytes");
  r.at_peak = j.at("at_peak").get<BytesByCategory>();
  r.peak_by_category = j.at("peak_by_category").get<BytesByCategory>();
  r.moves = moves_from(j.at("moves"));
  r.least = least_from(j.at("least"));
  r.saves = j.at("saves");
  r.saved_bytes = j.at("saved_bytes");
  r.save_seconds = j.at("save_seconds").get<std::vector<double>>();
  r.diverged = j.at("diverged");
  r.load = cpu_window_from(j.at("load"));
  for (const auto& [axis, t] : j.at("traffic").items()) {
    r.traffic[axis] = {t.at(0),
                       t.at(1),
                       t.at(2),
                       t.at(3),
                       t.at(4).get<std::set<int>>(),
                       t.at(5).get<std::map<std::string, int64_t>>(),
                       t.at(6).get<std::string>()};
  }
  return r;
}

std::vector<RankResult> gather_results(Communicator& world, const RankResult& mine) {
  std::vector<RankResult> all;
  for (const std::string& text : gather_texts(world, json_line(to_json(mine)))) {
    if (world.rank() == 0) all.push_back(rank_result_from(Json::parse(text)));
  }
  if (world.rank() != 0) return all;
  all[0].validation = mine.validation;
  all[0].telemetry = mine.telemetry;
  all[0].peak_flops_per_s = mine.peak_flops_per_s;
  all[0].last_good = mine.last_good;
  all[0].experts = mine.experts;
  all[0].pushes = mine.pushes;
  all[0].met = mine.met;
  all[0].loss_scales = mine.loss_scales;
  all[0].skipped = mine.skipped;
  all[0].resumed_from = mine.resumed_from;
  all[0].resume_changes = mine.resume_changes;
  return all;
}

}  // namespace kuafu
