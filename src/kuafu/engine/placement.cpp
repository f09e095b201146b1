// SPDX-License-Identifier: Apache-2.0
#include "kuafu/engine/placement.h"

#include <algorithm>

namespace kuafu {

Placement::Placement(const Plan& plan, const Registries& registries, int rank, at::Device device,
                     const Wraps& wraps)
    : plan_(plan),
      make_model_(registries.models.find(plan.model.kind)),
      mesh_(mesh_axes(plan, registries.tensor_modes()), rank,
            mesh_aliases(plan, registries.tensor_modes())) {
  auto scheme = registries.tensor.find(plan.parallel.tensor.mode).make(mesh_);
  schemes_.push_back(wraps.scheme ? wraps.scheme(std::move(scheme)) : std::move(scheme));
  const MakeAttention& make_attention = registries.sequence.find(plan.parallel.sequence.mode);
  attention_ = make_attention({mesh_, plan.model.sequence, plan.memory.recompute});
  if (wraps.attention) attention_ = wraps.attention(std::move(attention_));
  order_ = attention_->order();
  experts_ = make_all_to_all_experts(mesh_);
  if (wraps.experts) experts_ = wraps.experts(std::move(experts_));
  const ParamFactory params{
      .mesh = &mesh_, .device = device, .dtype = plan.model.dtype, .seed = plan.train.seed};
  context_ = std::make_unique<Context>(
      Context{mesh_, *schemes_[0], *attention_, params, plan.model.dropout});
  context_->experts = experts_.get();
}

Model Placement::make_model() const {
  // Heads that the scheme itself does not divide are refused by the model.
  const int64_t parts = mesh_.size(context_->activation(Stream::kInner).dims[2]);
  attention_->check(std::max<int64_t>(plan_.model.heads / parts, 1),
                    std::max<int64_t>(plan_.model.num_kv_heads() / parts, 1));
  Model model = make_model_(plan_.model, *context_);
  for (const Stream stream : {Stream::kOuter, Stream::kInner}) {
    local_shape(context_->activation(stream),
                {plan_.train.micro_batch, plan_.model.sequence, plan_.model.hidden}, mesh_,
                "activations (train.micro_batch, model.sequence, model.hidden)");
  }
  return model;
}

void check_placement(const Plan& plan, const Registries& registries) {
  Placement(plan, registries, 0, at::kMeta).make_model();
}

}  // namespace kuafu
