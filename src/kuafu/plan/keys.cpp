// SPDX-License-Identifier: Apache-2.0
#include "kuafu/plan/keys.h"

#include <array>
#include <utility>

#include "kuafu/base/config.h"
#include "kuafu/base/errors.h"
#include "kuafu/base/suggest.h"

namespace kuafu::plan {
namespace {

// Upper ends keep every product of sizes that the library forms below 2^63.
constexpr double kMaxLayers = 1 << 16, kMaxHidden = 1 << 20, kMaxTokens = 1 << 24;
constexpr double kMaxRanks = 1 << 20, kMaxSteps = 1LL << 40, kMaxExact = 9007199254740991;
constexpr double kMaxRate = 1e6, kMaxReal = 1e15;

#define KUAFU_SLOT(member) [](Plan& p) -> Slot { return &p.member; }

std::vector<Key> model_keys() {
  return {
      {"model.kind", Form::kString, KUAFU_SLOT(model.kind),
       "model family: \"gpt\", or one that a plug-in adds"},
      {"model.layers",
       Form::kInteger,
       KUAFU_SLOT(model.layers),
       "transformer blocks",
       {1, kMaxLayers}},
      {"model.hidden",
       Form::kInteger,
       KUAFU_SLOT(model.hidden),
       "width of the residual stream",
       {1, kMaxHidden}},
      {"model.heads",
       Form::kInteger,
       KUAFU_SLOT(model.heads),
       "attention heads; divides `hidden`",
       {1, kMaxHidden}},
      {"model.vocab",
       Form::kInteger,
       KUAFU_SLOT(model.vocab),
       "token ids; text needs 256, one a byte; padded where ranks do not divide it",
       {2, kMaxTokens}},
      {"model.sequence",
       Form::kInteger,
       KUAFU_SLOT(model.sequence),
       "tokens of a sample",
       {1, kMaxTokens}},
      {"model.dtype",
       Form::kChoice,
       KUAFU_SLOT(model.dtype),
       "element type of weights and activations",
       {},
       {"f64", "f32", "bf16"}},
      {"model.dropout",
       Form::kNumber,
       KUAFU_SLOT(model.dropout),
       "share dropped on embeddings and on both residual branches",
       {0, 1, true}},
  };
}

std::vector<Key> parallel_keys() {
  return {
      {"parallel.data",
       Form::kAutoInteger,
       KUAFU_SLOT(parallel.data),
       "data-parallel replicas; \"auto\" takes the ranks that remain",
       {1, kMaxRanks}},
      {"parallel.pipeline",
       Form::kInteger,
       KUAFU_SLOT(parallel.pipeline),
       "pipeline stages",
       {1, kMaxRanks}},
      {"parallel.tensor.mode", Form::kString, KUAFU_SLOT(parallel.tensor.mode),
       "tensor-parallel scheme: \"none\", \"1d\", \"1d-sp\", \"2d\", \"2.5d\", \"3d\", or one that "
       "a "
       "plug-in adds"},
      {"parallel.tensor.size",
       Form::kInteger,
       KUAFU_SLOT(parallel.tensor.size),
       "ranks that share a layer; 2d: q x q, 2.5d: q x q x depth",
       {1, kMaxRanks}},
      {"parallel.tensor.depth",
       Form::kInteger,
       KUAFU_SLOT(parallel.tensor.depth),
       "layers of the 2.5d grid",
       {1, kMaxRanks}},
      {"parallel.sequence.mode",
       Form::kChoice,
       KUAFU_SLOT(parallel.sequence.mode),
       "attention over a sharded sequence",
       {},
       {"none", "ring", "ulysses"}},
      {"parallel.sequence.size",
       Form::kInteger,
       KUAFU_SLOT(parallel.sequence.size),
       "ranks that share a sequence",
       {1, kMaxRanks}},
      {"parallel.expert.size",
       Form::kInteger,
       KUAFU_SLOT(parallel.expert),
       "ranks that share the experts; divides `data`",
       {1, kMaxRanks}},
      {"parallel.bucket",
       Form::kBytes,
       KUAFU_SLOT(parallel.bucket),
       "bytes of a bucket of gradients, reduced as one",
       {1, kMaxExact}},
      {"parallel.overlap", Form::kBoolean, KUAFU_SLOT(parallel.overlap),
       "reduce buckets while backward goes on"},
  };
}

std::vector<Key> memory_keys() {
  return {
      {"memory.policy",
       Form::kChoice,
       KUAFU_SLOT(memory.policy),
       "where model data live; \"plain\": everything stays on the device",
       {},
       {"plain"}},
      {"memory.recompute",
       Form::kChoice,
       KUAFU_SLOT(memory.recompute),
       "activations computed again in backward instead of kept",
       {},
       {"none", "selective", "full"}},
      {"memory.device",
       Form::kOptionalBytes,
       KUAFU_SLOT(memory.device),
       "memory a rank may hold; more is `out_of_memory`",
       {1, kMaxExact}},
  };
}

std::vector<Key> optimizer_keys() {
  const std::string kind = "optimizer.kind";
  return {
      {kind, Form::kChoice, KUAFU_SLOT(optimizer.kind), "update rule", {}, {"adamw", "sgd"}},
      {"optimizer.lr", Form::kNumber, KUAFU_SLOT(optimizer.lr), "learning rate", {0, kMaxRate}},
      {"optimizer.momentum",
       Form::kNumber,
       KUAFU_SLOT(optimizer.momentum),
       "momentum",
       {0, 1, true},
       {},
       kind,
       "sgd"},
      {"optimizer.beta1",
       Form::kNumber,
       KUAFU_SLOT(optimizer.beta1),
       "decay of the first moment",
       {0, 1, true},
       {},
       kind,
       "adamw"},
      {"optimizer.beta2",
       Form::kNumber,
       KUAFU_SLOT(optimizer.beta2),
       "decay of the second moment",
       {0, 1, true},
       {},
       kind,
       "adamw"},
      {"optimizer.epsilon",
       Form::kNumber,
       KUAFU_SLOT(optimizer.epsilon),
       "added to the root of the second moment",
       {1e-30, 1},
       {},
       kind,
       "adamw"},
      {"optimizer.weight_decay",
       Form::kNumber,
       KUAFU_SLOT(optimizer.weight_decay),
       "weight decay a step, times the learning rate",
       {0, kMaxRate}},
      {"optimizer.clip",
       Form::kNumber,
       KUAFU_SLOT(optimizer.clip),
       "largest global norm of the gradient; 0 = off",
       {0, kMaxReal}},
      {"optimizer.schedule",
       Form::kChoice,
       KUAFU_SLOT(optimizer.schedule),
       "learning rate after the warm-up",
       {},
       {"constant", "cosine"}},
      {"optimizer.warmup",
       Form::kInteger,
       KUAFU_SLOT(optimizer.warmup),
       "steps in which the learning rate grows linearly",
       {0, kMaxSteps}},
      {"optimizer.min_lr_ratio",
       Form::kNumber,
       KUAFU_SLOT(optimizer.min_lr_ratio),
       "last learning rate / lr",
       {0, 1},
       {},
       "optimizer.schedule",
       "cosine"},
  };
}

std::vector<Key> run_keys() {
  const std::string kind = "data.kind";
  return {
      {kind,
       Form::kChoice,
       KUAFU_SLOT(data.kind),
       "\"text\": bytes of files; \"synthetic\": seeded tokens of any vocabulary",
       {},
       {"text", "synthetic"}},
      {"data.path",
       Form::kString,
       KUAFU_SLOT(data.path),
       "file or folder; empty = the headers of the installed LibTorch",
       {},
       {},
       kind,
       "text"},
      {"data.validation",
       Form::kNumber,
       KUAFU_SLOT(data.validation),
       "share of the corpus held out, its tail",
       {0, 1, true},
       {},
       kind,
       "text"},
      {"train.batch",
       Form::kInteger,
       KUAFU_SLOT(train.batch),
       "samples a step, over all ranks",
       {1, kMaxTokens}},
      {"train.micro_batch",
       Form::kAutoInteger,
       KUAFU_SLOT(train.micro_batch),
       "samples of one forward on a data-parallel rank; \"auto\" = batch / data",
       {1, kMaxTokens}},
      {"train.steps", Form::kInteger, KUAFU_SLOT(train.steps), "optimizer steps", {1, kMaxSteps}},
      {"train.validation_batches",
       Form::kInteger,
       KUAFU_SLOT(train.validation_batches),
       "held-out batches of `batch` samples whose mean loss is reported; 0 = none",
       {0, kMaxTokens}},
      {"train.seed",
       Form::kInteger,
       KUAFU_SLOT(train.seed),
       "seed of weights, order of samples and dropout",
       {0, kMaxExact}},
  };
}

std::vector<Key> cluster_keys() {
  return {
      {"cluster.ranks_per_node",
       Form::kInteger,
       KUAFU_SLOT(cluster.ranks_per_node),
       "ranks joined by the fast links",
       {1, kMaxRanks}},
      {"cluster.intra_latency_us",
       Form::kNumber,
       KUAFU_SLOT(cluster.intra_latency_us),
       "microseconds a message inside a node",
       {0, kMaxReal}},
      {"cluster.intra_bandwidth_gbs",
       Form::kNumber,
       KUAFU_SLOT(cluster.intra_bandwidth_gbs),
       "GB/s a link inside a node",
       {1e-6, kMaxReal}},
      {"cluster.inter_latency_us",
       Form::kNumber,
       KUAFU_SLOT(cluster.inter_latency_us),
       "microseconds a message between nodes",
       {0, kMaxReal}},
      {"cluster.inter_bandwidth_gbs",
       Form::kNumber,
       KUAFU_SLOT(cluster.inter_bandwidth_gbs),
       "GB/s a link between nodes",
       {1e-6, kMaxReal}},
      {"cluster.compute_gflops",
       Form::kNumber,
       KUAFU_SLOT(cluster.compute_gflops),
       "GFLOP/s of a rank in matrix products",
       {1e-6, kMaxReal}},
      {"cluster.memory_gbs",
       Form::kNumber,
       KUAFU_SLOT(cluster.memory_gbs),
       "GB/s of a rank's memory",
       {1e-6, kMaxReal}},
  };
}

#undef KUAFU_SLOT

constexpr std::array<std::pair<Recompute, std::string_view>, 3> kRecompute = {
    {{Recompute::kNone, "none"}, {Recompute::kSelective, "selective"}, {Recompute::kFull, "full"}}};

std::string number(double value) {
  if (value == static_cast<double>(static_cast<int64_t>(value))) {
    return text(static_cast<int64_t>(value));
  }
  return toml_number(value);
}

std::string print_integer(const Key& key, int64_t value) {
  return key.form == Form::kAutoInteger && value == 0 ? in_quotes("auto") : text(value);
}

}  // namespace

const std::vector<Key>& keys() {
  static const std::vector<Key> all = [] {
    std::vector<Key> out;
    for (auto part :
         {model_keys, parallel_keys, memory_keys, optimizer_keys, run_keys, cluster_keys}) {
      for (Key& key : part()) out.push_back(std::move(key));
    }
    return out;
  }();
  return all;
}

const Key* find_key(std::string_view name) {
  for (const Key& key : keys()) {
    if (key.name == name) return &key;
  }
  return nullptr;
}

std::string allowed(const Key& key) {
  const std::string span = text("from ", number(key.range.from), " to ",
                                key.range.is_open ? "below " : "", number(key.range.to));
  switch (key.form) {
    case Form::kInteger:
      return "an integer " + span;
    case Form::kAutoInteger:
      return "an integer " + span + " or \"auto\"";
    case Form::kBytes:
      return "a size such as \"6 GB\" or \"512 MiB\", or a number of bytes " + span;
    case Form::kOptionalBytes:
      return "a size such as \"6 GB\" or \"512 MiB\", a number of bytes " + span +
             ", or \"unlimited\"";
    case Form::kNumber:
      return "a number " + span;
    case Form::kBoolean:
      return "true or false";
    case Form::kString:
      return "a string";
    case Form::kChoice:
      return join_or(in_quotes(key.choices));
  }
  return {};
}

std::string print(const Key& key, const Plan& plan) {
  // A slot points into a Plan that may be written; nothing is written here.
  const Slot slot = key.slot(const_cast<Plan&>(plan));
  struct Printer {
    const Key& key;
    std::string operator()(const int64_t* v) const { return print_integer(key, *v); }
    std::string operator()(const uint64_t* v) const { return text(*v); }
    std::string operator()(const double* v) const { return toml_number(*v); }
    std::string operator()(const bool* v) const { return *v ? "true" : "false"; }
    std::string operator()(const std::string* v) const { return in_quotes(*v); }
    std::string operator()(const DType* v) const { return in_quotes(to_string(*v)); }
    std::string operator()(const Recompute* v) const {
      return in_quotes(kRecompute[static_cast<size_t>(*v)].second);
    }
    std::string operator()(const std::optional<int64_t>* v) const {
      return *v ? text(**v) : in_quotes("unlimited");
    }
  };
  return std::visit(Printer{key}, slot);
}

}  // namespace kuafu::plan

namespace kuafu {

const std::vector<KeyDoc>& plan_keys() {
  static const std::vector<KeyDoc> docs = [] {
    std::vector<KeyDoc> out;
    const Plan defaults;
    for (const plan::Key& key : plan::keys()) {
      std::string meaning = key.meaning;
      if (!key.governor.empty()) {
        meaning += text("; only with ", key.governor, " = ", in_quotes(key.needs));
      }
      out.push_back({key.name, plan::allowed(key), plan::print(key, defaults), meaning});
    }
    return out;
  }();
  return docs;
}

}  // namespace kuafu
