// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "app/worker/matrix.h"
#include "kuafu/base/build_info.h"
#include "kuafu/base/suggest.h"
#include "kuafu/base/worlds.h"
#include "kuafu/parallel/pipeline/choose.h"
#include "kuafu/plan/arrange.h"
#include "kuafu/plan/keys.h"
#include "kuafu/plan/kind_names.h"

namespace kuafu::matrix {
namespace {

/// Small enough that a case takes a fraction of a second, and divisible by every arrangement below.
const Overrides kSmall = {{"model.layers", "2"},
                          {"model.hidden", "32"},
                          {"model.heads", "8"},
                          {"model.dtype", "f32"},
                          {"data.kind", "synthetic"},
                          {"train.steps", "2"},
                          {"train.validation_batches", "0"}};
/// Samples of a micro-batch of a replica: what the largest grid below shares.
constexpr int64_t kMicroBatch = 4, kLeastBatch = 8;

/// What a model needs besides to be small.
Overrides small_model(const std::string& kind) {
  if (ModelPlan{.kind = kind}.input() == ModelInput::kImages) {
    return {{"model.image", "12"}, {"model.patch", "4"}};
  }
  Overrides small = {{"model.vocab", "53"}, {"model.sequence", "16"}};
  if (kind == model_kinds::kOpt) {  // all that it has of its own
    const Overrides own = {
        {"model.mlp", "relu"}, {"model.post_norm", "true"}, {"model.embedding", "16"}};
    small.insert(small.end(), own.begin(), own.end());
  }
  return small;
}

/// The arrangement of at most 8 ranks with the most axes longer than 1, the smallest of those.
Overrides smallest_grid(const TensorMode& mode) {
  size_t most = 0;
  Overrides best = {{"parallel.tensor.mode", mode.name}};
  for (int64_t size = 2; size <= 8; ++size) {
    for (int64_t depth = 1; depth <= 2; ++depth) {
      size_t axes = 0;
      try {
        for (const Axis& axis : mode.axes(size, depth)) axes += axis.size > 1 ? 1 : 0;
      } catch (const Refused&) {
        continue;
      }
      if (axes <= most) continue;
      most = axes;
      best = {{"parallel.tensor.mode", mode.name},
              {"parallel.tensor.size", text(size)},
              {"parallel.tensor.depth", text(depth)}};
    }
  }
  return best;
}

/// The arrangement of at most 8 ranks in which layer 1 has a mode of its own, with the most axes
/// that both share, the smallest of those; empty where there is none.
Overrides smallest_mixed_grid(const std::string& base, const std::string& layer,
                              const TensorModes& modes) {
  size_t most = 0;
  Overrides best;
  for (int64_t size = 2; size <= 8; ++size) {
    for (const int64_t depths : {0, 1, 2, 3}) {
      Plan plan;
      plan.parallel.tensor = {base, size, 1 + depths % 2};
      plan.parallel.layers = {{1, 1, layer, 1 + depths / 2}};
      size_t axes = 0;
      try {
        axes = tensor_axes(plan, modes).size();
      } catch (const Refused&) {
        continue;
      }
      if (axes <= most) continue;
      most = axes;
      best = {{"parallel.tensor.mode", base},
              {"parallel.tensor.size", text(size)},
              {"parallel.tensor.depth", text(plan.parallel.tensor.depth)},
              {"parallel.layers", text("[{ from = 1, to = 1, mode = ", in_quotes(layer),
                                       ", depth = ", plan.parallel.layers[0].depth, " }]")}};
    }
  }
  return best;
}

Dimension schemes(const Registries& registries) {
  Dimension out{"scheme", {{"none"}}};
  for (const auto& entry : registries.tensor.entries()) {
    if (entry.name != tensor_modes::kNone)
      out.values.push_back({entry.name, smallest_grid(entry.make.mode)});
  }
  const TensorModes modes = registries.tensor_modes();
  for (const auto& [base, first] : modes) {
    for (const auto& [layer, second] : modes) {
      if (base == tensor_modes::kNone || layer == tensor_modes::kNone || base == layer) continue;
      const Overrides grid = smallest_mixed_grid(base, layer, modes);
      if (!grid.empty()) out.values.push_back({text(base, ", then ", layer), grid});
    }
  }
  return out;
}

/// The values of a key that takes one of several words.
/// All that a key allows; first what small plans have where it is not chosen.
Dimension choices_of(const std::string& name, const std::string& key) {
  Dimension out{name, {}};
  for (const std::string& choice : plan::find_key(key)->choices) {
    const bool is_default =
        std::find(kSmall.begin(), kSmall.end(), std::pair(key, choice)) != kSmall.end();
    out.values.insert(is_default ? out.values.begin() : out.values.end(),
                      {choice, {{key, choice}}});
  }
  return out;
}

/// Inputs of blocks on the host.
const std::pair<std::string, std::string> kInputsAway = {"memory.activations", "host"};

Dimension sequences(const Registries& registries) {
  Dimension out{"sequence", {{"none"}}};
  for (const std::string& name : registries.sequence.names()) {
    if (name == sequence_modes::kNone) continue;
    out.values.push_back(
        {name, {{"parallel.sequence.mode", name}, {"parallel.sequence.size", "2"}}});
  }
  return out;
}

/// Experts over two ranks by each router.
Dimension experts() {
  Dimension out{"experts", {{"none"}}};
  for (const std::string& router : plan::find_key("model.router")->choices) {
    out.values.push_back({router,
                          {{"model.kind", model_kinds::kMoeGpt},
                           {"model.experts", "4"},
                           {"model.router", router},
                           {"parallel.expert.size", "2"}},
                          2});
  }
  return out;
}

/// Pipelines of two ranks by every generator, with every number of chunks up to 3 that it has.
Dimension schedules(const Registries& registries) {
  constexpr int kRanks = 2, kMicroBatches = 4;
  Dimension out{"schedule", {{"none"}}};
  for (const std::string& name : registries.schedules.names()) {
    for (int chunks = 1; chunks <= 3; ++chunks) {
      try {
        pipeline::make_timetable(
            name, {.ranks = kRanks, .micro_batches = kMicroBatches, .chunks = chunks},
            registries.schedules);
      } catch (const ConfigError&) {
        continue;
      } catch (...) {  // a plug-in's, of which its combinations tell
        if (chunks > 1) continue;
      }
      DimensionValue value{chunks == 1 ? name : text(name, " x ", chunks),
                           {{"parallel.pipeline.size", text(kRanks)},
                            {"parallel.pipeline.schedule", name},
                            {"parallel.pipeline.chunks", text(chunks)}}};
      // Embedding, layers and head are blocks; each stage has one.
      const int layers = kRanks * chunks - 2;
      if (layers > 2) value.overrides.emplace_back("model.layers", text(layers));
      value.micro_batches = kMicroBatches;
      out.values.push_back(std::move(value));
    }
  }
  return out;
}

Dimension zero_stages() {
  Dimension out{"zero", {}};
  for (int64_t stage = 0; stage <= kLastZeroStage; ++stage) {
    out.values.push_back({text(stage), {{"parallel.zero", text(stage)}}, 2});
  }
  return out;
}

/// Sums by every algorithm, servers in step, and servers that workers do not wait for.
Dimension replica_modes() {
  Dimension out{"data mode", {}};
  for (const std::string& mode : plan::find_key("parallel.data.mode")->choices) {
    DimensionValue value{mode, {{"parallel.data.mode", mode}}, 2};
    if (mode == "hierarchical") {  // two nodes of two replicas
      value.replicas = 4;
      value.overrides.emplace_back("cluster.ranks_per_node", "2");
    }
    out.values.push_back(value);
    if (mode != "parameter_server") continue;
    value.name = text(mode, ", stale");
    value.overrides.emplace_back("parallel.data.staleness", "1");
    value.overrides.emplace_back("optimizer.clip", "0");
    out.values.push_back(value);
  }
  return out;
}

/// Values of a key that mean something from two replicas on.
Dimension of_replicas(const std::string& name, const std::string& key,
                      const std::vector<std::string>& values) {
  Dimension out{name, {}};
  for (const std::string& value : values) out.values.push_back({value, {{key, value}}, 2});
  return out;
}

Dimension accumulations() {
  Dimension out{"micro-batches", {}};
  for (const int64_t count : {1, 2, 3}) out.values.push_back({text(count), {}, 1, 1, count});
  return out;
}

/// Attention over all of a row, or inside the documents that it packs.
Dimension documents() {
  return {"documents", {{"not told apart"}, {"kept apart", {{"data.document_mask", "true"}}}}};
}

/// With more than the three steps that a certificate makes from the start, it has later ones too:
/// the drawn one and the last, block by block.
Dimension train_steps() {
  return {"steps", {{"2", {{"train.steps", "2"}}}, {"5", {{"train.steps", "5"}}}}};
}

Dimension models(const Registries& registries) {
  Dimension out{"model", {}};
  for (const std::string& name : registries.models.names()) {
    DimensionValue value{name, {{"model.kind", name}}};
    const Overrides small = small_model(name);
    value.overrides.insert(value.overrides.end(), small.begin(), small.end());
    out.values.push_back(value);
  }
  return out;
}

Dimension optimizers(const Registries& registries) {
  Dimension out{"optimizer", {}};
  for (const std::string& name : registries.optimizers.names()) {
    out.values.push_back({name, {{"optimizer.kind", name}}});
  }
  return out;
}

/// Chunks small enough that every model has many. A budget that no plan needs stands for the one
/// that MatrixRunner finds, in which a plan is short of memory.
Dimension policies(const Registries& registries) {
  Dimension out{"policy", {{MemoryPlan{}.policy}}};
  for (const memory::PolicyKind& kind : registries.choices().policies) {
    if (!kind.lacks.empty()) continue;
    DimensionValue value{kind.name, {{"memory.policy", kind.name}, {"memory.chunk_size", "2KiB"}}};
    if (kind.needs_budget) value.overrides.emplace_back("memory.device", "1TB");
    out.values.push_back(value);
  }
  DimensionValue on_disk = out.values.at(1);  // the slots, whoever chooses about parameters
  on_disk.name = text(on_disk.name, ", disk");
  on_disk.overrides.emplace_back("memory.disk_path", "/var/tmp");
  out.values.push_back(on_disk);
  on_disk.name += " of gradients";
  on_disk.overrides.emplace_back("memory.gradients", "disk");
  out.values.push_back(on_disk);
  DimensionValue activations = out.values.at(1);
  activations.name = text(activations.name, ", activations");
  activations.overrides.push_back(kInputsAway);
  out.values.push_back(activations);
  return out;
}

Dimension worlds() {
  Dimension out{"world", {}};
  // Those of every build come first: a seed draws the same triples of them.
  for (const bool is_optional : {false, true}) {
    for (const World& world : all_worlds()) {
      const bool is_there = world.needs.found && !world.has_gpus;
      if (is_there && (world.needs.name != build_info::kTorch.name) == is_optional) {
        out.values.push_back({world.name});
      }
    }
  }
  return out;
}

Dimension resumptions() {
  return {"resumed", {{kNeverResumed}, {kResumedBySame}, {kResumedByOther}}};
}

}  // namespace

std::vector<Dimension> dimensions(const Registries& registries) {
  return {
      schemes(registries),
      sequences(registries),
      experts(),
      schedules(registries),
      zero_stages(),
      replica_modes(),
      of_replicas("order", "parallel.data.order", plan::find_key("parallel.data.order")->choices),
      of_replicas("bucket", "parallel.data.bucket", {"25MiB", "1KiB"}),
      of_replicas("overlap", "parallel.data.overlap", {"true", "false"}),
      accumulations(),
      train_steps(),
      models(registries),
      choices_of("dtype", "model.dtype"),
      choices_of("recompute", "memory.recompute"),
      optimizers(registries),
      policies(registries),
      worlds(),
      resumptions(),
      documents()};
}

Overrides settings_of(const std::vector<Dimension>& dims, const Combination& combination) {
  Overrides out = kSmall;
  const bool names_model =
      std::any_of(combination.begin(), combination.end(),
                  [&](const ChosenValue& c) { return dims[c.dimension].name == "model"; });
  if (!names_model) {
    const Overrides small = small_model(model_kinds::kGpt);
    out.insert(out.end(), small.begin(), small.end());
  }
  // Dimensions in their order: a model that is named stands where experts have set one.
  int64_t replicas = 1, micro_batches = 1, exactly = 0;
  for (const ChosenValue& choice : combination) {
    const DimensionValue& value = dims[choice.dimension].values[choice.value];
    out.insert(out.end(), value.overrides.begin(), value.overrides.end());
    replicas = std::max(replicas, value.replicas);
    micro_batches = std::max(micro_batches, value.micro_batches);
    exactly = std::max(exactly, value.exactly);
  }
  const auto sets = [&](const std::string& key) {
    return std::any_of(out.begin(), out.end(), [&](const auto& o) { return o.first == key; });
  };
  // All else that a block keeps stays: who names no recomputation has the one that goes with it.
  if (sets(kInputsAway.first) && !sets("memory.recompute")) {
    out.emplace_back("memory.recompute", "full");
  }
  if (exactly > 0) micro_batches = exactly;
  const int64_t batch = std::max(kLeastBatch, replicas * micro_batches * kMicroBatch);
  out.emplace_back("parallel.data.size", text(replicas));
  out.emplace_back("train.batch", text(batch));
  out.emplace_back("train.micro_batch", text(batch / (replicas * micro_batches)));
  return out;
}

}  // namespace kuafu::matrix
