// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "kuafu/memory/policy_kinds.h"
#include "kuafu/plan/origins.h"
#include "kuafu/plan/plan.h"

namespace kuafu {
struct Choices;
}

namespace kuafu::plan {

/// Checks the options of a document against each other, and model.kind, optimizer.kind and
/// memory.policy against those there are. Throws ConfigError for options that have no effect or
/// contradict each other.
void check_options(const Plan& plan, const Choices& choices, const Origins& origins);

/// The part of it that concerns [optimizer] and, once its kind is known, keys without effect.
void check_optimizer(const Plan& plan, const Choices& choices, const Origins& origins);
/// The part of it that concerns keys that the value of another one makes idle.
void check_ignored(const Plan& plan, const Choices& choices, const Origins& origins);
/// The part of it that concerns memory.policy. Throws Refused for one that this build cannot run,
/// and for one that keeps what fits where there is no budget.
void check_policy(const Plan& plan, const std::vector<memory::PolicyKind>& policies,
                  const Origins& origins);

/// Throws Refused for a rule whose steps are of layers where replicas go on by themselves.
void check_served_rule(const Plan& plan, const OptimizerKind& kind,
                       const std::vector<OptimizerKind>& kinds, const Origins& origins);

/// Checks the model's own numbers: heads and widths that divide. Throws Refused.
void check_model(const Plan& plan, const Origins& origins);

/// Checks what concerns mixtures of experts: counts that contradict each other, ranks that cannot
/// share them. Throws Refused, ConfigError for options without effect.
void check_experts(const Plan& plan, const Origins& origins);

/// Checks how replicas agree against what else the plan asks of them. Throws Refused.
void check_data(const Plan& plan, const Origins& origins);
/// Checks tiers of memory against what else the plan asks of model states. Throws Refused.
void check_memory(const Plan& plan, const Origins& origins);
/// Checks the schedule and the stages of a pipeline, as far as the plan alone decides: names,
/// files, chunks, and, where replicas and micro-batches are given, that a hand-written schedule
/// runs. Throws ConfigError for schedules that are none, Refused for stages that cannot be filled.
void check_pipeline(const Plan& plan, const Origins& origins);

/// Tokens of data.kind = "text" for a kind of model: one a byte, and the special ones of BERT.
int64_t text_tokens(const ModelPlan& model);

/// Defaults that follow from the kind of model, where the key is not given: BERT's vocabulary of
/// text, ViT's data.
void fill_defaults(Plan& plan, const Origins& origins);

/// Fills what other keys of the model decide: the sequence of images. Throws Refused where a patch
/// does not divide its image, or where the sequence was given and is another.
void complete(Plan& plan, const Origins& origins);

/// Checks parallel.sequence.mode against the names of modes. Throws ConfigError.
void check_sequence_mode(const Plan& plan, const std::vector<std::string>& attentions,
                         const Origins& origins);

/// Checks parallel.pipeline.schedule against the names of schedules. Throws ConfigError where it is
/// neither one of them nor a file.
void check_schedule(const Plan& plan, const std::vector<std::string>& schedules,
                    const Origins& origins);

/// Checks where a plan can be placed, whatever the number of ranks. Throws Refused for sizes that
/// do not divide and for schemes that this build lacks, ConfigError for unknown ones.
void check_plan(const Plan& plan, const TensorModes& modes, const Origins& origins);

/// The ranks of a run, where the number of replicas follows from them: messages advise other ranks
/// then, not another parallel.data, which nobody wrote.
struct RanksGiven {
  int64_t ranks = 0;        ///< 0: parallel.data is the plan's own
  int64_t replica = 1;      ///< ranks of one
  std::string option = {};  ///< "--ranks", where that gave them

  /// "--ranks 4", "4 ranks"
  std::string words(const std::string& number) const;
  /// What messages say behind the number of replicas: " (of --ranks 4)"; empty where it is the plan's.
  std::string origin() const;
  /// The advice of so many replicas: "data = 2 or 4", "--ranks 4 or 8".
  std::string advice(const std::vector<int64_t>& replicas) const;
};

/// Why the ranks that share the experts do not divide the replicas, with the nearest that do; none
/// where they do. @pre parallel.data > 0.
std::optional<std::string> expert_misfit(const Plan& plan, const RanksGiven& given = {});

/// Why the replicas cannot agree in the mode of parallel.data: more servers than replicas, or nodes
/// that hold unequal numbers of them, with the nearest that works; none where they can.
/// @pre parallel.data > 0.
std::optional<std::string> replica_misfit(const Plan& plan, const RanksGiven& given = {});

/// Why batch, data and micro_batch do not fit together, with the nearest that do; none where they
/// do. @pre parallel.data > 0.
std::optional<std::string> batch_misfit(const Plan& plan, const RanksGiven& given = {});

/// The mode of a plan. Throws as check_plan does where there is none of that name.
const TensorMode& find_mode(const Plan& plan, const TensorModes& modes, const Origins& origins);

/// "2 or 4"
std::string either(const std::vector<int64_t>& numbers);

/// Divisors of `n` nearest to `x`, at most two, as "2 or 4".
std::string nearest_divisors(int64_t n, int64_t x);

/// Product, or 2^63 - 1 where it would be more. @pre factors are positive.
int64_t saturating_product(const std::vector<int64_t>& factors);

}  // namespace kuafu::plan
