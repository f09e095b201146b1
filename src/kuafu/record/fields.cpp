// SPDX-License-Identifier: Apache-2.0
#include <sstream>

#include "kuafu/record/schema.h"

namespace kuafu {
namespace {

constexpr auto kAlways = Presence::kAlways;
constexpr auto kOk = Presence::kOk;
constexpr auto kOptional = Presence::kOptional;
using T = FieldType;

std::vector<FieldDoc> outcome_fields() {
  return {
      {"status", T::kText, kAlways, false, "",
       "`ok`, `refused` (cannot be placed), `out_of_memory`, `timeout`, `diverged`, `interrupted` "
       "or `failed`"},
      {"reason", T::kText, kOptional, true, "",
       "why, where the status is not `ok`; else null, or left out"},
      {"out_of_memory", T::kObject, kOptional, true, "",
       "the allocation that did not fit, where the status is `out_of_memory`"},
      {"out_of_memory.rank", T::kInteger, kOptional, false, "", "the rank that asked"},
      {"out_of_memory.requested_bytes", T::kInteger, kOptional, false, "B", "what it asked for"},
      {"out_of_memory.live_bytes", T::kInteger, kOptional, false, "B", "what it held already"},
      {"out_of_memory.budget_bytes", T::kInteger, kOptional, true, "B",
       "what it may hold; null where the plan sets none and the system gave no more"},
      {"out_of_memory.tier", T::kText, kOptional, false, "",
       "`device`, `host` or `disk`, where `memory.policy` has tiers"},
      {"out_of_memory.live_by_category", T::kObject, kOptional, false, "B",
       "what it held there, by category"},
      {"out_of_memory.live_by_category.*", T::kInteger, kOptional, false, "B", "of one category"},
      {"plan", T::kObject, kOk, true, "",
       "the resolved plan, every key of `plan.md` with its value, as nested objects; of "
       "`optimizer.bound` and `optimizer.exclude` what `auto` became, of a plug-in's kind `auto`"},
      {"plan_hash", T::kText, kOk, true, "",
       "16 hex digits of the resolved plan, without the data's place and hash: its identity"},
      {"data", T::kObject, kOptional, true, "",
       "what the run read; null in the simulated world, which reads nothing"},
      {"data.kind", T::kText, kOk, false, "", "`text` or `synthetic`"},
      {"data.path", T::kText, kOptional, true, "",
       "as the plan names it; null for the headers of the installed LibTorch and for what is made "
       "up"},
      {"data.bytes", T::kInteger, kOk, false, "B", "of the corpus; 0 for what is made up"},
      {"data.hash", T::kText, kOk, false, "",
       "16 hex digits: XXH64 of those bytes, with a tokenizer of all that the ids follow from, or "
       "of "
       "the generator's parameters; part of a case's id"},
      {"data.tokenizer", T::kText, kOptional, true, "",
       "as the plan names it; null for one token a byte and for what is made up"},
      {"data.tokens", T::kInteger, kOptional, true, "tokens",
       "of the corpus; null for what is made up"},
      {"data.samples", T::kInteger, kOk, true, "samples",
       "distinct training samples, an epoch; null where they never end"},
      {"world", T::kText, kOk, true, "", "`threads`, `mpi`, `nccl`, `simulated` or `self`"},
      {"device", T::kText, kOptional, false, "",
       "the card that ranks compute on, as its maker calls it; absent where they compute on cpu"},
      {"transport", T::kText, kOptional, false, "",
       "whose ledger the simulated world keeps: `threads` or `mpi`; absent in other worlds"},
      {"ranks", T::kInteger, kOk, true, "ranks", "size of the world"},
      {"parameters", T::kObject, kOptional, true, "", "elements of the model's parameters"},
      {"parameters.total", T::kInteger, kOk, false, "",
       "of the whole model, without padding; what is tied counts once"},
      {"parameters.by_kind", T::kObject, kOk, false, "",
       "the same by kind: `embedding`, `attention`, `mlp`, `experts`, `norms`, `head`, `other`"},
      {"parameters.by_kind.*", T::kInteger, kOptional, false, "", "of one kind"},
      {"parameters.fullest_rank", T::kObject, kOk, false, "",
       "what the rank that keeps most of them keeps: its shards with padding and copies of tied "
       "ones, under ZeRO-3 its part"},
      {"parameters.fullest_rank.rank", T::kInteger, kOk, false, "", "the first such rank"},
      {"parameters.fullest_rank.total", T::kInteger, kOk, false, "", "elements it keeps"},
      {"parameters.fullest_rank.by_kind", T::kObject, kOk, false, "", "the same by kind"},
      {"parameters.fullest_rank.by_kind.*", T::kInteger, kOptional, false, "", "of one kind"},
  };
}

std::vector<FieldDoc> training_fields() {
  return {
      {"loss", T::kNumbers, kOk, true, "nat",
       "training loss of each step, mean over the tokens of the global batch, of a ViT its images; "
       "null in the simulated world"},
      {"validation_loss", T::kNumber, kOk, true, "nat",
       "mean loss on the held-out windows after the last step; null in the simulated world"},
      {"validation", T::kObject, kOptional, true, "",
       "validation losses on the way, those from before a resume too; null without "
       "`train.validate_every`, unless the run goes on from a checkpoint that has a series, and in "
       "the simulated world, which does not validate"},
      {"validation.steps", T::kNumbers, kOk, false, "steps", "done before each"},
      {"validation.losses", T::kNumbers, kOk, false, "nat", "mean over the held-out windows"},
      {"validation.best_step", T::kInteger, kOk, true, "steps",
       "of the lowest: with `--checkpoint` its state is the link `best`"},
      {"validation.best_loss", T::kNumber, kOk, true, "nat", "the lowest"},
      {"telemetry", T::kObject, kOptional, true, "",
       "what each step did to each layer of the model, from before a resume too; null without "
       "`train.telemetry` and in the simulated world, which has no values"},
      {"telemetry.layers", T::kTexts, kOk, false, "",
       "names of the layers, each a tensor of the published model: q, k and v of `qkv.weight` are "
       "`qkv.weight[0]` to `[2]`, and each expert is one; a series has a number for each"},
      {"telemetry.steps", T::kNumbers, kOk, false, "steps",
       "done before each step of the series, from 0; a step that was skipped has nulls"},
      {"telemetry.gradient_norm", T::kNumbersPerStep, kOk, false, "",
       "of the gradient of the global batch, neither clipped nor scaled"},
      {"telemetry.weight_norm", T::kNumbersPerStep, kOk, false, "",
       "before the update; in half precision of the master copy"},
      {"telemetry.update_ratio", T::kNumbersPerStep, kOk, false, "",
       "norm of what the update changed over `weight_norm`; null where that is 0"},
      {"telemetry.trust_ratio", T::kNumbersPerStep, kOptional, true, "",
       "as the optimizer used it, in its bounds; 1 for layers that it leaves out; null of "
       "optimizers without"},
      {"telemetry.gradient_variance", T::kNumbersPerStep, kOptional, true, "",
       "estimate of the trace of the covariance of one sample's gradient (arXiv 1812.06162, A.1), "
       "from the gradients of replicas and micro-batches before they are summed; below 0 by "
       "chance; "
       "null of a layer whose gradient comes in one part, and as a whole where all do: one replica "
       "and one micro-batch have one batch size, and two are needed. The parts are each replica's "
       "gradient, summed over its micro-batches; with `parallel.zero` from 2 or "
       "`parallel.data.order = "
       "\"fixed\"`, which sum every micro-batch, that of each; of a parameter without replicas "
       "those of the micro-batches"},
      {"telemetry.gradient_square", T::kNumbersPerStep, kOptional, true, "",
       "estimate of the squared norm of the mean gradient, likewise"},
      {"telemetry.noise_scale", T::kNumbers, kOptional, true, "samples",
       "the simple noise scale of each step: the sum of `gradient_variance` over layers by that of "
       "`gradient_square`; null where a layer has no estimate, or one of the sums is not above 0. "
       "Of "
       "one step it is noisy: average both sums over steps, then divide"},
      {"step_time_s", T::kObject, kOk, true, "",
       "time of one training step; of a simulated plan with tiers of memory that of the last step, "
       "since the first may be a warm-up, and reads no slots"},
      {"step_time_s.median", T::kNumber, kOk, false, "s", "median of the samples"},
      {"step_time_s.ci95", T::kInterval, kOk, true, "s",
       "95 % interval of the median, by order statistics; null of fewer than six samples after the "
       "warm-up, which give none"},
      {"step_time_s.samples", T::kNumbers, kOk, false, "s",
       "one a training step: the time of its slowest rank"},
      {"step_time_s.warmup", T::kInteger, kOptional, false, "steps",
       "first samples that are left out of median and interval"},
      {"tokens_per_s", T::kNumber, kOk, true, "token / s",
       "tokens of the global batch over the median step time"},
      {"flops_per_step", T::kNumber, kOk, true, "FLOP",
       "model FLOPs of one step (a plan with 2^63 of them on a rank, or 2^64 on all, is refused), "
       "all ranks, forward and backward, without recomputation"},
      {"flops_per_token", T::kNumber, kOptional, true, "FLOP / token",
       "`flops_per_step` over the tokens of the global batch"},
      {"flops_recomputed", T::kNumber, kOk, true, "FLOP",
       "FLOPs of one step that recomputation adds, all ranks"},
      {"flops_optimizer", T::kNumber, kOptional, true, "FLOP",
       "FLOPs of one step in the optimizer's products (Muon's iterations), all ranks; no model "
       "FLOPs, so in no share of peak; records of before it was counted lack it"},
      {"compute", T::kObject, kOptional, true, "",
       "how near to its peak the machine worked; null unless the steps were watched (a terminal, "
       "`--log`, `--log-every`, `--tensorboard`)"},
      {"compute.peak_flops_per_s", T::kNumber, kOk, false, "FLOP / s",
       "measured before the first step: square products of the plan's type on all ranks at once, "
       "of "
       "extents up to 2,048, on a card 16,384; the fastest found, and no limit of the machine"},
      {"compute.share_of_peak", T::kNumber, kOk, true, "",
       "FLOPs of a step, with recomputation, over its median time, as a share of that"},
  };
}

std::vector<FieldDoc> load_fields() {
  return {
      {"load", T::kObject, kOptional, true, "",
       "who else used the machine while the steps were timed; null in the simulated world"},
      {"load.average", T::kNumber, kOptional, true, "",
       "load average of the minute before the run; earlier cases of a sweep are in it"},
      {"load.foreign_share", T::kNumber, kOptional, true, "",
       "of the cores' time during the training steps, what surely went to processes that are not "
       "of "
       "the run: `/proc/stat` less the run's own CPU time and a tick (10 ms) a core; null where "
       "Linux "
       "does not tell, or nothing was timed"},
      {"load.window_s", T::kNumber, kOptional, true, "s", "how long that was watched"},
      {"load.cores", T::kInteger, kOptional, false, "",
       "that the run may use, on the machine of rank 0"},
      {"load.threads_per_rank", T::kInteger, kOptional, false, "", "that compute"},
      {"load.threads", T::kInteger, kOptional, false, "", "of all ranks on that machine"},
      {"load.oversubscription", T::kNumber, kOptional, false, "",
       "these threads over the cores: above 1 ranks share cores, and their times say "
       "how they would wait, not how they would scale"},
  };
}

std::vector<FieldDoc> memory_fields() {
  return {
      {"memory", T::kObject, kOk, true, "", "what the ranks held"},
      {"memory.peak_bytes", T::kPerRank, kOk, false, "B", "highest live bytes of each rank"},
      {"memory.peak_by_category", T::kBytesPerRank, kOk, false, "B",
       "highest live bytes of each category by itself, for each rank: `parameter`, `gradient`, "
       "`optimizer`, `activation`, `communication`, `temporary`"},
      {"memory.at_peak", T::kBytesPerRank, kOk, false, "B",
       "live bytes by category at the moment of the rank's peak: they add up to `peak_bytes`"},
      {"memory.scratch_bytes", T::kPerRank, kOk, false, "B",
       "highest bytes an op took and gave back inside itself, of each rank; not in the peak"},
      {"moves", T::kObject, kOptional, true, "",
       "what went between tiers of memory in the training steps; null where `memory.policy` is "
       "`plain`. The policy chooses in every step, by uses that are foretold on meta tensors; but "
       "for its warm-up"},
      {"moves.chunks", T::kPerRank, kOk, false, "", "of parameters"},
      {"moves.to_device_bytes", T::kPerRank, kOk, false, "B",
       "copied from the host, as the queue counts them: parameters for their uses"},
      {"moves.to_host_bytes", T::kPerRank, kOk, false, "B",
       "copied from the device, likewise: gradients for the update, which the host makes"},
      {"moves.foretold_bytes", T::kPerRank, kOk, false, "B",
       "`to_device_bytes` as the policy, played on the trace of uses, has it"},
      {"moves.step_to_device_bytes", T::kPerRank, kOk, false, "B", "of the last step alone"},
      {"moves.step_to_host_bytes", T::kPerRank, kOk, false, "B", "of the last step alone"},
      {"moves.warm_up_steps", T::kPerRank, kOk, false, "",
       "training steps that were played by `host` without prefetch and measured: the first one "
       "where the policy is `auto`, as Gemini has it, or a plug-in's model cannot be computed on "
       "meta tensors"},
      {"moves.prefetches", T::kPerRank, kOk, false, "", "chunks loaded ahead of their use"},
      {"moves.prefetch_hits", T::kPerRank, kOk, false, "", "of these, used before they left again"},
      {"moves.wait_s", T::kNumbers, kOk, false, "s",
       "of each rank: what its thread stood still for a copy or the disk; in the simulated world "
       "by `cluster.host_gbs` and `cluster.disk_gbs`"},
      {"moves.host_peak_bytes", T::kPerRank, kOk, false, "B",
       "highest bytes of states on the host"},
      {"moves.disk_bytes", T::kPerRank, kOk, false, "B",
       "states on the disk, slots and with `memory.gradients` summed gradients; 0 without "
       "`memory.disk_path`"},
      {"moves.disk_read_bytes", T::kPerRank, kOk, false, "B",
       "read from the disk for the updates: slots that nobody has changed yet are zero and not "
       "read; gradients for the norm and for each pass of the rule"},
      {"moves.step_activation_bytes", T::kPerRank, kOk, false, "B",
       "inputs of blocks that went to the host and came back in the last step "
       "(`memory.activations`); in no other count"},
      {"moves.disk_written_bytes", T::kPerRank, kOk, false, "B", "written to it after them"},
      {"moves.regret_bytes", T::kPerRank, kOptional, true, "B",
       "`step_to_device_bytes` less the least that any moves of the same uses in the same budget "
       "load; null, with `regret_reason`, where that is not known or not proven of every rank. "
       "Searched for by CBC after the last step, for at most 5 s a trace"},
      {"moves.least_bytes", T::kPerRank, kOptional, true, "B",
       "the least that was found; null where nothing was searched"},
      {"moves.bound_bytes", T::kNumbers, kOptional, true, "B", "no moves load less; likewise"},
      {"moves.gap", T::kNumbers, kOptional, true, "",
       "how much less than `least_bytes` the least may be, as a part of it; 0 where it is proven"},
      {"moves.regret_reason", T::kText, kOptional, true, "",
       "why `regret_bytes` is null: a build without CBC, a search that was not proven, one step"},
  };
}

std::vector<FieldDoc> ledger_fields() {
  return {
      {"ledger", T::kObject, kOk, true, "",
       "traffic of the training steps (neither validation nor certificate) by mesh axis"},
      {"ledger.*", T::kObject, kOptional, false, "", "one mesh axis, such as `data` or `tensor`"},
      {"ledger.*.bytes_sent", T::kPerRank, kOk, false, "B", "sum over the training steps"},
      {"ledger.*.bytes_received", T::kPerRank, kOk, false, "B", "sum over the training steps"},
      {"ledger.*.messages", T::kPerRank, kOk, false, "messages", "messages sent"},
      {"ledger.*.peers", T::kPerRank, kOk, false, "",
       "number of other members of the groups used, each counted once"},
      {"ledger.*.wire_peers", T::kPerRank, kOk, false, "",
       "number of ranks that bytes went to or came from"},
      {"ledger.*.calls", T::kObject, kOk, false, "", "collective calls by verb"},
      {"ledger.*.calls.*", T::kPerRank, kOptional, false, "calls",
       "calls of one verb, such as `all_reduce`"},
      {"ledger.*.counting", T::kText, kOptional, false, "",
       "`wire`: counted where the bytes leave; `convention`: by the formulas of the cost model, "
       "where the transport has no wire or hides it"},
  };
}

std::vector<FieldDoc> expert_fields() {
  std::vector<FieldDoc> fields = {
      {"experts", T::kObject, kOptional, true, "",
       "load of the experts over the training steps, all mixture blocks; null without mixtures and "
       "in the simulated world, where it depends on data"}};
  for (const std::string at : {"experts.", "experts.blocks.*."}) {
    if (at != "experts.") {
      fields.push_back({"experts.blocks", T::kObject, kOk, false, "", "the same of each block"});
      fields.push_back({"experts.blocks.*", T::kObject, kOptional, false, "",
                        "one mixture block by its layer, from 0"});
    }
    fields.push_back({at + "tokens", T::kNumbers, kOk, false, "tokens", "taken by each expert"});
    fields.push_back({at + "choices", T::kNumbers, kOk, false, "choices",
                      "that named each expert, dropped ones too"});
    fields.push_back({at + "drop_rate", T::kNumber, kOk, false, "",
                      "choices that found their expert full, of all; where experts choose: tokens "
                      "that none chose, of all"});
    fields.push_back(
        {at + "imbalance", T::kNumber, kOk, false, "", "most choices of an expert over the mean"});
    fields.push_back({at + "steps", T::kObject, kOk, false, "", "the same of each training step"});
    fields.push_back({at + "steps.tokens", T::kNumbersPerStep, kOk, false, "tokens",
                      "taken by each expert in each step"});
    fields.push_back(
        {at + "steps.drop_rate", T::kNumbers, kOk, false, "", "choices dropped, of all"});
    fields.push_back({at + "steps.imbalance", T::kNumbers, kOk, false, "",
                      "most choices of an expert over the mean"});
  }
  return fields;
}

std::vector<FieldDoc> push_fields() {
  return {
      {"pushes", T::kObject, kOptional, true, "",
       "what parameter servers applied during training; null unless `parallel.data.staleness` is "
       "above 0"},
      {"pushes.*", T::kObject, kOptional, false, "",
       "one server, from 0: entry i of its lists is its update i, which made version i + 1, "
       "counted "
       "from the one that it began with"},
      {"pushes.*.worker", T::kNumbers, kOk, false, "", "whose gradients were applied"},
      {"pushes.*.step", T::kNumbers, kOk, false, "steps", "of that worker, from 0"},
      {"pushes.*.version", T::kNumbers, kOk, false, "",
       "of the server's parameters that the gradients were computed with"},
      {"settled_after", T::kNumbers, kOptional, true, "steps",
       "after which all workers waited for all pushes and read the newest version: to be saved, or "
       "stopped, and at the end; null unless `parallel.data.staleness` is above 0"},
  };
}

std::vector<FieldDoc> scale_fields() {
  return {
      {"loss_scale", T::kObject, kOptional, true, "",
       "the factor of the loss in backward; null where the plan scales none and in the simulated "
       "world; `loss` is never scaled"},
      {"loss_scale.scale", T::kNumbers, kOk, false, "", "of each training step"},
      {"loss_scale.skipped", T::kNumbers, kOk, false, "steps",
       "training steps, from 0, that updated nothing: a gradient of theirs was not finite"},
  };
}

std::vector<FieldDoc> checkpoint_fields() {
  return {
      {"resumed_from", T::kInteger, kOptional, true, "steps",
       "steps that the checkpoint had done from which the run went on; all that was measured is of "
       "the steps after it; 0 with `--init`; null where it began anew"},
      {"resume_changes", T::kText, kOptional, true, "",
       "how it learns otherwise since, both values of each key; null where it learns as it did"},
      {"checkpoint", T::kObject, kOptional, true, "",
       "checkpoints that were saved; null where none was"},
      {"checkpoint.saves", T::kInteger, kOk, false, "", "how many"},
      {"checkpoint.bytes", T::kPerRank, kOk, false, "B", "written by each rank, all together"},
      {"checkpoint.samples", T::kNumbers, kOk, false, "s",
       "one a training step: the time that saving took between it and the next, on the slowest "
       "rank; not in `step_time_s`"},
      {"checkpoint.last_good", T::kText, kOptional, true, "",
       "of a run that diverged: the newest checkpoint whose own loss is a number; null otherwise"},
  };
}

std::vector<FieldDoc> certificate_fields() {
  return {
      {"certificate", T::kObject, kOk, true, "",
       "the plan's f64 twin against the reference, and the plan itself; null in the simulated "
       "world"},
      {"certificate.verdict", T::kText, kOk, false, "",
       "`equal` (both are), `different` (one of the two is) or `not_run`"},
      {"certificate.reason", T::kText, kOptional, true, "",
       "why nothing could be compared, or what differs beside the errors"},
      {"certificate.level", T::kText, kOptional, true, "",
       "`full`: the model itself; `scaled`: a smaller one of its shape family"},
      {"certificate.reference", T::kText, kOptional, true, "",
       "`oracle`: the model written a second time; `engine`: one rank, for a model of a plug-in "
       "that brings no oracle"},
      {"certificate.steps", T::kInteger, kOptional, true, "steps", "steps of the twin compared"},
      {"certificate.loss_error", T::kNumber, kOptional, true, "",
       "relative difference of a loss, in the step nearest to its tolerance; in `native` also of "
       "the "
       "validation loss after the last step, but of mixtures and of models without an "
       "oracle"},
      {"certificate.loss_tolerance", T::kNumber, kOptional, true, "", "what it may reach"},
      {"certificate.gradient_error", T::kNumber, kOptional, true, "",
       "difference of the gradient nearest to its tolerance, layer by layer, relative to the "
       "sums of absolute terms that make it"},
      {"certificate.tolerance", T::kNumber, kOptional, true, "", "what it may reach"},
      {"certificate.routes_error", T::kNumber, kOptional, true, "",
       "how far the score of an expert that the run chose is below the reference's best, the "
       "largest "
       "of all; 0 without mixtures"},
      {"certificate.routes_tolerance", T::kNumber, kOptional, true, "",
       "what it may reach; 0 without mixtures"},
      {"certificate.parameter_error", T::kNumber, kOptional, true, "",
       "difference of a parameter or optimizer value from the update made again from the step's "
       "own gradient and state, relative to what the update adds up; of a rule of a plug-in, and "
       "of Muon, as a share of its bound, in units of the tolerance: half of the bound is half of "
       "`parameter_tolerance`"},
      {"certificate.parameter_tolerance", T::kNumber, kOptional, true, "", "what it may reach"},
      {"certificate.ratio", T::kNumber, kOptional, true, "",
       "tolerance over error of whatever is nearest to its tolerance"},
      {"certificate.why_far", T::kText, kOptional, true, "",
       "why `ratio`, or tolerance over error of any measure, is above 100, or 0; null where none "
       "is"},
      {"certificate.worst", T::kText, kOptional, true, "", "what that is, and in which step"},
      {"certificate.native", T::kObject, kOptional, true, "",
       "the plan itself in its own type: the steps of the timed run made again, to the bit, and "
       "compared with the reference in f64; of a model that is too large for copies of its states, "
       "on one rank, the last step, compared as it was made; else a smaller model"},
      {"certificate.native.verdict", T::kText, kOptional, true, "",
       "`equal`, `different` or `not_run`"},
      {"certificate.native.reason", T::kText, kOptional, true, "", "of that verdict"},
      {"certificate.native.level", T::kText, kOptional, true, "", "`full` or `scaled`"},
      {"certificate.native.steps", T::kNumbers, kOptional, true, "",
       "steps compared, from 0: the first ones, one drawn by the seed, the last; of a model too "
       "large for copies of its states the last alone"},
      {"certificate.native.loss_error", T::kNumber, kOptional, true, "", "as above"},
      {"certificate.native.loss_bound", T::kNumber, kOptional, true, "", "what it may reach"},
      {"certificate.native.gradient_error", T::kNumber, kOptional, true, "",
       "as above; 0 of 0 where the last step was compared as it was made, whose gradients are in "
       "blocks_error"},
      {"certificate.native.gradient_bound", T::kNumber, kOptional, true, "", "what it may reach"},
      {"certificate.native.routes_error", T::kNumber, kOptional, true, "", "as above"},
      {"certificate.native.routes_bound", T::kNumber, kOptional, true, "", "what it may reach"},
      {"certificate.native.blocks_error", T::kNumber, kOptional, true, "",
       "in the later steps, block by block from the run's own inputs and output gradients: of an "
       "output, an input gradient or a weight's gradient; 0 where no later step was compared"},
      {"certificate.native.blocks_bound", T::kNumber, kOptional, true, "", "what it may reach"},
      {"certificate.native.update_error", T::kNumber, kOptional, true, "", "as parameter_error"},
      {"certificate.native.update_bound", T::kNumber, kOptional, true, "", "what it may reach"},
      {"certificate.native.random_rounding", T::kNumber, kOptional, true, "",
       "where a step that was beyond its first bound was judged by computations in which every "
       "result is moved at random by one rounding: the most that this moved the gradient, of its "
       "whole weight's absolute terms, or the loss, of itself; at 0.1 the step is `not_run`. null: "
       "no "
       "step was"},
      {"certificate.native.unseen", T::kText, kOptional, true, "",
       "the first layer, and its step, whose bound reached all of its absolute terms: a gradient "
       "of "
       "it that is missing would be `equal` there; of a scaled certificate also the validation "
       "loss "
       "of the run, which is compared with nothing; under data.document_mask that no document ends "
       "inside a window of the steps compared. null: there was none"},
      {"certificate.native.ratio", T::kNumber, kOptional, true, "", "as above"},
      {"certificate.native.why_far", T::kText, kOptional, true, "", "as above"},
      {"certificate.native.worst", T::kText, kOptional, true, "", "as above"},
      {"provenance", T::kObject, kOk, true, "",
       "program, command, libraries and machine that made the numbers"},
  };
}

std::string type_name(FieldType type) {
  switch (type) {
    case T::kText:
      return "text";
    case T::kInteger:
      return "integer";
    case T::kNumber:
      return "number";
    case T::kObject:
      return "object";
    case T::kNumbers:
      return "[number]";
    case T::kNumbersPerStep:
      return "[[number]] per step";
    case T::kTexts:
      return "[text]";
    case T::kInterval:
      return "[low, high]";
    case T::kPerRank:
      return "[integer] per rank";
    case T::kBytesPerRank:
      return "[{category: integer}] per rank";
  }
  return "";
}

}  // namespace

const std::vector<FieldDoc>& document_fields() {
  static const std::vector<FieldDoc> kFields = [] {
    std::vector<FieldDoc> all;
    for (auto part : {outcome_fields(), training_fields(), load_fields(), memory_fields(),
                      ledger_fields(), expert_fields(), push_fields(), scale_fields(),
                      checkpoint_fields(), certificate_fields()}) {
      all.insert(all.end(), part.begin(), part.end());
    }
    return all;
  }();
  return kFields;
}

std::string document_fields_markdown() {
  std::ostringstream out;
  out << "| field | type | unit | in | meaning |\n|---|---|---|---|---|\n";
  for (const FieldDoc& f : document_fields()) {
    const char* presence = f.presence == kAlways ? "always" : f.presence == kOk ? "ok" : "some";
    out << "| `" << f.path << "` | " << type_name(f.type) << (f.is_nullable ? " or null" : "")
        << " | " << f.unit << " | " << presence << " | " << f.meaning << " |\n";
  }
  return out.str();
}

}  // namespace kuafu
