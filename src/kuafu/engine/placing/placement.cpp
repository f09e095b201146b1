// SPDX-License-Identifier: Apache-2.0
#include "kuafu/engine/placing/placement.h"

#include <algorithm>
#include <map>
#include <string>

#include "kuafu/base/suggest.h"
#include "kuafu/engine/placing/advice.h"
#include "kuafu/engine/placing/row_types.h"
#include "kuafu/engine/stepping/stage_map.h"
#include "kuafu/meter/book.h"
#include "kuafu/optim/rule.h"
#include "kuafu/states/residency.h"

namespace kuafu {
namespace {

/// Samples, tokens and width of a micro-batch divide. A refusal names the keys of its dim.
void check_activations(const Plan& plan, const Context& context, const Mesh& mesh) {
  static const std::vector<std::string> keys = {
      "train.micro_batch (train.batch over parallel.data and micro-batches)", "model.sequence",
      "model.hidden"};
  for (const Stream stream : {Stream::kOuter, Stream::kInner}) {
    try {
      local_shape(context.activation(stream),
                  {plan.train.micro_batch, plan.model.sequence, plan.model.hidden}, mesh,
                  "activations (samples, tokens, width)");
    } catch (const NotDivisible& e) {
      throw NotDivisible(text(keys[static_cast<size_t>(std::stoi(e.dim))], " of ", e.what()), e.dim,
                         e.extent, e.axes);
    }
  }
}

/// Seeds, checkpoints and certificates know a parameter by its name. One that is borrowed is listed
/// by its owner alone.
void check_names(const Model& model) {
  std::map<std::string, std::string> block_of;
  for (const auto& block : model.blocks) {
    for (const Param* p : block->params()) {
      const auto [found, is_new] = block_of.emplace(p->name, block->name());
      KUAFU_REQUIRE(is_new, "two parameters are named ", in_quotes(p->name), ", one of block ",
                    in_quotes(found->second), " and one of block ", in_quotes(block->name()),
                    "; a parameter has a name of its own (a block that uses another's lists it in "
                    "borrowed())");
    }
  }
}

/// Whether the whole of it is on the device in its uses alone.
bool lie_elsewhere(const Residence& parameters) {
  return parameters.portion == Portion::kPart || parameters.tier != Tier::kDevice;
}

}  // namespace

Placement::Placement(const Plan& plan, const Registries& registries, int rank, at::Device device,
                     const Wraps& wraps)
    : plan_(plan),
      make_model_(registries.models.find(plan.model.kind)),
      mesh_(mesh_axes(plan, registries.tensor_modes()), rank,
            mesh_aliases(plan, registries.tensor_modes())),
      params_{.mesh = &mesh_,
              .device = device,
              .dtype = plan.model.dtype,
              .seed = plan.train.seed,
              .is_deferred = lie_elsewhere(residency_of(plan).parameters)} {
  const MakeAttention& make_attention = registries.sequence.find(plan.parallel.sequence.mode);
  attention_ = make_attention({mesh_, plan.model.sequence, plan.memory.recompute});
  if (plan.data.document_mask && !attention_->knows_documents()) {
    throw Refused(text("data.document_mask = true: parallel.sequence.mode = ",
                       in_quotes(plan.parallel.sequence.mode),
                       " does not keep documents apart (knows_documents()); nearest: ",
                       "parallel.sequence.mode = \"ring\", or document_mask = false"));
  }
  if (wraps.attention) attention_ = wraps.attention(std::move(attention_));
  order_ = attention_->order();
  experts_ = make_all_to_all_experts(mesh_);
  if (wraps.experts) experts_ = wraps.experts(std::move(experts_));
  ParamFactory planned = params_;
  planned.device = at::kMeta;
  planned.is_deferred = false;
  for (const Arrangement& arrangement : arrangements(plan)) {
    schemes_.push_back(make_scheme(arrangement, registries, planned, wraps));
  }
  schemes_[0].context->layers = layer_contexts();
}

Placement::Scheme Placement::make_scheme(const Arrangement& arrangement,
                                         const Registries& registries, const ParamFactory& params,
                                         const Wraps& wraps) const {
  const TensorModes modes = registries.tensor_modes();
  Scheme scheme{arrangement, {}, {}, {}};
  const AxisAliases parts = parts_of(plan_, arrangement, modes);
  if (!parts.empty()) {
    const Plan own = with_arrangement(plan_, arrangement);
    scheme.mesh =
        std::make_unique<Mesh>(mesh_axes(own, modes), mesh_.rank(), mesh_aliases(own, modes));
  }
  scheme.code = registries.tensor.find(arrangement.mode).make(scheme.mesh ? *scheme.mesh : mesh_);
  if (wraps.scheme) scheme.code = wraps.scheme(std::move(scheme.code));
  scheme.context = std::make_unique<Context>(
      Context{mesh_, *scheme.code, *attention_, params, plan_.model.dropout, {}, parts});
  scheme.context->experts = experts_.get();
  return scheme;
}

std::vector<const Context*> Placement::layer_contexts() const {
  if (schemes_.size() == 1) return {};
  std::vector<const Context*> contexts;
  for (int64_t layer = 0; layer < plan_.model.layers; ++layer) {
    const Arrangement wanted = arrangement_of(plan_, layer);
    for (const Scheme& scheme : schemes_) {
      if (scheme.arrangement == wanted) contexts.push_back(scheme.context.get());
    }
  }
  return contexts;
}

void Placement::connect(Communicator& world, Ledger* ledger) {
  mesh_.connect(world, ledger);
  for (const Scheme& scheme : schemes_) {
    if (scheme.mesh) scheme.mesh->connect(world, ledger);
  }
}

/// The modes of a plan that are none of the library's, for messages: `parallel.tensor.mode = "mine", a
/// plug-in's`. Empty: there is none.
static std::string modes_of_plugins(const ParallelPlan& parallel) {
  std::vector<std::string> tensor, found;
  for (const auto& [name, mode] : builtin_tensor_modes()) tensor.push_back(name);
  const auto note = [&](const char* key, const std::string& mode,
                        const std::vector<std::string>& known) {
    if (std::find(known.begin(), known.end(), mode) != known.end()) return;
    found.push_back(text(key, " = ", in_quotes(mode), ", a plug-in's"));
  };
  note("parallel.tensor.mode", parallel.tensor.mode, tensor);
  for (const LayerPlan& layers : parallel.layers) {
    note("parallel.layers: mode", layers.mode, tensor);
  }
  note("parallel.sequence.mode", parallel.sequence.mode, builtin_sequence_names());
  return join(found, "; ");
}

Model Placement::make_model() const {
  for (const Scheme& scheme : schemes_) {
    // Heads that the scheme itself does not divide are refused by the model.
    const int64_t parts = mesh_.size(scheme.context->activation(Stream::kInner).dims[2]);
    attention_->check(std::max<int64_t>(plan_.model.heads / parts, 1),
                      std::max<int64_t>(plan_.model.num_kv_heads() / parts, 1));
  }
  const BookScope unbooked(nullptr);
  Model model = make_model_(plan_.model, context());
  if (model.origin.empty()) model.origin = modes_of_plugins(plan_.parallel);
  check_names(model);
  for (const Scheme& scheme : schemes_) check_activations(plan_, *scheme.context, mesh_);
  return model;
}

namespace {

/// A rule of whole matrices knows them by their names: of a model that names its blocks otherwise it
/// would take none, unsaid.
void check_hidden_matrices(const Plan& plan, const Registries& registries, const Model& model) {
  if (!make_rule(plan.optimizer, registries.optimizers).has_matrices()) return;
  for (const auto& block : model.blocks) {
    for (const Param* p : block->params()) {
      if (holds_hidden_matrices(*p)) return;
    }
  }
  throw Refused(text(
      "optimizer.kind = ", in_quotes(plan.optimizer.kind), ": no parameter of model.kind = ",
      in_quotes(plan.model.kind), " is a matrix of a block, whose names begin with \"blocks.\", ",
      "so none would be updated as a whole; name them so, or take kind = \"adamw\""));
}

}  // namespace

void check_placement(const Plan& plan, const Registries& registries, Advice advice) {
  try {
    check_rule(plan, registries);
    const Placement placement(plan, registries, 0, at::kMeta);
    const Model model = placement.make_model();
    check_row_types(plan, registries, model, placement.context());
    check_hidden_matrices(plan, registries, model);
    map_stages(plan, registries, model.blocks.size(), 0);
  } catch (const Refused& e) {
    if (advice == Advice::kAsThrown) throw;
    throw Refused(advised(e.what(), plan, registries));
  }
}

}  // namespace kuafu
