// SPDX-License-Identifier: Apache-2.0
#include "kuafu/plan/warnings.h"

#include "kuafu/plan/check.h"
#include "kuafu/plan/keys.h"

namespace kuafu::plan {
namespace {

/// What replicas do among themselves: nothing where there is one.
constexpr const char* kOfReplicas[] = {"parallel.zero", "parallel.data.mode", "parallel.data.order",
                                       "parallel.data.overlap", "parallel.data.bucket"};

/// Modes that say how a group of ranks shares the work: nothing where the group is one rank.
constexpr const char* kOfGroups[][2] = {{"parallel.tensor.mode", "parallel.tensor.size"},
                                        {"parallel.sequence.mode", "parallel.sequence.size"}};

/// A run that never comes to its rate; a schedule that is said to go on after it has a horizon of its
/// own, as under --stop-at.
void add_long_warmup(const Plan& plan, const Origins& origins, std::vector<std::string>& all) {
  const OptimizerPlan& o = plan.optimizer;
  const int64_t warmup = o.warmup_steps(plan.train.batch), steps = plan.schedule_steps();
  if (warmup <= steps) return;
  all.push_back(text(
      origins.of({"optimizer.warmup", "train.steps"}), "optimizer.warmup = ", o.warmup,
      o.warmup_unit == "epochs" ? text(" epochs, ", warmup, " steps,") : "",
      " is longer than train.steps = ", steps, ": the last step has ", steps, " / ", warmup,
      " of the rate; nearest: ", o.warmup_unit == "steps" ? text("warmup = ", steps, ", or ") : "",
      "train.steps = ", warmup, ", which --stop-at ends earlier"));
}

}  // namespace

std::vector<std::string> warnings(const Plan& resolved, const Origins& origins) {
  std::vector<std::string> all;
  const ModelPlan& m = resolved.model;
  const int64_t read = text_tokens(m);
  if (resolved.data.kind == "text" && resolved.data.tokenizer.empty() && m.vocab > read) {
    all.push_back(text(origins.of({"model.vocab", "data.kind"}), "model.vocab = ", m.vocab,
                       ", but data.kind = \"text\" has ", read, " tokens, one a byte",
                       m.input() == ModelInput::kMaskedPairs ? " and three special ones" : "", ": ",
                       m.vocab - read, " rows of the table are never read; nearest: vocab = ", read,
                       ", or data.kind = \"synthetic\""));
  }
  add_long_warmup(resolved, origins, all);
  const Plan defaults;
  for (const auto& [mode, size] : kOfGroups) {
    const Key &of_mode = *find_key(mode), &of_size = *find_key(size);
    if (print(of_mode, resolved) == print(of_mode, defaults)) continue;
    if (print(of_size, resolved) != "1") continue;
    all.push_back(text(origins.of({mode, size}), mode, " = ", print(of_mode, resolved),
                       " shares nothing out, for ", size, " = 1; give it more ranks, or leave ",
                       "the mode out"));
  }
  if (resolved.parallel.data.size != 1) return all;
  for (const char* name : kOfReplicas) {
    const Key& key = *find_key(name);
    if (print(key, resolved) == print(key, defaults)) continue;
    // Ranks that share parameters of a tensor scheme add gradients in that order too.
    if (name == std::string_view("parallel.data.order") && num_ranks(resolved) > 1) continue;
    all.push_back(text(origins.of({name}), name, " = ", print(key, resolved),
                       " has no effect on one replica (parallel.data = 1); leave it out, or give "
                       "the plan more ranks"));
  }
  return all;
}

}  // namespace kuafu::plan
