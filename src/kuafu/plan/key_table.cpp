// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "kuafu/base/suggest.h"
#include "kuafu/memory/policy_kinds.h"
#include "kuafu/parallel/pipeline/schedules.h"
#include "kuafu/plan/keys.h"
#include "kuafu/plan/kind_names.h"

namespace kuafu::plan {
namespace {

// Upper ends lie far beyond what runs, and keep counts of parameters and tokens below 2^63.
constexpr double kMaxLayers = 1 << 16, kMaxHidden = 1 << 20, kMaxTokens = 1 << 24;
constexpr double kMaxRanks = 1 << 20, kMaxSteps = 1LL << 40, kMaxExact = 9007199254740991;
constexpr double kMaxRate = 1e6, kMaxReal = 1e15;
constexpr double kMinScale = 0x1.0p-24;  // the least f16: below it nothing is left of a loss

#define KUAFU_MEMBER(member) [](Plan& p) -> Member { return &p.member; }

/// "gpt", "bert", ...: the names of an array.
template <class Names>
std::string listed(const Names& names) {
  return join(in_quotes(std::vector<std::string>(names.begin(), names.end())));
}

/// A key, written as a sentence.
class Row {
 public:
  Row(std::string name, Form form, Member (*member)(Plan&), std::string meaning)
      : key_{std::move(name), form, member, std::move(meaning)} {}

  Row& in(double from, double to) {
    key_.range = {from, to};
    return *this;
  }
  Row& below(double from, double to) {
    key_.range = {from, to, true};
    return *this;
  }
  Row& above(double from, double to) {
    key_.range = {from, to, false, true};
    return *this;
  }
  Row& between(double from, double to) {
    key_.range = {from, to, true, true};
    return *this;
  }
  Row& one_of(std::vector<std::string> choices) {
    key_.choices = std::move(choices);
    return *this;
  }
  Row& only_with(std::string governor, std::vector<std::string> needs) {
    key_.governor = std::move(governor);
    key_.needs = std::move(needs);
    return *this;
  }
  operator Key() const { return key_; }

 private:
  Key key_;
};

std::vector<std::string> kinds_that(bool (*have)(const ModelKind&)) {
  std::vector<std::string> names;
  for (const ModelKind& kind : builtin_model_kinds()) {
    if (have(kind)) names.push_back(kind.name);
  }
  return names;
}

std::vector<Key> model_keys() {
  const std::string kind = "model.kind";
  const auto decoders =
      kinds_that([](const ModelKind& k) { return k.input == ModelInput::kTokens; });
  return {
      Row(kind, Form::kString, KUAFU_MEMBER(model.kind),
          text("model family: ", listed(model_kinds::kAll), ", or one that a plug-in adds")),
      Row("model.layers", Form::kInteger, KUAFU_MEMBER(model.layers), "transformer blocks")
          .in(1, kMaxLayers),
      Row("model.hidden", Form::kInteger, KUAFU_MEMBER(model.hidden),
          "width of the residual stream")
          .in(1, kMaxHidden),
      Row("model.heads", Form::kInteger, KUAFU_MEMBER(model.heads),
          "attention heads; divides `hidden`")
          .in(1, kMaxHidden),
      Row("model.vocab", Form::kInteger, KUAFU_MEMBER(model.vocab),
          "token ids; text has 256, one a byte, bert 3 more, which is its default with text; of a "
          "tokenizer its ids, for bert 3 more where it has no [CLS], [SEP], [MASK]; padded where "
          "ranks do not divide it")
          .in(2, kMaxTokens),
      Row("model.sequence", Form::kInteger, KUAFU_MEMBER(model.sequence),
          "tokens of a sample; vit: follows from `image` and `patch`")
          .in(1, kMaxTokens),
      Row("model.dtype", Form::kChoice, KUAFU_MEMBER(model.dtype),
          "element type of weights and activations")
          .one_of({"f64", "f32", "bf16", "f16"}),
      Row("model.dropout", Form::kNumber, KUAFU_MEMBER(model.dropout),
          "share dropped on embeddings and on both residual branches")
          .below(0, 1),
      Row("model.kv_heads", Form::kAutoInteger, KUAFU_MEMBER(model.kv_heads),
          "key-value heads; divides `heads`; 1 = multi-query, \"auto\" = heads")
          .in(1, kMaxHidden),
      Row("model.ffn", Form::kAutoInteger, KUAFU_MEMBER(model.ffn),
          "width of the MLP; \"auto\" = 4 x hidden")
          .in(1, kMaxTokens),
      Row("model.positions", Form::kChoice, KUAFU_MEMBER(model.positions),
          "learned table, or queries and keys rotated by their position")
          .one_of({"learned", "rotary"}),
      Row("model.rotary_base", Form::kNumber, KUAFU_MEMBER(model.rotary_base),
          "pair d of D / 2 turns by position x rotary_base^(-2 d / D) radians")
          .above(1, kMaxReal)
          .only_with("model.positions", {"rotary"}),
      Row("model.mlp", Form::kChoice, KUAFU_MEMBER(model.mlp),
          "activation of the MLP: \"gelu\" by its tanh form, \"gelu_exact\" by the error function")
          .one_of({"gelu", "gelu_exact", "relu", "swiglu"}),
      Row("model.norm", Form::kChoice, KUAFU_MEMBER(model.norm), "layer norm or RMS norm")
          .one_of({"layer", "rms"}),
      Row("model.norm_epsilon", Form::kNumber, KUAFU_MEMBER(model.norm_epsilon),
          "added to the variance of a norm, or to its mean square")
          .between(0, 1),
      Row("model.bias", Form::kBoolean, KUAFU_MEMBER(model.bias),
          "biases in linears and layer norms"),
      Row("model.parallel_blocks", Form::kBoolean, KUAFU_MEMBER(model.parallel_blocks),
          "attention and MLP read one norm and are added together (PaLM)"),
      Row("model.tied", Form::kBoolean, KUAFU_MEMBER(model.tied),
          "logits by the table of tokens; false: by a table of the head's own")
          .only_with(kind, decoders),
      Row("model.post_norm", Form::kBoolean, KUAFU_MEMBER(model.post_norm),
          "norms stand after the residual sums, and none in the head (OPT-350m)")
          .only_with(kind, {model_kinds::kOpt}),
      Row("model.embedding", Form::kAutoInteger, KUAFU_MEMBER(model.embedding),
          "width of the table of tokens; other than `hidden`: linears without biases behind it and "
          "before the logits; \"auto\" = hidden")
          .in(1, kMaxHidden)
          .only_with(kind, {model_kinds::kOpt}),
  };
}

std::vector<Key> expert_keys() {
  const std::string kind = "model.kind";
  const auto mixtures = kinds_that([](const ModelKind& k) { return k.has_mixtures; });
  return {
      Row("model.experts", Form::kInteger, KUAFU_MEMBER(model.experts),
          "experts of a mixture layer")
          .in(1, kMaxHidden)
          .only_with(kind, mixtures),
      Row("model.router", Form::kChoice, KUAFU_MEMBER(model.router), "who picks whom")
          .one_of({"top1", "top2", "topk", "expert_choice"})
          .only_with(kind, mixtures),
      Row("model.top_k", Form::kInteger, KUAFU_MEMBER(model.top_k), "experts of a token")
          .in(1, kMaxHidden)
          .only_with("model.router", {"topk"}),
      Row("model.capacity_factor", Form::kNumber, KUAFU_MEMBER(model.capacity_factor),
          "slots of an expert / its even share of a sample's choices; tokens beyond are dropped")
          .in(1e-6, kMaxRate)
          .only_with(kind, mixtures),
      Row("model.balance_loss", Form::kNumber, KUAFU_MEMBER(model.balance_loss),
          "weight of the auxiliary load-balance loss")
          .in(0, kMaxRate)
          .only_with("model.router", {"top1", "top2", "topk"}),
      Row("model.z_loss", Form::kNumber, KUAFU_MEMBER(model.z_loss), "weight of the router z-loss")
          .in(0, kMaxRate)
          .only_with(kind, mixtures),
      Row("model.random_second", Form::kBoolean, KUAFU_MEMBER(model.random_second),
          "the second expert is visited with probability 2 x its gate (GShard)")
          .only_with("model.router", {"top2"}),
      Row("model.shared_experts", Form::kInteger, KUAFU_MEMBER(model.shared_experts),
          "experts every token visits")
          .in(0, kMaxHidden)
          .only_with(kind, mixtures),
      Row("model.moe_every", Form::kInteger, KUAFU_MEMBER(model.moe_every),
          "every n-th layer is a mixture, the last of each n")
          .in(1, kMaxLayers)
          .only_with(kind, mixtures),
  };
}

std::vector<Key> image_keys() {
  const std::string kind = "model.kind";
  const auto images = kinds_that([](const ModelKind& k) { return k.input == ModelInput::kImages; });
  return {
      Row("model.image", Form::kInteger, KUAFU_MEMBER(model.image), "side of an image, pixels")
          .in(1, kMaxTokens)
          .only_with(kind, images),
      Row("model.patch", Form::kInteger, KUAFU_MEMBER(model.patch),
          "side of a patch, pixels; divides `image`")
          .in(1, kMaxTokens)
          .only_with(kind, images),
      Row("model.classes", Form::kInteger, KUAFU_MEMBER(model.classes), "labels of images")
          .in(2, kMaxTokens)
          .only_with(kind, images),
  };
}

std::vector<Key> parallel_keys() {
  return {
      Row("parallel.data.size", Form::kAutoInteger, KUAFU_MEMBER(parallel.data.size),
          "data-parallel replicas; \"auto\" takes the ranks that remain")
          .in(1, kMaxRanks),
      Row("parallel.data.mode", Form::kChoice, KUAFU_MEMBER(parallel.data.mode),
          "how replicas agree: all-reduce as the transport chooses or by that algorithm "
          "(\"hierarchical\": inside nodes, then between them), or servers that hold the "
          "parameters")
          .one_of({"auto", "ring", "tree", "hierarchical", "parameter_server"}),
      Row("parallel.data.servers", Form::kInteger, KUAFU_MEMBER(parallel.data.servers),
          "replicas that also serve a share of the parameters")
          .in(1, kMaxRanks)
          .only_with("parallel.data.mode", {"parameter_server"}),
      Row("parallel.data.staleness", Form::kInteger, KUAFU_MEMBER(parallel.data.staleness),
          "steps a worker may be ahead of the slowest; 0 = synchronous")
          .in(0, kMaxSteps)
          .only_with("parallel.data.mode", {"parameter_server"}),
      Row("parallel.data.bucket", Form::kBytes, KUAFU_MEMBER(parallel.data.bucket),
          "bytes of a bucket of gradients, reduced as one")
          .in(1, kMaxExact),
      Row("parallel.data.overlap", Form::kBoolean, KUAFU_MEMBER(parallel.data.overlap),
          "reduce buckets while backward goes on"),
      Row("parallel.data.order", Form::kChoice, KUAFU_MEMBER(parallel.data.order),
          "\"fixed\": gradients are summed in rank order after every micro-batch, so that those of "
          "all ZeRO stages agree to the bit, norms over them to rounding")
          .one_of({"any", "fixed"}),
      Row("parallel.zero", Form::kInteger, KUAFU_MEMBER(parallel.zero),
          "what the replicas shard: 1 = optimizer state, 2 = gradients too, 3 = parameters too")
          .in(0, kLastZeroStage),
      Row("parallel.pipeline.size", Form::kInteger, KUAFU_MEMBER(parallel.pipeline.size),
          "ranks of a pipeline")
          .in(1, kMaxRanks),
      Row("parallel.pipeline.schedule", Form::kString, KUAFU_MEMBER(parallel.pipeline.schedule),
          text(join(in_quotes(pipeline::builtin_schedules().names())),
               ", one that a plug-in adds, or a CSV file of a timetable")),
      Row("parallel.pipeline.chunks", Form::kInteger, KUAFU_MEMBER(parallel.pipeline.chunks),
          "stages a rank holds")
          .in(1, kMaxLayers),
      Row("parallel.pipeline.blocks", Form::kIntegers, KUAFU_MEMBER(parallel.pipeline.blocks),
          "blocks of each stage, embedding and head counted; [] = balanced by cost")
          .in(1, kMaxLayers),
      Row("parallel.tensor.mode", Form::kString, KUAFU_MEMBER(parallel.tensor.mode),
          text("tensor-parallel scheme: ", listed(tensor_modes::kAll),
               ", or one that a plug-in adds")),
      Row("parallel.tensor.size", Form::kInteger, KUAFU_MEMBER(parallel.tensor.size),
          "ranks that share a layer; 2d: q x q, 2.5d: q x q x depth")
          .in(1, kMaxRanks),
      Row("parallel.tensor.depth", Form::kInteger, KUAFU_MEMBER(parallel.tensor.depth),
          "layers of the 2.5d grid")
          .in(1, kMaxRanks),
      Row("parallel.sequence.mode", Form::kString, KUAFU_MEMBER(parallel.sequence.mode),
          text("attention over a sharded sequence: ", listed(sequence_modes::kAll),
               ", or one that a plug-in adds")),
      Row("parallel.sequence.size", Form::kInteger, KUAFU_MEMBER(parallel.sequence.size),
          "ranks that share a sequence")
          .in(1, kMaxRanks),
      Row("parallel.expert.size", Form::kInteger, KUAFU_MEMBER(parallel.expert),
          "ranks that share the experts; divides `data`")
          .in(1, kMaxRanks),
  };
}

/// The policies of this build that read a key of [memory].
std::vector<std::string> that_read_memory(const std::string& key) {
  return memory::policies_that_read(key, memory::builtin_policy_kinds());
}

/// "host": everything off the device between its uses; ...
std::string described_policies() {
  std::vector<std::string> words;
  for (const memory::PolicyKind& kind : memory::builtin_policy_kinds()) {
    words.push_back(text(in_quotes(kind.name), " ", kind.summary));
  }
  return join(words, "; ");
}

std::vector<Key> memory_keys() {
  const std::string policy(kPolicyKey);
  const std::vector<std::string> with_tiers = that_read_memory("host");
  return {
      Row(policy, Form::kString, KUAFU_MEMBER(memory.policy),
          "where model states lie between their uses; \"plain\": all on the device; else on the "
          "host, the parameters as chunks that come to the device for their uses, and the policy, "
          "one of these or of a plug-in, chooses which leave it: " +
              described_policies()),
      Row("memory.recompute", Form::kChoice, KUAFU_MEMBER(memory.recompute),
          "activations computed again in backward instead of kept")
          .one_of({"none", "selective", "full"}),
      Row("memory.device", Form::kOptionalBytes, KUAFU_MEMBER(memory.device),
          "memory a rank may hold; more is `out_of_memory`")
          .in(1, kMaxExact),
      Row("memory.host", Form::kOptionalBytes, KUAFU_MEMBER(memory.host),
          "host memory that a rank's states may take; more is `out_of_memory`")
          .in(1, kMaxExact)
          .only_with(policy, with_tiers),
      Row("memory.disk_path", Form::kString, KUAFU_MEMBER(memory.disk_path),
          "folder of a disk, where the slots of the optimizer lie then, in a file without a name; "
          "they come to the host for the update. No tmpfs, which is host memory; \"\": on the host")
          .only_with(policy, with_tiers),
      Row("memory.disk", Form::kOptionalBytes, KUAFU_MEMBER(memory.disk),
          "what a rank's states may take of memory.disk_path; more is `out_of_memory`")
          .in(1, kMaxExact)
          .only_with(policy, with_tiers),
      Row("memory.activations", Form::kChoice, KUAFU_MEMBER(memory.activations),
          "where inputs of blocks lie from their forward to their backward; \"host\" with "
          "memory.recompute = \"full\", where they are all that stays of a block")
          .one_of({"device", "host"})
          .only_with(policy, with_tiers),
      Row("memory.gradients", Form::kChoice, KUAFU_MEMBER(memory.gradients),
          "where summed gradients lie until the update; \"disk\": that of memory.disk_path, too")
          .one_of({"host", "disk"})
          .only_with(policy, with_tiers),
      Row("memory.chunk_size", Form::kBytes, KUAFU_MEMBER(memory.chunk_size),
          "parameters that move as one have at most so many bytes, one that is larger moves alone; "
          "their gradients are summed as one too, in place of parallel.data.bucket")
          .in(1, kMaxExact)
          .only_with(policy, with_tiers),
      Row("memory.prefetch", Form::kInteger, KUAFU_MEMBER(memory.prefetch),
          "uses of blocks ahead that chunks are loaded for; 0 = none")
          .in(0, kMaxLayers)
          .only_with(policy, that_read_memory("prefetch")),
      Row("memory.static_share", Form::kNumber, KUAFU_MEMBER(memory.static_share),
          "share of the chunks' bytes that stays on the device from its first use to the update")
          .in(0, 1)
          .only_with(policy, that_read_memory("static_share")),
      Row("memory.margin", Form::kNumber, KUAFU_MEMBER(memory.margin),
          "share of memory.device that is left free where it can be")
          .below(0, 1)
          .only_with(policy, that_read_memory("margin")),
      Row("memory.horizon", Form::kChoice, KUAFU_MEMBER(memory.horizon),
          "how far the next use of a chunk is looked for: to the end of the step, as Gemini does, "
          "or "
          "into the next step, as PatrickStar does")
          .one_of({"step", "cycle"})
          .only_with(policy, that_read_memory("horizon")),
      Row("memory.throttle", Form::kBoolean, KUAFU_MEMBER(memory.throttle),
          "hold copies between device and host back to cluster.host_gbs, each direction, and "
          "the disk to cluster.disk_gbs")
          .only_with(policy, with_tiers),
  };
}

/// The kinds of optimizers that read a key of [optimizer].
std::vector<std::string> that_read(const std::string& key) {
  std::vector<std::string> names;
  for (const OptimizerKind& kind : builtin_optimizer_kinds()) {
    const bool reads = std::find(kind.keys.begin(), kind.keys.end(), key) != kind.keys.end();
    if (reads) names.push_back(kind.name);
  }
  return names;
}

std::vector<Key> optimizer_keys() {
  const std::string kind = "optimizer.kind";
  return {
      Row(kind, Form::kString, KUAFU_MEMBER(optimizer.kind),
          "update rule: " + join(in_quotes(builtin_optimizer_names())) +
              ", or one that a plug-in adds; \"adam\" decays through its gradient, \"adamw\" the "
              "weight itself; \"lars\" and \"lamb\" scale the step of each layer, a tensor of the "
              "published model, by its norms; \"muon\" makes the step of each hidden matrix "
              "orthogonal"),
      Row("optimizer.lr", Form::kNumber, KUAFU_MEMBER(optimizer.lr), "learning rate")
          .above(0, kMaxRate),
      Row("optimizer.adam_lr", Form::kNumber, KUAFU_MEMBER(optimizer.adam_lr),
          "learning rate of what is no hidden matrix, by the schedule and the scale_lr of `lr`")
          .above(0, kMaxRate)
          .only_with(kind, that_read("adam_lr")),
      Row("optimizer.momentum", Form::kNumber, KUAFU_MEMBER(optimizer.momentum), "momentum")
          .below(0, 1)
          .only_with(kind, that_read("momentum")),
      Row("optimizer.nesterov", Form::kBoolean, KUAFU_MEMBER(optimizer.nesterov),
          "the step is that of the velocity one step on")
          .only_with(kind, that_read("nesterov")),
      Row("optimizer.coefficient", Form::kNumber, KUAFU_MEMBER(optimizer.coefficient),
          "factor of the trust ratio |w| / (|g| + weight_decay |w|)")
          .in(1e-9, kMaxRate)
          .only_with(kind, that_read("coefficient")),
      Row("optimizer.beta1", Form::kNumber, KUAFU_MEMBER(optimizer.beta1),
          "decay of the first moment")
          .below(0, 1)
          .only_with(kind, that_read("beta1")),
      Row("optimizer.beta2", Form::kNumber, KUAFU_MEMBER(optimizer.beta2),
          "decay of the second moment")
          .below(0, 1)
          .only_with(kind, that_read("beta2")),
      Row("optimizer.epsilon", Form::kNumber, KUAFU_MEMBER(optimizer.epsilon),
          "added to the root of the second moment; below 1e-16, f32 moments underflow before it")
          .in(1e-16, 1)
          .only_with(kind, that_read("epsilon")),
      Row("optimizer.weight_decay", Form::kNumber, KUAFU_MEMBER(optimizer.weight_decay),
          "weight decay a step, times the learning rate")
          .in(0, kMaxRate),
      Row("optimizer.exclude", Form::kChoice, KUAFU_MEMBER(optimizer.exclude),
          "layers without decay and trust ratio: \"vectors\" are biases and norms; \"auto\": those "
          "with lars, lamb, muon and a plug-in's rule by layers, none with other kinds")
          .one_of({"auto", "none", "vectors"}),
      Row("optimizer.clip", Form::kNumber, KUAFU_MEMBER(optimizer.clip),
          "largest global norm of the gradient; 0 = off")
          .in(0, kMaxReal),
  };
}

/// What implementations of one rule do otherwise (optim/README.md).
std::vector<Key> variant_keys() {
  const std::string kind = "optimizer.kind";
  return {
      Row("optimizer.dampening", Form::kNumber, KUAFU_MEMBER(optimizer.dampening),
          "share of the gradient that does not enter the velocity, in the first step too")
          .below(0, 1)
          .only_with(kind, that_read("dampening")),
      Row("optimizer.bias_correction", Form::kBoolean, KUAFU_MEMBER(optimizer.bias_correction),
          "moments are divided by 1 - beta^t, as Adam's; the others that have moments always do")
          .only_with(kind, that_read("bias_correction")),
      Row("optimizer.correction_in", Form::kChoice, KUAFU_MEMBER(optimizer.correction_in),
          "where the bias is corrected: \"moments\", or \"rate\", times sqrt(1 - beta2^t) / "
          "(1 - beta1^t): epsilon then stands beside the uncorrected root, and the ratio of lamb "
          "is that of the uncorrected step")
          .one_of({"moments", "rate"})
          .only_with(kind, that_read("correction_in")),
      Row("optimizer.bound", Form::kChoice, KUAFU_MEMBER(optimizer.bound),
          "what is kept in bounds: \"ratio\", the trust ratio, in ratio_min .. ratio_max; "
          "\"weights\", the norm of the weights, in the same (lamb); \"rate\", the rate of a "
          "layer, at most `lr` (lars); \"auto\": the ratio with lamb, nothing with lars")
          .one_of({"auto", "none", "ratio", "weights", "rate"})
          .only_with(kind, that_read("bound")),
      Row("optimizer.ratio_min", Form::kNumber, KUAFU_MEMBER(optimizer.ratio_min),
          "least trust ratio of a layer, or norm of its weights: `bound`")
          .in(0, kMaxReal)
          .only_with(kind, that_read("ratio_min")),
      Row("optimizer.ratio_max", Form::kNumber, KUAFU_MEMBER(optimizer.ratio_max),
          "largest trust ratio of a layer, or norm of its weights: `bound`")
          .in(1e-9, kMaxReal)
          .only_with(kind, that_read("ratio_max")),
      Row("optimizer.scaled_layers", Form::kChoice, KUAFU_MEMBER(optimizer.scaled_layers),
          "layers with a trust ratio: those that `exclude` leaves in; all; or of the first those "
          "that decay, none with weight_decay = 0")
          .one_of({"included", "all", "decayed"})
          .only_with(kind, that_read("scaled_layers")),
      Row("optimizer.rate_in", Form::kChoice, KUAFU_MEMBER(optimizer.rate_in),
          "where the learning rate stands: in the velocity with the trust ratio; in the step, the "
          "ratio in the velocity; or in the step with the ratio")
          .one_of({"velocity", "step", "step_with_ratio"})
          .only_with(kind, that_read("rate_in")),
      Row("optimizer.denominator", Form::kChoice, KUAFU_MEMBER(optimizer.denominator),
          "of the trust ratio: |g| + weight_decay |w|, or |g + weight_decay w|")
          .one_of({"sum_of_norms", "norm_of_sum"})
          .only_with(kind, that_read("denominator")),
      Row("optimizer.clip_elements", Form::kNumber, KUAFU_MEMBER(optimizer.clip_elements),
          "largest element of the gradient with its decay, after the norms; 0 = off")
          .in(0, kMaxReal)
          .only_with(kind, that_read("clip_elements")),
      Row("optimizer.matrix_scale", Form::kChoice, KUAFU_MEMBER(optimizer.matrix_scale),
          "factor of the orthogonal step of a matrix (in, out): sqrt(max(1, out / in)), or "
          "0.2 sqrt(max(in, out))")
          .one_of({"shape", "size"})
          .only_with(kind, that_read("matrix_scale")),
      Row("optimizer.coefficients", Form::kChoice, KUAFU_MEMBER(optimizer.coefficients),
          "of the five iterations: 3.4445, -4.775, 2.0315 in each, or those that lead to the polar "
          "factor fastest, others in each and a norm 1.01 times as large (arXiv 2505.16932)")
          .one_of({"constant", "polar"})
          .only_with(kind, that_read("coefficients")),
  };
}

std::vector<Key> schedule_keys() {
  const std::string schedule = "optimizer.schedule", scale = "optimizer.scale_lr",
                    unit = "optimizer.warmup_unit";
  const std::vector<std::string> with_end = {"cosine", "linear", "polynomial"};
  return {
      Row(schedule, Form::kChoice, KUAFU_MEMBER(optimizer.schedule),
          "learning rate after the warm-up")
          .one_of({"constant", "cosine", "linear", "polynomial", "step"}),
      Row("optimizer.warmup", Form::kInteger, KUAFU_MEMBER(optimizer.warmup),
          "steps, or epochs, in which the learning rate grows linearly")
          .in(0, kMaxSteps),
      Row(unit, Form::kChoice, KUAFU_MEMBER(optimizer.warmup_unit), "what `warmup` counts")
          .one_of({"steps", "epochs"}),
      Row("optimizer.epoch", Form::kInteger, KUAFU_MEMBER(optimizer.epoch),
          "samples of an epoch of `warmup`; 0 = not said")
          .in(0, kMaxExact)
          .only_with(unit, {"epochs"}),
      Row("optimizer.rewarm_at", Form::kInteger, KUAFU_MEMBER(optimizer.rewarm_at),
          "step, counted from 0, at which warm-up and schedule begin again, over the steps that "
          "are "
          "left; the schedule before it ends there; 0 = none")
          .in(0, kMaxSteps),
      Row("optimizer.schedule_steps", Form::kAutoInteger, KUAFU_MEMBER(optimizer.schedule_steps),
          "steps until the last learning rate; \"auto\" = train.steps")
          .in(1, kMaxSteps)
          .only_with(schedule, with_end),
      Row("optimizer.min_lr_ratio", Form::kNumber, KUAFU_MEMBER(optimizer.min_lr_ratio),
          "last learning rate / lr")
          .in(0, 1)
          .only_with(schedule, with_end),
      Row("optimizer.power", Form::kNumber, KUAFU_MEMBER(optimizer.power),
          "exponent of the share of the steps that is left")
          .in(1e-3, 1e3)
          .only_with(schedule, {"polynomial"}),
      Row("optimizer.drop_every", Form::kInteger, KUAFU_MEMBER(optimizer.drop_every),
          "steps between two drops of the learning rate, the first so many after the warm-up")
          .in(1, kMaxSteps)
          .only_with(schedule, {"step"}),
      Row("optimizer.drop_factor", Form::kNumber, KUAFU_MEMBER(optimizer.drop_factor),
          "learning rate after a drop / before it")
          .in(0, 1)
          .only_with(schedule, {"step"}),
      Row(scale, Form::kChoice, KUAFU_MEMBER(optimizer.scale_lr),
          "`lr` is that of base_batch samples, and grows with train.batch / base_batch or its root")
          .one_of({"none", "linear", "sqrt"}),
      Row("optimizer.base_batch", Form::kInteger, KUAFU_MEMBER(optimizer.base_batch),
          "samples of a step that `lr` is meant for")
          .in(1, kMaxTokens)
          .only_with(scale, {"linear", "sqrt"}),
  };
}

std::vector<Key> run_keys() {
  const std::string kind = "data.kind";
  return {
      Row(kind, Form::kChoice, KUAFU_MEMBER(data.kind),
          "\"text\": bytes of files; \"synthetic\": seeded tokens of any vocabulary, or images, "
          "which "
          "is the default of vit")
          .one_of({"text", "synthetic"}),
      Row("data.path", Form::kString, KUAFU_MEMBER(data.path),
          "file or folder, from the working folder on (in a suite: from its file on); empty = the "
          "headers of the installed LibTorch. A folder of WikiText (wiki.train and wiki.valid, "
          ".tokens or .raw) trains on the one and validates on the other")
          .only_with(kind, {"text"}),
      Row("data.hash", Form::kString, KUAFU_MEMBER(data.hash),
          "XXH64 of the corpus, 16 hex digits: other bytes are refused; empty = any")
          .only_with(kind, {"text"}),
      Row("data.validation", Form::kNumber, KUAFU_MEMBER(data.validation),
          "share of the corpus held out, its tail; of a folder of WikiText its own part is")
          .below(0, 1)
          .only_with(kind, {"text"}),
      Row("data.tokenizer", Form::kString, KUAFU_MEMBER(data.tokenizer),
          "a Hugging Face `tokenizer.json`, found as `data.path` is: ids of it in place of bytes, "
          "kept in files below `KUAFU_CACHE`; empty = one token a byte")
          .only_with(kind, {"text"}),
      Row("data.end_token", Form::kString, KUAFU_MEMBER(data.end_token),
          "token of `data.tokenizer` that stands behind each file of the corpus; empty = none")
          .only_with(kind, {"text"}),
      Row("data.document_mask", Form::kBoolean, KUAFU_MEMBER(data.document_mask),
          "attention sees only positions of its own document, which ends with its first "
          "`data.end_token` (\"synthetic\": token 0); positions and losses stay as they are "
          "(Megatron's reset-attention-mask without reset-position-ids); text needs "
          "`data.tokenizer` "
          "and `data.end_token`, models are causal"),
      Row("train.batch", Form::kInteger, KUAFU_MEMBER(train.batch),
          "samples a step, over all ranks")
          .in(1, kMaxTokens),
      Row("train.micro_batch", Form::kAutoInteger, KUAFU_MEMBER(train.micro_batch),
          "samples of one forward on a data-parallel rank; \"auto\" = batch / data")
          .in(1, kMaxTokens),
      Row("train.steps", Form::kInteger, KUAFU_MEMBER(train.steps), "optimizer steps")
          .in(1, kMaxSteps),
      Row("train.validation_batches", Form::kInteger, KUAFU_MEMBER(train.validation_batches),
          "held-out batches of `batch` samples whose mean loss is reported; 0 = none")
          .in(0, kMaxTokens),
      Row("train.validate_every", Form::kInteger, KUAFU_MEMBER(train.validate_every),
          "validated after every so many steps and after the last, a series; 0 = after the last")
          .in(0, kMaxSteps),
      Row("train.seed", Form::kInteger, KUAFU_MEMBER(train.seed),
          "seed of weights, order of samples and dropout")
          .in(0, kMaxExact),
      Row("train.telemetry", Form::kBoolean, KUAFU_MEMBER(train.telemetry),
          "record every layer's norms in every step: gradient, weight, update over weight, the "
          "optimizer's trust ratio, and estimates of the gradient noise scale"),
      Row("train.loss_scale", Form::kScale, KUAFU_MEMBER(train.loss_scale),
          "factor of the loss in backward, taken out again before the update; \"dynamic\": halved "
          "where a gradient overflows (that step updates nothing), doubled now and then; \"auto\": "
          "\"dynamic\" with f16, 1 with other types; 0 is \"auto\" too")
          .in(kMinScale, kMaxReal),
      Row("train.loss_scale_start", Form::kNumber, KUAFU_MEMBER(train.loss_scale_start),
          "first factor of a dynamic loss_scale")
          .in(kMinScale, kMaxReal),
      Row("train.loss_scale_interval", Form::kInteger, KUAFU_MEMBER(train.loss_scale_interval),
          "steps without overflow after which a dynamic loss_scale doubles")
          .in(1, kMaxSteps),
  };
}

std::vector<Key> cluster_keys() {
  return {
      Row("cluster.ranks_per_node", Form::kInteger, KUAFU_MEMBER(cluster.ranks_per_node),
          "ranks joined by the fast links")
          .in(1, kMaxRanks),
      Row("cluster.intra_latency_us", Form::kNumber, KUAFU_MEMBER(cluster.intra_latency_us),
          "microseconds a message inside a node")
          .in(0, kMaxReal),
      Row("cluster.intra_bandwidth_gbs", Form::kNumber, KUAFU_MEMBER(cluster.intra_bandwidth_gbs),
          "GB/s a link inside a node")
          .in(1e-6, kMaxReal),
      Row("cluster.inter_latency_us", Form::kNumber, KUAFU_MEMBER(cluster.inter_latency_us),
          "microseconds a message between nodes")
          .in(0, kMaxReal),
      Row("cluster.inter_bandwidth_gbs", Form::kNumber, KUAFU_MEMBER(cluster.inter_bandwidth_gbs),
          "GB/s a link between nodes")
          .in(1e-6, kMaxReal),
      Row("cluster.compute_gflops", Form::kNumber, KUAFU_MEMBER(cluster.compute_gflops),
          "GFLOP/s of a rank in matrix products")
          .in(1e-6, kMaxReal),
      Row("cluster.memory_gbs", Form::kNumber, KUAFU_MEMBER(cluster.memory_gbs),
          "GB/s of a rank's memory")
          .in(1e-6, kMaxReal),
      Row("cluster.host_memory_gbs", Form::kNumber, KUAFU_MEMBER(cluster.host_memory_gbs),
          "GB/s of the host's memory that a rank has for its update there")
          .in(1e-6, kMaxReal)
          .only_with(std::string(kPolicyKey), that_read_memory("host")),
      Row("cluster.host_gbs", Form::kNumber, KUAFU_MEMBER(cluster.host_gbs),
          "GB/s between a device and its host, each direction; held to by memory.throttle")
          .in(1e-6, kMaxReal)
          .only_with(std::string(kPolicyKey), that_read_memory("host")),
      Row("cluster.disk_gbs", Form::kNumber, KUAFU_MEMBER(cluster.disk_gbs),
          "GB/s of a rank's disk, both directions together; held to by memory.throttle")
          .in(1e-6, kMaxReal)
          .only_with(std::string(kPolicyKey), that_read_memory("host")),
  };
}

#undef KUAFU_MEMBER

}  // namespace

const std::vector<Key>& keys() {
  static const std::vector<Key> all = [] {
    std::vector<Key> out;
    for (auto part : {model_keys, expert_keys, image_keys, parallel_keys, memory_keys,
                      optimizer_keys, variant_keys, schedule_keys, run_keys, cluster_keys}) {
      for (Key& key : part()) out.push_back(std::move(key));
    }
    return out;
  }();
  return all;
}

}  // namespace kuafu::plan
