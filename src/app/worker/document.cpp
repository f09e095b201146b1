// SPDX-License-Identifier: Apache-2.0
#include "app/worker/document.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "app/worker/plan_json.h"
#include "kuafu/base/suggest.h"
#include "kuafu/record/files.h"
#include "kuafu/record/json_text.h"
#include "kuafu/record/provenance.h"

namespace kuafu {
namespace {

/// NaN and infinity have no JSON number: null.
Json number(double x) { return std::isfinite(x) ? Json(x) : Json(nullptr); }

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
      entry["wire_peers"].push_back(t.wire_peers);
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

/// Errors and bounds of a proof; null where nothing was compared.
void add_measures(Json& j, const Proof& p) {
  const bool has_steps = !p.steps.empty();
  const auto add = [&](const char* name, double x) { j[name] = has_steps ? number(x) : Json(); };
  add("loss_error", p.loss.error);
  add("loss_tolerance", p.loss.bound);
  add("gradient_error", p.gradient.error);
  add("tolerance", p.gradient.bound);
  add("routes_error", p.routes.error);
  add("routes_tolerance", p.routes.bound);
  add("parameter_error", p.update.error);
  add("parameter_tolerance", p.update.bound);
  add("ratio", p.ratio());
  j["worst"] = has_steps ? Json(p.worst().where) : Json();
}

Json native_json(const Proof& p) {
  Json j = {{"verdict", p.verdict},
            {"reason", p.reason.empty() ? Json() : Json(p.reason)},
            {"level", p.level},
            {"steps", p.steps}};
  const bool has_steps = !p.steps.empty();
  const auto add = [&](const std::string& name, const Measure& m) {
    j[name + "_error"] = has_steps ? number(m.error) : Json();
    j[name + "_bound"] = has_steps ? number(m.bound) : Json();
  };
  add("loss", p.loss);
  add("gradient", p.gradient);
  add("routes", p.routes);
  add("blocks", p.blocks);
  add("update", p.update);
  j["ratio"] = has_steps ? number(p.ratio()) : Json();
  j["worst"] = has_steps ? Json(p.worst().where) : Json();
  return j;
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

/// Summed over blocks, and block by block.
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

/// Columns of each server's order.
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
  if (ranks[0].saves == 0) return nullptr;
  std::vector<double> samples = ranks[0].save_seconds;  // all wait for the slowest rank
  Json bytes = Json::array();
  for (const RankResult& r : ranks) {
    bytes.push_back(r.saved_bytes);
    for (size_t i = 0; i < samples.size(); ++i)
      samples[i] = std::max(samples[i], r.save_seconds[i]);
  }
  return {{"saves", ranks[0].saves}, {"bytes", bytes}, {"samples", samples}};
}

void add_counted(Json& document, const Plan& plan, const std::vector<RankResult>& ranks) {
  int64_t flops = 0, recomputed = 0;
  for (const RankResult& r : ranks) {
    flops += r.flops;
    recomputed += r.flops_recomputed;
  }
  document["flops_per_step"] = flops;
  document["flops_per_token"] = flops_per_token(plan, flops);
  document["flops_recomputed"] = recomputed;
  document["memory"] = memory_json(ranks);
  document["ledger"] = ledger_json(ranks);
}

Json counts_json(const PartCounts& counts) {
  Json j = Json::object();
  for (int k = 0; k < kNumPartKinds; ++k) {
    const auto kind = static_cast<PartKind>(k);
    if (counts.of(kind) > 0) j[std::string(to_string(kind))] = counts.of(kind);
  }
  return j;
}

}  // namespace

Json by_category(const BytesByCategory& bytes) {
  Json j = Json::object();
  for (int c = 0; c < kNumCategories; ++c) {
    if (static_cast<Category>(c) == Category::kScratch) continue;
    j[std::string(to_string(static_cast<Category>(c)))] = bytes[static_cast<size_t>(c)];
  }
  return j;
}

Json parameters_json(const ModelParts& parts) {
  return {{"total", parts.whole.total()},
          {"by_kind", counts_json(parts.whole)},
          {"fullest_rank",
           {{"rank", parts.rank},
            {"total", parts.fullest.total()},
            {"by_kind", counts_json(parts.fullest)}}}};
}

double flops_per_token(const Plan& plan, int64_t flops_per_step) {
  return static_cast<double>(flops_per_step) /
         static_cast<double>(plan.train.batch * plan.model.sequence);
}

Json document_head(const Plan& plan, const std::string& world, int64_t ranks) {
  return {{"status", "failed"},
          {"plan", plan_json(plan)},
          {"plan_hash", plan_hash(plan)},
          {"world", world},
          {"ranks", ranks},
          {"load", nullptr},
          {"provenance", provenance()}};
}

Json data_json(const Plan& plan, const DataIdentity& identity) {
  const auto or_null = [](bool is_known, Json value) { return is_known ? value : Json(nullptr); };
  return {{"kind", identity.kind},
          {"path", or_null(!plan.data.path.empty(), plan.data.path)},
          {"bytes", identity.bytes},
          {"hash", identity.hash},
          {"samples", or_null(identity.samples > 0, identity.samples)}};
}

void add_results(Json& document, const Plan& plan, const std::vector<RankResult>& ranks) {
  // A step ends when its slowest rank does.
  std::vector<double> samples = ranks[0].step_seconds;
  for (const RankResult& r : ranks) {
    for (size_t i = 0; i < samples.size(); ++i)
      samples[i] = std::max(samples[i], r.step_seconds[i]);
  }
  const StepTime time = summarise(samples);
  document["status"] = "ok";
  document["loss"] = ranks[0].losses;
  document["validation_loss"] =
      plan.train.validation_batches > 0 ? number(ranks[0].validation_loss) : Json(nullptr);
  document["step_time_s"] = {{"median", time.median},
                             {"ci95", {time.low, time.high}},
                             {"samples", samples},
                             {"warmup", time.warmup}};
  const auto tokens = static_cast<double>(plan.train.batch * plan.model.sequence);
  document["tokens_per_s"] = time.median > 0 ? Json(tokens / time.median) : Json(nullptr);
  std::vector<CpuWindow> windows;
  for (const RankResult& r : ranks) windows.push_back(r.load);
  add_windows(document["load"], windows);
  add_counted(document, plan, ranks);
  document["experts"] = experts_json(ranks[0].experts);
  document["pushes"] = pushes_json(ranks[0].pushes);
  document["loss_scale"] = scale_json(ranks[0]);
  document["resumed_from"] = ranks[0].resumed_from ? Json(*ranks[0].resumed_from) : Json(nullptr);
  document["resume_changes"] =
      ranks[0].resume_changes.empty() ? Json(nullptr) : Json(join(ranks[0].resume_changes, "; "));
  document["checkpoint"] = checkpoint_json(ranks);
  document["certificate"] = certificate_json(ranks[0].certificate);
}

void add_prediction(Json& document, const Plan& plan, const Prediction& prediction) {
  document["status"] = "ok";
  document["loss"] = nullptr;
  document["validation_loss"] = nullptr;
  const double t = prediction.step_seconds;
  document["step_time_s"] = {{"median", t}, {"ci95", {t, t}}, {"samples", Json::array({t})}};
  document["tokens_per_s"] =
      t > 0 ? Json(static_cast<double>(plan.train.batch * plan.model.sequence) / t) : Json(nullptr);
  add_counted(document, plan, prediction.ranks);
  document["experts"] = nullptr;
  document["pushes"] = nullptr;
  document["loss_scale"] = nullptr;
  document["resumed_from"] = nullptr;
  document["resume_changes"] = nullptr;
  document["checkpoint"] = nullptr;
  document["certificate"] = nullptr;
}

void add_failure(Json& document, const std::string& status, const std::exception& cause) {
  document["status"] = status;
  document["reason"] = cause.what();
  if (const auto* oom = dynamic_cast<const OutOfMemory*>(&cause)) {
    document["out_of_memory"] = {{"rank", oom->rank},
                                 {"requested_bytes", oom->requested},
                                 {"live_bytes", oom->live},
                                 {"budget_bytes", oom->budget}};
  }
}

void write_document(const Json& document, const std::string& file) {
  replace_file(file, json_document(document));
}

Json to_json(const RankResult& r) {
  Json traffic = Json::object();
  for (const auto& [axis, t] : r.traffic) {
    traffic[axis] = {t.bytes_sent, t.bytes_received, t.messages, t.peers,
                     t.wire_peers, t.calls,          t.counting};
  }
  // NaN travels as null and comes back as NaN; a loss is finite here.
  return {{"losses", r.losses},
          {"step_seconds", r.step_seconds},
          {"validation_loss", r.validation_loss},
          {"flops", r.flops},
          {"flops_recomputed", r.flops_recomputed},
          {"peak_bytes", r.peak_bytes},
          {"at_peak", r.at_peak},
          {"peak_by_category", r.peak_by_category},
          {"traffic", traffic},
          {"saves", r.saves},
          {"saved_bytes", r.saved_bytes},
          {"save_seconds", r.save_seconds},
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
  r.peak_bytes = j.at("peak_bytes");
  r.at_peak = j.at("at_peak").get<BytesByCategory>();
  r.peak_by_category = j.at("peak_by_category").get<BytesByCategory>();
  r.saves = j.at("saves");
  r.saved_bytes = j.at("saved_bytes");
  r.save_seconds = j.at("save_seconds").get<std::vector<double>>();
  r.load = cpu_window_from(j.at("load"));
  for (const auto& [axis, t] : j.at("traffic").items()) {
    r.traffic[axis] = {t.at(0),
                       t.at(1),
                       t.at(2),
                       t.at(3),
                       t.at(4),
                       t.at(5).get<std::map<std::string, int64_t>>(),
                       t.at(6).get<std::string>()};
  }
  return r;
}

}  // namespace kuafu
