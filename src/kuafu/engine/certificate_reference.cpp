// SPDX-License-Identifier: Apache-2.0
#include "kuafu/engine/certificate_reference.h"

#include <algorithm>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "kuafu/comm/worlds.h"
#include "kuafu/engine/push_replay.h"
#include "kuafu/engine/whole.h"

namespace kuafu {
namespace {

class OracleReference : public Reference {
 public:
  OracleReference(const Plan& plan, std::unique_ptr<oracle::Model> model, const Dataset& data)
      : plan_(plan), model_(std::move(model)), data_(data) {}

  std::string name() const override { return "oracle"; }
  oracle::Tensors initial_weights() override {
    return oracle::initial_weights(*model_, plan_.train.seed);
  }

  /// Samples know nothing of each other: all at once, for speed.
  oracle::Gradients gradients(int64_t step, const oracle::Tensors& weights) override {
    return run(step, weights, plan_.train.batch, 1);
  }
  oracle::Gradients rounded_gradients(int64_t step, const oracle::Tensors& weights,
                                      double scale) override {
    return run(step, weights, plan_.train.micro_batch, scale);
  }

 private:
  oracle::Gradients run(int64_t step, const oracle::Tensors& weights, int64_t size, double scale) {
    const int64_t batch = plan_.train.batch;
    std::vector<oracle::Samples> micro;
    for (int64_t first = 0; first < batch; first += size) {
      micro.push_back({.tokens = data_.train(step * batch + first, size),
                       .first = first,
                       .step = step,
                       .batch = batch});
    }
    oracle::Gradients out = oracle::gradients(*model_, weights, micro, {}, scale);
    for (auto& [name, g] : out.gradients) g = g.to(at::kDouble) / scale;
    for (auto& [name, a] : out.absolute) a = a.to(at::kDouble) / scale;
    return out;
  }

  const Plan plan_;
  std::unique_ptr<oracle::Model> model_;
  const Dataset& data_;
};

class EngineReference : public Reference {
 public:
  EngineReference(const Plan& plan, const Registries& registries, const Dataset& data)
      : plan_(single_rank(plan)), registries_(registries), data_(data) {}

  std::string name() const override { return "engine"; }
  oracle::Tensors initial_weights() override {
    return whole_parameters(engine_of(DType::kF64, 1), Keep::kYes);
  }

  oracle::Gradients gradients(int64_t step, const oracle::Tensors& weights) override {
    return rounded_gradients(step, weights, 1);
  }
  oracle::Gradients rounded_gradients(int64_t step, const oracle::Tensors& weights,
                                      double scale) override {
    Engine& engine = engine_of(dtype_of(weights.begin()->second), scale);
    {
      const at::NoGradGuard no_grad;
      for (const ParamShard& s : engine.shards()) s.value.copy_(weights.at(s.param->name));
    }
    engine.go_on_from(step);
    oracle::Gradients out;
    out.loss = engine.forward_backward();
    double most = 0;
    for (const auto& [name, g] : whole_gradients(engine, Keep::kYes)) {
      out.gradients[name] = g.to(at::kDouble);
      most = std::max(most, out.gradients[name].abs().max().item<double>());
    }
    for (const auto& [name, g] : out.gradients) out.absolute[name] = at::full_like(g, most);
    for (Param* p : engine.params()) p->value.mutable_grad() = Tensor();
    return out;
  }

 private:
  Engine& engine_of(DType type, double scale) {
    const auto key = std::pair(type, scale);
    if (!engine_ || made_for_ != key) {
      engine_.reset();
      Plan plan = plan_;
      plan.model.dtype = type;
      plan.train.loss_scale = scale;
      alone_ = make_self();
      engine_ = std::make_unique<Engine>(plan, registries_, *alone_, data_, EngineOptions{});
      made_for_ = key;
    }
    return *engine_;
  }

  const Plan plan_;
  const Registries& registries_;
  const Dataset& data_;
  std::unique_ptr<Communicator> alone_;
  std::unique_ptr<Engine> engine_;
  std::pair<DType, double> made_for_;
};

}  // namespace

std::unique_ptr<Reference> make_reference(const Plan& plan, const Registries& registries,
                                          const Dataset& data) {
  if (auto model = oracle::make_model(plan.model, plan.train.seed)) {
    return std::make_unique<OracleReference>(plan, std::move(model), data);
  }
  return std::make_unique<EngineReference>(plan, registries, data);
}

}  // namespace kuafu
