// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kuafu/base/dtype.h"
#include "kuafu/base/errors.h"
#include "kuafu/mesh/axis.h"
#include "kuafu/plan/kind_names.h"

namespace kuafu {

enum class Recompute : uint8_t { kNone, kSelective, kFull };

/// What a model reads of the data.
enum class ModelInput : uint8_t { kTokens, kMaskedPairs, kImages };

struct ModelPlan {
  std::string kind = model_kinds::kGpt;
  int64_t layers = 2;
  int64_t hidden = 64;
  int64_t heads = 4;
  int64_t vocab = 256;
  int64_t sequence = 64;
  DType dtype = DType::kF32;
  double dropout = 0.0;  ///< on embeddings and both residual branches

  int64_t kv_heads = 0;               ///< key-value heads; 0 = heads (multi-head), 1 = multi-query
  int64_t ffn = 0;                    ///< width of the MLP; 0 = 4 hidden
  std::string positions = "learned";  ///< "learned" | "rotary"
  double rotary_base = 10000;         ///< of positions "rotary"
  std::string mlp = "gelu";           ///< "gelu" | "gelu_exact" | "relu" | "swiglu"
  std::string norm = "layer";         ///< "layer" | "rms"
  double norm_epsilon = 1e-5;         ///< beside the variance, or the mean square
  bool bias = true;                   ///< in linears and layer norms
  bool parallel_blocks = false;       ///< x + attention(norm(x)) + mlp(norm(x))  [PaLM]
  bool tied = true;                   ///< logits by the table of tokens; else by one of the head

  bool post_norm = false;  ///< opt: norms after the sums, none in the head
  int64_t embedding = 0;   ///< opt: width of the table of tokens; 0 = hidden

  int64_t experts = 8;            ///< moe_gpt: experts of a mixture layer
  std::string router = "top2";    ///< "top1" | "top2" | "topk" | "expert_choice"
  int64_t top_k = 2;              ///< of router "topk"
  double capacity_factor = 1.25;  ///< slots of an expert / its even share of a sample's choices
  double balance_loss = 0.01;     ///< weight of the auxiliary load-balance loss
  double z_loss = 0.001;          ///< weight of the router z-loss
  bool random_second = false;     ///< "top2": the second expert by chance  [GShard]
  int64_t shared_experts = 0;     ///< experts every token visits
  int64_t moe_every = 1;          ///< every n-th layer is a mixture, the last of each n

  int64_t image = 32;    ///< vit: side of a square image, pixels
  int64_t patch = 4;     ///< vit: side of a patch, divides image
  int64_t classes = 10;  ///< vit: labels
  bool operator==(const ModelPlan&) const = default;

  int64_t num_kv_heads() const { return kv_heads == 0 ? heads : kv_heads; }
  int64_t ffn_width() const { return ffn == 0 ? 4 * hidden : ffn; }
  int64_t embedding_width() const { return embedding == 0 ? hidden : embedding; }
  /// Of the kind; see ModelKind.
  ModelInput input() const;
  bool is_causal() const;
  bool has_mixtures() const;
  int64_t first_position() const;
};

struct TensorPlan {
  std::string mode = tensor_modes::kNone;
  int64_t size = 1;   ///< ranks of the group: 2.5D has q * q * depth
  int64_t depth = 1;  ///< of 2.5D
  bool operator==(const TensorPlan&) const = default;
};

struct SequencePlan {
  std::string mode = sequence_modes::kNone;
  int64_t size = 1;
  bool operator==(const SequencePlan&) const = default;
};

/// Transformer layers from..to, both included, under a tensor mode of their own on the same ranks.
struct LayerPlan {
  int64_t from = 0, to = 0;
  std::string mode = tensor_modes::k1d;
  int64_t depth = 1;
  bool operator==(const LayerPlan&) const = default;
};

/// Replicas and how they agree.
struct DataParallelPlan {
  int64_t size = 0;  ///< 0 until resolved: takes the ranks that remain
  /// "auto" | "ring" | "tree" | "hierarchical" | "parameter_server"; auto: as the transport does
  std::string mode = "auto";
  int64_t servers = 1;    ///< of the parameter server
  int64_t staleness = 0;  ///< steps a worker may be ahead of the slowest; 0 = synchronous
  int64_t bucket = 25 * 1024 * 1024;  ///< bytes of a gradient bucket
  bool overlap = true;                ///< reduce buckets during backward
  std::string order = "any";          ///< "any" | "fixed": sums in rank order, every micro-batch
  bool has_servers() const { return mode == "parameter_server"; }
  /// Replicas go on by themselves; else they are in step.
  bool is_stale() const { return staleness > 0; }
  bool operator==(const DataParallelPlan&) const = default;
};

struct PipelinePlan {
  int64_t size = 1;               ///< ranks
  std::string schedule = "1f1b";  ///< a name, or a CSV file of a timetable
  int64_t chunks = 1;             ///< stages a rank holds
  /// Blocks of each stage, embedding and head counted; empty = balanced by cost.
  std::vector<int64_t> blocks;
  bool operator==(const PipelinePlan&) const = default;

  int64_t stages() const { return size * chunks; }
};

inline constexpr int64_t kLastZeroStage = 3;  ///< states/zero.cpp says what each keeps

struct ParallelPlan {
  DataParallelPlan data;
  PipelinePlan pipeline;
  int64_t zero = 0;  ///< 1: optimizer state sharded over the replicas, 2: gradients, 3: parameters
  TensorPlan tensor;
  SequencePlan sequence;
  int64_t expert = 1;             ///< divides data and is a sub-axis of it
  std::vector<LayerPlan> layers;  ///< [[parallel.layers]]; ranges do not overlap
  bool operator==(const ParallelPlan&) const = default;
};

struct MemoryPlan {
  std::string policy = "plain";  ///< everything stays on the device; else who chooses what leaves
  Recompute recompute = Recompute::kNone;
  std::optional<int64_t> device;  ///< bytes a rank may hold; none = unlimited
  std::optional<int64_t> host;    ///< the same of the tier below, where the policy has tiers
  std::string disk_path;          ///< a folder of a disk, where slots lie then; empty: on the host
  std::optional<int64_t> disk;    ///< the same of that disk
  /// Inputs of blocks that are computed again, until their backward: "device" | "host".
  std::string activations = "device";
  std::string gradients = "host";         ///< summed ones until the update: "host" | "disk"
  int64_t chunk_size = 25 * 1024 * 1024;  ///< bytes of parameters that move as one, at most
  int64_t prefetch = 1;                   ///< moments ahead of its use that a chunk is loaded
  double static_share = 1;                ///< static: of all chunks, what stays at most
  double margin = 0.1;                    ///< auto: of the device, what is left free
  std::string horizon = "step";           ///< auto: "step" | "cycle", how far it looks for uses
  bool throttle = false;                  ///< copies are held back to cluster.host_gbs and disk_gbs
  bool operator==(const MemoryPlan&) const = default;

  /// Whether model states lie below the device between their uses.
  bool has_tiers() const { return policy != "plain"; }
  bool has_disk() const { return !disk_path.empty(); }
  bool has_activations_away() const { return activations == "host"; }
  bool has_gradients_on_disk() const { return gradients == "disk"; }
};

struct OptimizerPlan {
  /// One of builtin_optimizer_kinds(), or of a plug-in.
  std::string kind = optimizer_kinds::kAdamW;
  double lr = 1e-3;
  double momentum = 0.9;                              ///< sgd, lars, muon
  bool nesterov = false;                              ///< sgd, muon
  double dampening = 0;                               ///< sgd: u = momentum u + (1 - dampening) g
  double coefficient = 1e-3;                          ///< lars: of the trust ratio
  double beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8;  ///< adam, adamw, lamb
  double adam_lr = 1e-3;                              ///< muon: of what it leaves to AdamW
  bool bias_correction = true;                        ///< lamb
  std::string correction_in = "moments";              ///< adam, adamw, lamb: "moments" | "rate"
  /// lars, lamb: what is kept in bounds: "auto" (bounded()) | "none" | "ratio" | "weights" | "rate"
  std::string bound = "auto";
  double ratio_min = 0, ratio_max = 10;      ///< lars, lamb: the bounds
  std::string scaled_layers = "included";    ///< lamb: "included" | "all" | "decayed"
  std::string rate_in = "velocity";          ///< lars: "velocity" | "step" | "step_with_ratio"
  std::string denominator = "sum_of_norms";  ///< lars: "sum_of_norms" | "norm_of_sum"
  double clip_elements = 0;                  ///< lars: of g + weight_decay w; 0 = off
  std::string matrix_scale = "shape";        ///< muon: "shape" | "size"
  std::string coefficients = "constant";     ///< muon: "constant" | "polar"
  double weight_decay = 0.01;
  std::string exclude = "auto";  ///< of decay and trust ratios: "auto" | "none" | "vectors"
  double clip = 1.0;             ///< global gradient norm; 0 = off
  /// "constant" | "cosine" | "linear" | "polynomial" | "step"
  std::string schedule = "constant";
  int64_t warmup = 0;                 ///< of linear warm-up, in
  std::string warmup_unit = "steps";  ///< "steps" | "epochs"
  int64_t epoch = 0;                  ///< samples of an epoch; 0 = not said
  int64_t rewarm_at = 0;              ///< step that begins warm-up and schedule again; 0 = none
  int64_t schedule_steps = 0;         ///< of a schedule with an end: where; 0 = train.steps
  double min_lr_ratio = 0.1;          ///< of a schedule with an end: final lr / lr
  double power = 2;                   ///< polynomial
  int64_t drop_every = 1000;          ///< step: steps between two drops
  double drop_factor = 0.1;           ///< step
  std::string scale_lr = "none";      ///< with train.batch / base_batch: "none" | "linear" | "sqrt"
  int64_t base_batch = 256;
  bool operator==(const OptimizerPlan&) const = default;

  /// Vectors (biases, scales of norms) neither decay nor have a trust ratio, under a rule whose steps
  /// are of layers or not.
  bool leaves_vectors_out(bool is_by_layers) const {
    return exclude == "vectors" || (exclude == "auto" && is_by_layers);
  }
  /// Whether a layer has a trust ratio, under a rule with such.
  bool scales(bool is_left_out) const {
    if (scaled_layers == "all") return true;
    return !is_left_out && (scaled_layers == "included" || weight_decay > 0);
  }
  /// `bound`, "auto" resolved: the ratio with lamb, nothing with all else.
  std::string bounded() const {
    return bound != "auto" ? bound : kind == optimizer_kinds::kLamb ? "ratio" : "none";
  }
  /// Steps of linear warm-up where a step has so many samples.
  int64_t warmup_steps(int64_t batch) const;
  /// The schedule falls until a step that it has to know.
  bool has_horizon() const { return schedule != "constant" && schedule != "step"; }
};

struct DataPlan {
  std::string kind = "text";   ///< "text" | "synthetic"
  std::string path;            ///< file or folder; empty = the headers of the installed LibTorch
  std::string hash;            ///< of the bytes it must be, 16 hex digits; empty = any
  double validation = 0.1;     ///< share of the corpus held out, its tail
  std::string tokenizer;       ///< a tokenizer.json; empty = one token a byte
  std::string end_token;       ///< behind each file's ids; empty = none
  bool document_mask = false;  ///< attention stays inside a document, which end_token ends
  bool operator==(const DataPlan&) const = default;
};

struct TrainPlan {
  int64_t batch = 8;        ///< global, samples a step
  int64_t micro_batch = 0;  ///< per data-parallel rank; 0 = batch / data (one micro-batch)
  int64_t steps = 20;
  int64_t validation_batches = 2;
  int64_t validate_every = 0;  ///< steps between two validations; 0 = after the last step only
  uint64_t seed = 1;
  bool telemetry = false;  ///< norms of layers of every step are recorded
  static constexpr double kAutoScale = 0, kDynamicScale = -1;
  /// Factor of the loss in backward, against underflow of f16 gradients: kDynamicScale halves it at
  /// an overflow and doubles it now and then; kAutoScale is that with f16, 1 with other types.
  double loss_scale = kAutoScale;
  double loss_scale_start = 65536;     ///< dynamic: the first
  int64_t loss_scale_interval = 2000;  ///< dynamic: steps without overflow before it doubles
  bool operator==(const TrainPlan&) const = default;
};

/// Links and compute of the machine that the simulated world prices.
struct ClusterPlan {
  int64_t ranks_per_node = 8;
  double intra_latency_us = 10, intra_bandwidth_gbs = 10;
  double inter_latency_us = 20, inter_bandwidth_gbs = 5;
  double compute_gflops = 50;   ///< matmul rate of a rank, GFLOP/s
  double memory_gbs = 10;       ///< memory bandwidth of a rank, GB/s
  double host_memory_gbs = 10;  ///< of the host's memory that a rank's update has, GB/s
  double host_gbs = 10;         ///< between a device and its host, each direction, GB/s
  double disk_gbs = 1;          ///< of a rank's disk, both directions together, GB/s
  bool operator==(const ClusterPlan&) const = default;
};

/// Everything that decides a run, as data.
struct Plan {
  ModelPlan model;
  ParallelPlan parallel;
  MemoryPlan memory;
  OptimizerPlan optimizer;
  DataPlan data;
  TrainPlan train;
  ClusterPlan cluster;
  bool operator==(const Plan&) const = default;

  int64_t num_micro_batches() const {
    return train.batch / (parallel.data.size * train.micro_batch);
  }
  /// Steps over which the learning rate's schedule runs.
  int64_t schedule_steps() const {
    return optimizer.schedule_steps == 0 ? train.steps : optimizer.schedule_steps;
  }
  /// The loss is scaled in backward by a factor that follows overflows.
  bool has_dynamic_scale() const {
    const bool is_auto = train.loss_scale == TrainPlan::kAutoScale;
    return is_auto ? model.dtype == DType::kF16 : train.loss_scale == TrainPlan::kDynamicScale;
  }
  /// The loss is scaled in backward; without, gradients are never looked at for overflow.
  bool has_loss_scale() const {
    const double fixed = train.loss_scale;
    return has_dynamic_scale() || (fixed != TrainPlan::kAutoScale && fixed != 1);
  }
};

/// How a tensor-parallel mode arranges its ranks on axes. Throws Refused with the nearest legal
/// sizes where the size cannot be arranged.
struct TensorMode {
  std::string name;
  std::string summary;
  std::function<std::vector<Axis>(int64_t size, int64_t depth)> axes;
};

/// Modes by name. Plug-ins add their own before a plan is parsed.
using TensorModes = std::map<std::string, TensorMode>;

/// "none" (), "1d" (tensor), "1d-sp" (tensor), "2d" (dep row col, dep = 1), "2.5d" (dep row col).
TensorModes builtin_tensor_modes();

/// A way to attend over a sharded sequence, as plans and lists name it.
struct SequenceMode {
  std::string name, summary;
};
/// "none", "ring", "ring-zigzag", "ulysses", "all-gather".
const std::vector<SequenceMode>& builtin_sequence_modes();
/// Their names.
std::vector<std::string> builtin_sequence_names();

/// A kind of model: its name and summary in plans and lists, and all that anything outside the
/// model's own files has to know of it. A plugin's kind is as the defaults say.
struct ModelKind {
  std::string name, summary;
  ModelInput input = ModelInput::kTokens;
  bool is_causal = true;      ///< a token sees none after it
  bool has_mixtures = false;  ///< of experts, in every model.moe_every-th layer
  /// The row of position 0 in the table of positions; those before it are read by no token.
  int64_t first_position = 0;
};
/// The one table of them.
const std::vector<ModelKind>& builtin_model_kinds();
/// Their names.
std::vector<std::string> builtin_model_names();

/// An update rule, as plans and lists name it.
struct OptimizerKind {
  std::string name, summary;
  /// Keys of [optimizer] that it reads besides those that all read: "momentum".
  std::vector<std::string> keys = {};
  /// The step of an element follows from the whole layer it belongs to.
  bool is_by_layers = false;
  /// Hidden matrices are updated as wholes: a rank holds all of each.
  bool has_matrices = false;
};
/// "adamw", "sgd", "adam", "lars", "lamb", "muon".
const std::vector<OptimizerKind>& builtin_optimizer_kinds();
/// Their names.
std::vector<std::string> builtin_optimizer_names();

/// `key=value` overrides as given on the command line: ("train.steps", "5"). The value is TOML; a
/// bare word that is no TOML value is taken as a string.
using Overrides = std::vector<std::pair<std::string, std::string>>;

/// Parses and checks one plan. `origin` is the file name for messages: "plan.toml:7: ...".
/// Throws ConfigError (unknown key, wrong type, value out of range: file, line, value, what is
/// allowed, nearest key), Refused (what cannot be placed whatever the number of ranks). `models`
/// and `attentions` are the names that model.kind and parallel.sequence.mode may have.
Plan parse_plan(std::string_view toml, std::string_view origin, const TensorModes& modes,
                const Overrides& overrides = {},
                const std::vector<std::string>& models = builtin_model_names(),
                const std::vector<std::string>& attentions = builtin_sequence_names());
Plan load_plan(const std::string& path, const TensorModes& modes, const Overrides& overrides = {},
               const std::vector<std::string>& models = builtin_model_names(),
               const std::vector<std::string>& attentions = builtin_sequence_names());

/// The values alone, each checked by itself: parse_plan without what concerns several keys, so that
/// a plan that is refused can still be shown and hashed.
Plan parse_values(std::string_view toml, std::string_view origin, const Overrides& overrides = {});

/// Fills what depends on the rank count (data, micro_batch) and checks every product: throws
/// Refused with the reason and the nearest legal choice. `ranks` = 0 takes the plan's own product.
/// Idempotent.
Plan resolve(Plan plan, int64_t ranks, const TensorModes& modes);
/// The same; messages advise the option that gave the ranks, such as "--ranks".
Plan resolve(Plan plan, int64_t ranks, const TensorModes& modes, const std::string& ranks_option);

/// Ranks a resolved plan needs: data x pipeline x tensor x sequence.
int64_t num_ranks(const Plan& resolved);

/// Mesh axes of a resolved plan, outermost first: pipeline, data, sequence, then the tensor axes.
/// With experts "data" is made of "replica" and "expert".
std::vector<Axis> mesh_axes(const Plan& resolved, const TensorModes& modes);
/// Names that stand for several of them: "data" where experts are a sub-axis of it.
AxisAliases mesh_aliases(const Plan& resolved, const TensorModes& modes);

/// TOML with every key that has a meaning, defaults included: parses back to the same plan.
std::string to_toml(const Plan& plan);
/// TOML with every key, those of other kinds too, for what looks values up: parse_values reads it
/// back, and parse_plan refuses keys of other kinds.
std::string whole_toml(const Plan& plan);

/// 16 hex digits: the hash of the values that differ from the defaults. Where the data lie is no
/// part of it; which bytes they are (data.hash) stands beside it in records and case ids.
std::string plan_hash(const Plan& resolved);

/// One row per key: "model.layers", type, default, what it means. docs and tests read it.
struct KeyDoc {
  std::string key, type, default_value, meaning;
};
const std::vector<KeyDoc>& plan_keys();

}  // namespace kuafu
