// SPDX-License-Identifier: Apache-2.0
#include "kuafu/plan/auto_values.h"

#include <string>
#include <variant>

namespace kuafu::plan {
namespace {

std::string spelled_exclusion(const OptimizerPlan& o) {
  if (o.exclude != "auto") return o.exclude;
  for (const OptimizerKind& kind : builtin_optimizer_kinds()) {
    if (kind.name != o.kind) continue;
    return o.leaves_vectors_out(kind.is_by_layers) ? "vectors" : "none";
  }
  return o.exclude;
}

/// With the default of a key.
Plan without(const Key& key, Plan plan) {
  Plan defaults;
  const Member from = key.member(defaults);
  std::visit([&](auto* to) { *to = *std::get<decltype(to)>(from); }, key.member(plan));
  return plan;
}

}  // namespace

Plan spelled_out(Plan plan) {
  ModelPlan& m = plan.model;
  m.kv_heads = m.num_kv_heads();
  m.ffn = m.ffn_width();
  m.embedding = m.embedding_width();
  OptimizerPlan& o = plan.optimizer;
  o.bound = o.bounded();
  o.exclude = spelled_exclusion(o);
  o.schedule_steps = plan.schedule_steps();
  if (plan.train.loss_scale == TrainPlan::kAutoScale) {
    plan.train.loss_scale = plan.has_dynamic_scale() ? TrainPlan::kDynamicScale : 1;
  }
  return plan;
}

bool means_default(const Key& key, const Plan& plan) {
  if (print(key, plan) == print(key, Plan{})) return true;
  return print(key, spelled_out(plan)) == print(key, spelled_out(without(key, plan)));
}

}  // namespace kuafu::plan
