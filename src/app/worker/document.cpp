// SPDX-License-Identifier: Apache-2.0
#include "app/worker/document.h"

#include <algorithm>

#include "app/worker/document_parts.h"
#include "app/worker/plan_json.h"
#include "kuafu/base/reason.h"
#include "kuafu/base/suggest.h"
#include "kuafu/meter/flops.h"
#include "kuafu/record/files.h"
#include "kuafu/record/json_text.h"
#include "kuafu/record/provenance.h"

namespace kuafu {
namespace {

void add_counted(Json& document, const Plan& plan, const std::vector<RankResult>& ranks) {
  uint64_t total = 0, recomputed = 0, optimizer = 0;
  for (const RankResult& r : ranks) {
    add_to_count(total, static_cast<uint64_t>(r.flops), flops::kWhat);
    add_to_count(recomputed, static_cast<uint64_t>(r.flops_recomputed), flops::kWhat);
    add_to_count(optimizer, static_cast<uint64_t>(r.flops_optimizer), flops::kOptimizer);
  }
  document["flops_per_step"] = total;
  document["flops_per_token"] = flops_per_token(plan, total);
  document["flops_recomputed"] = recomputed;
  document["flops_optimizer"] = optimizer;
  document["memory"] = memory_json(ranks);
  document["moves"] = moves_json(plan, ranks);
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

double flops_per_token(const Plan& plan, uint64_t flops_per_step) {
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
          {"tokenizer", or_null(!plan.data.tokenizer.empty(), plan.data.tokenizer)},
          {"tokens", or_null(identity.tokens > 0, identity.tokens)},
          {"samples", or_null(identity.samples > 0, identity.samples)}};
}

StepTime add_steps(Json& document, const Plan& plan, const RankResult& rank,
                   const std::vector<double>& seconds) {
  const StepTime time = summarise(seconds);
  document["loss"] = rank.losses;
  document["validation"] = validation_json(rank.validation);
  document["telemetry"] = telemetry_json(rank.telemetry);
  document["step_time_s"] = {{"median", time.median},
                             {"ci95", time.ci95 ? Json(*time.ci95) : Json(nullptr)},
                             {"samples", seconds},
                             {"warmup", time.warmup}};
  const auto tokens = static_cast<double>(plan.train.batch * plan.model.sequence);
  document["tokens_per_s"] = time.median > 0 ? Json(tokens / time.median) : Json(nullptr);
  document["loss_scale"] = scale_json(rank);
  document["resumed_from"] = rank.resumed_from ? Json(*rank.resumed_from) : Json(nullptr);
  document["resume_changes"] =
      rank.resume_changes.empty() ? Json(nullptr) : Json(join(rank.resume_changes, "; "));
  return time;
}

void add_results(Json& document, const Plan& plan, const std::vector<RankResult>& ranks) {
  // A step ends when its slowest rank does.
  std::vector<double> samples = ranks[0].step_seconds;
  for (const RankResult& r : ranks) {
    for (size_t i = 0; i < samples.size(); ++i)
      samples[i] = std::max(samples[i], r.step_seconds[i]);
  }
  document["status"] = "ok";
  const StepTime time = add_steps(document, plan, ranks[0], samples);
  document["validation_loss"] =
      plan.train.validation_batches > 0 ? finite_or_null(ranks[0].validation_loss) : Json(nullptr);
  std::vector<CpuWindow> windows;
  for (const RankResult& r : ranks) windows.push_back(r.load);
  add_windows(document["load"], windows);
  add_counted(document, plan, ranks);
  const double worked =
      document["flops_per_step"].get<double>() + document["flops_recomputed"].get<double>();
  document["compute"] = compute_json(ranks[0].peak_flops_per_s, worked, time.median);
  document["experts"] = experts_json(ranks[0].experts);
  document["pushes"] = pushes_json(ranks[0].pushes);
  document["settled_after"] = ranks[0].pushes.empty() ? Json(nullptr) : Json(ranks[0].met);
  document["checkpoint"] = checkpoint_json(ranks);
  document["certificate"] = certificate_json(ranks[0].certificate);
}

void add_prediction(Json& document, const Plan& plan, const Prediction& prediction) {
  document["status"] = "ok";
  document["loss"] = nullptr;
  document["validation_loss"] = nullptr;
  document["validation"] = nullptr;
  document["telemetry"] = nullptr;
  const double t = prediction.step_seconds;
  document["step_time_s"] = {{"median", t}, {"ci95", {t, t}}, {"samples", Json::array({t})}};
  document["tokens_per_s"] =
      t > 0 ? Json(static_cast<double>(plan.train.batch * plan.model.sequence) / t) : Json(nullptr);
  add_counted(document, plan, prediction.ranks);
  document["compute"] = nullptr;
  document["experts"] = nullptr;
  document["pushes"] = nullptr;
  document["settled_after"] = nullptr;
  document["loss_scale"] = nullptr;
  document["resumed_from"] = nullptr;
  document["resume_changes"] = nullptr;
  document["checkpoint"] = nullptr;
  document["certificate"] = nullptr;
}

void add_failure(Json& document, const std::string& status, const std::exception& cause) {
  document["status"] = status;
  document["reason"] = reason_of(cause);
  if (const auto* oom = dynamic_cast<const OutOfMemory*>(&cause)) {
    document["out_of_memory"] = {{"rank", oom->rank},
                                 {"requested_bytes", oom->requested},
                                 {"live_bytes", oom->live},
                                 {"budget_bytes", oom->budget > 0 ? Json(oom->budget) : Json()}};
  }
  if (const auto* full = dynamic_cast<const TierFull*>(&cause)) {
    document["out_of_memory"]["tier"] = full->fields.tier;
    document["out_of_memory"]["live_by_category"] = by_category(full->fields.by_category);
  }
}

void write_document(const Json& document, const std::string& file) {
  replace_file(file, json_document(document));
}

}  // namespace kuafu
