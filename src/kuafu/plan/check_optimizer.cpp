// SPDX-License-Identifier: Apache-2.0
//
// What the keys of [optimizer] say about each other.

#include <algorithm>

#include "kuafu/base/registry.h"
#include "kuafu/base/suggest.h"
#include "kuafu/plan/check.h"
#include "kuafu/plan/choices.h"
#include "kuafu/plan/kind_names.h"

namespace kuafu::plan {
namespace {

constexpr std::string_view kKind = "optimizer.kind";

const OptimizerKind& kind_of(const Plan& plan, const std::vector<OptimizerKind>& kinds,
                             const Origins& origins) {
  std::vector<std::string> names;
  for (const OptimizerKind& kind : kinds) {
    if (kind.name == plan.optimizer.kind) return kind;
    names.push_back(kind.name);
  }
  throw NotFound(text(origins.of({std::string(kKind)}), kKind, " = ",
                      in_quotes(plan.optimizer.kind),
                      " is not allowed; allowed: ", join_or(in_quotes(names)),
                      "; nearest: ", in_quotes(nearest(plan.optimizer.kind, names))));
}

void check_schedule(const Plan& plan, const Origins& origins) {
  const OptimizerPlan& o = plan.optimizer;
  const int64_t warmup = o.warmup_steps(plan.train.batch), steps = o.schedule_steps;
  KUAFU_REQUIRE(o.warmup_unit != "epochs" || o.epoch > 0,
                origins.of({"optimizer.epoch", "optimizer.warmup_unit"}),
                "optimizer.warmup_unit = \"epochs\" with optimizer.epoch = 0: how many samples an "
                "epoch has is not said; allowed: from 1; nearest: epoch = the samples that `kuafu "
                "explain PLAN` shows under Data, or warmup_unit = \"steps\"");
  KUAFU_REQUIRE(o.warmup_unit != "epochs" || o.warmup > 0,
                origins.of({"optimizer.warmup_unit", "optimizer.warmup"}),
                "optimizer.warmup_unit = \"epochs\" has no effect with optimizer.warmup = 0; "
                "nearest: warmup = 1, or warmup_unit = \"steps\"");
  KUAFU_REQUIRE(steps == 0 || warmup <= steps,
                origins.of({"optimizer.schedule_steps", "optimizer.warmup"}),
                "optimizer.schedule_steps = ", steps, " ends inside optimizer.warmup = ", o.warmup,
                o.warmup_unit == "epochs" ? text(" epochs, ", warmup, " steps") : "",
                "; allowed: at least ", warmup, "; nearest: schedule_steps = ", warmup,
                o.warmup_unit == "steps" ? text(", or warmup = ", steps) : "");
  const bool is_flat = o.schedule == "constant" && warmup == 0;
  KUAFU_REQUIRE(o.rewarm_at == 0 || !is_flat, origins.of({"optimizer.rewarm_at"}),
                "optimizer.rewarm_at = ", o.rewarm_at,
                " begins nothing again with optimizer.warmup = 0 and optimizer.schedule = "
                "\"constant\"; nearest: warmup = 1, or rewarm_at = 0");
  KUAFU_REQUIRE(o.rewarm_at == 0 || o.rewarm_at < plan.schedule_steps(),
                origins.of({"optimizer.rewarm_at"}), "optimizer.rewarm_at = ", o.rewarm_at,
                " has no effect: the schedule ends after step ", plan.schedule_steps(),
                "; allowed: below ", plan.schedule_steps(), "; nearest: rewarm_at = ",
                std::max<int64_t>(0, plan.schedule_steps() - std::max<int64_t>(warmup, 1)));
  const int64_t first = o.rewarm_at, second = plan.schedule_steps() - o.rewarm_at;
  KUAFU_REQUIRE(o.rewarm_at == 0 || warmup <= std::min(first, second),
                origins.of({"optimizer.rewarm_at", "optimizer.warmup"}),
                "optimizer.rewarm_at = ", o.rewarm_at, " leaves ", first, " steps before it and ",
                second, " after it, and optimizer.warmup takes ", warmup,
                ": one of the two never comes to its rate; allowed: ",
                2 * warmup <= plan.schedule_steps()
                    ? text("from ", warmup, " to ", plan.schedule_steps() - warmup)
                    : text("a warm-up of at most ", plan.schedule_steps() / 2, " steps"),
                "; nearest: warmup = ", std::min(first, second));
  KUAFU_REQUIRE(!o.nesterov || o.momentum > 0,
                origins.of({"optimizer.nesterov", "optimizer.momentum"}),
                "optimizer.nesterov = true has no effect with optimizer.momentum = 0; nearest: "
                "momentum = 0.9, or nesterov = false");
}

void check_ratios(const Plan& plan, const Origins& origins) {
  const OptimizerPlan& o = plan.optimizer;
  KUAFU_REQUIRE(
      o.ratio_min <= o.ratio_max, origins.of({"optimizer.ratio_max", "optimizer.ratio_min"}),
      "optimizer.ratio_max = ", o.ratio_max, " is below optimizer.ratio_min = ", o.ratio_min,
      "; allowed: at least ", o.ratio_min, "; nearest: ratio_max = ", o.ratio_min,
      ", or ratio_min = ", o.ratio_max);
}

/// Values of keys that each are allowed and together say nothing, or what no rule does.
void check_variants(const Plan& plan, const Origins& origins) {
  const OptimizerPlan& o = plan.optimizer;
  const auto refuse = [&](bool is_wrong, const std::vector<std::string>& keys,
                          const auto&... words) {
    KUAFU_REQUIRE(!is_wrong, origins.of(keys), words...);
  };
  refuse(
      o.bound == "weights" && o.kind == optimizer_kinds::kLars,
      {"optimizer.bound", "optimizer.kind"},
      "optimizer.bound = \"weights\" with optimizer.kind = \"lars\", whose weights have no bounds "
      "of their own; allowed: \"auto\", \"none\", \"ratio\" or \"rate\"; nearest: \"ratio\"");
  refuse(
      o.bound == "rate" && o.kind == optimizer_kinds::kLamb, {"optimizer.bound", "optimizer.kind"},
      "optimizer.bound = \"rate\" with optimizer.kind = \"lamb\", whose ratio is no rate; allowed: "
      "\"auto\", \"none\", \"ratio\" or \"weights\"; nearest: \"ratio\"");
  const OptimizerPlan defaults;
  const bool is_min = o.ratio_min != defaults.ratio_min || origins.has("optimizer.ratio_min");
  const bool is_max = o.ratio_max != defaults.ratio_max || origins.has("optimizer.ratio_max");
  const bool has_bounds = is_min || is_max;
  const bool reads_bounds = o.bounded() == "ratio" || o.bounded() == "weights";
  refuse((o.kind == optimizer_kinds::kLars || o.kind == optimizer_kinds::kLamb) && has_bounds &&
             !reads_bounds,
         {is_min ? "optimizer.ratio_min" : "optimizer.ratio_max", "optimizer.bound"},
         is_min ? "optimizer.ratio_min = " : "optimizer.ratio_max = ",
         is_min ? o.ratio_min : o.ratio_max,
         " has no effect with optimizer.bound = ", in_quotes(o.bound), " of ", in_quotes(o.kind),
         "; nearest: bound = \"ratio\"");
  refuse(o.kind == optimizer_kinds::kLamb && !o.bias_correction && o.correction_in != "moments",
         {"optimizer.correction_in", "optimizer.bias_correction"},
         "optimizer.correction_in = ", in_quotes(o.correction_in),
         " has no effect with optimizer.bias_correction = false; nearest: ",
         "bias_correction = true, or correction_in = \"moments\"");
  refuse(o.scaled_layers == "all" && o.exclude == "none",
         {"optimizer.scaled_layers", "optimizer.exclude"},
         "optimizer.scaled_layers = \"all\" has no effect with optimizer.exclude = \"none\", which "
         "leaves no layer out; nearest: exclude = \"vectors\", or scaled_layers = \"included\"");
  refuse(o.scaled_layers == "decayed" && o.weight_decay > 0,
         {"optimizer.scaled_layers", "optimizer.weight_decay"},
         "optimizer.scaled_layers = \"decayed\" has no effect with optimizer.weight_decay = ",
         o.weight_decay,
         ", with which all layers that exclude leaves in decay; nearest: scaled_layers = "
         "\"included\", or weight_decay = 0");
  refuse(o.rate_in != "velocity" && o.momentum == 0, {"optimizer.rate_in", "optimizer.momentum"},
         "optimizer.rate_in = \"", o.rate_in,
         "\" has no effect with optimizer.momentum = 0; nearest: momentum = "
         "0.9, or rate_in = \"velocity\"");
  refuse(o.denominator == "norm_of_sum" && o.weight_decay == 0,
         {"optimizer.denominator", "optimizer.weight_decay"},
         "optimizer.denominator = \"norm_of_sum\" has no effect with optimizer.weight_decay = 0; "
         "nearest: weight_decay = 0.01, or denominator = \"sum_of_norms\"");
  refuse(
      o.dampening > 0 && o.nesterov, {"optimizer.dampening", "optimizer.nesterov"},
      "optimizer.dampening = ", o.dampening,
      " with optimizer.nesterov = true, whose step is of the whole gradient; nearest: dampening = "
      "0, or nesterov = false");
}

/// Layers can be left out of decay and of trust ratios alone.
void check_exclusion(const Plan& plan, const OptimizerKind& kind, const Origins& origins) {
  const OptimizerPlan& o = plan.optimizer;
  const bool has_ratios = kind.is_by_layers && !kind.has_matrices;
  const bool is_told = o.exclude == "vectors" || (kind.has_matrices && o.exclude != "auto");
  KUAFU_REQUIRE(!is_told || o.weight_decay > 0 || has_ratios,
                origins.of({"optimizer.exclude", "optimizer.weight_decay"}),
                "optimizer.exclude = ", in_quotes(o.exclude),
                " has no effect with optimizer.weight_decay = 0 of ", in_quotes(kind.name),
                ", which has no trust ratios; nearest: weight_decay = 0.01, or exclude = \"auto\"");
}

}  // namespace

void check_optimizer(const Plan& plan, const Choices& choices, const Origins& origins) {
  const OptimizerKind& kind = kind_of(plan, choices.optimizers, origins);
  check_ignored(plan, choices, origins);
  check_schedule(plan, origins);
  check_ratios(plan, origins);
  check_variants(plan, origins);
  check_exclusion(plan, kind, origins);
  check_served_rule(plan, kind, choices.optimizers, origins);
}

}  // namespace kuafu::plan
