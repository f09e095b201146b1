// SPDX-License-Identifier: Apache-2.0
#include "kuafu/engine/proof/certificate_reference.h"

#include <algorithm>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "kuafu/comm/worlds.h"
#include "kuafu/engine/proof/certificate_replay.h"
#include "kuafu/engine/proof/whole_state.h"

namespace kuafu {
namespace {

class OracleReference : public CertificateReference {
 public:
  OracleReference(const Plan& plan, std::unique_ptr<oracle::Model> model, const Dataset& data)
      : plan_(plan), model_(std::move(model)), weights_(model_->weights()), data_(data) {}

  std::string name() const override { return "oracle"; }
  bool is_stateless() const override { return true; }
  oracle::Weights weights() override { return weights_; }
  oracle::Tensors initial_weights() override {
    return oracle::initial_weights(*model_, plan_.train.seed);
  }

  /// Samples know nothing of each other: all at once, for speed.
  oracle::Gradients gradients(int64_t step, const oracle::Tensors& weights,
                              const oracle::Routes& routes) override {
    return run(step, weights, routes, {plan_.train.batch, 0, plan_.train.batch}, 1);
  }
  oracle::Gradients rounded_gradients(int64_t step, const oracle::Tensors& weights,
                                      const oracle::Routes& routes, double scale) override {
    return run(step, weights, routes, {plan_.train.micro_batch, 0, plan_.train.batch}, scale);
  }
  oracle::BlockGradients blocks(int64_t step, const oracle::Tensors& weights,
                                const oracle::BlockFlows& flows, const oracle::Routes& routes,
                                double scale, const std::vector<size_t>& which) override {
    const int64_t batch = plan_.train.batch;
    const oracle::Samples samples{
        .tokens = data_.train(step * batch, batch), .first = 0, .step = step, .batch = batch};
    auto out = oracle::block_gradients(*model_, weights, samples, flows,
                                       routes.empty() ? nullptr : &routes, scale, which);
    for (auto* sums : {&out.sums.gradients, &out.sums.absolute}) {
      for (auto& [name, t] : *sums) t = t.to(at::kDouble) / scale;
    }
    return out;
  }
  std::optional<double> validation_loss(int64_t steps, const oracle::Tensors& weights) override {
    if (plan_.model.has_mixtures()) return {};
    const int64_t batch = plan_.train.batch, count = plan_.train.validation_batches;
    std::vector<oracle::Samples> all;
    for (int64_t b = 0; b < count; ++b) {
      all.push_back({.tokens = data_.validation(b * batch, batch),
                     .first = b * batch,
                     .step = steps,
                     .batch = count * batch,
                     .is_training = false});
    }
    return oracle::loss_of(*model_, weights, all);
  }
  oracle::Gradients share(int64_t step, Share share, const oracle::Tensors& weights) override {
    const int64_t size = plan_.train.batch / share.count, first = share.index * size;
    return run(step, weights, {}, {plan_.train.micro_batch, first, first + size}, 1);
  }

 private:
  /// Samples of a step, `size` at a time.
  struct Range {
    int64_t size, begin, end;
  };
  oracle::Gradients run(int64_t step, const oracle::Tensors& weights, const oracle::Routes& routes,
                        Range range, double scale) {
    const int64_t batch = plan_.train.batch, size = range.size;
    std::vector<oracle::Samples> micro;
    std::vector<oracle::Routes> routes_of;
    for (int64_t first = range.begin; first < range.end; first += size) {
      micro.push_back({.tokens = data_.train(step * batch + first, size),
                       .first = first,
                       .step = step,
                       .batch = batch});
      if (routes.empty()) continue;
      auto& mine = routes_of.emplace_back();
      for (const auto& [name, t] : routes) mine[name] = t.narrow(0, first, size);
    }
    oracle::Gradients out = oracle::gradients(*model_, weights, micro, routes_of, scale);
    for (auto& [name, g] : out.gradients) g = g.to(at::kDouble) / scale;
    for (auto& [name, a] : out.absolute) a = a.to(at::kDouble) / scale;
    return out;
  }

  const Plan plan_;
  std::unique_ptr<oracle::Model> model_;
  const oracle::Weights weights_;
  const Dataset& data_;
};

class EngineReference : public CertificateReference {
 public:
  EngineReference(const Plan& plan, const Registries& registries, const Dataset& data)
      : plan_(single_rank(plan)), registries_(registries), data_(data) {
    // Workers that go on by themselves are shares of whole micro-batches.
    if (is_replayed(plan)) plan_.train.micro_batch = plan.train.micro_batch;
  }

  std::string name() const override { return "engine"; }
  oracle::Weights weights() override {
    if (!layers_.empty()) return layers_;
    for (const Param* p : engine_of(DType::kF64, 1).params()) {
      layers_[p->name] = {.shape = p->global,
                          .is_stacked = p->layers.is_stacked,
                          .fused = p->layers.parts,
                          .run = p->layers.width};
    }
    return layers_;
  }
  oracle::Tensors initial_weights() override {
    return whole_parameters(engine_of(DType::kF64, 1), Keep::kYes);
  }

  oracle::Gradients gradients(int64_t step, const oracle::Tensors& weights,
                              const oracle::Routes& routes) override {
    return rounded_gradients(step, weights, routes, 1);
  }
  oracle::Gradients rounded_gradients(int64_t step, const oracle::Tensors& weights,
                                      const oracle::Routes& routes, double scale) override {
    Engine& engine = engine_with(step, weights, scale);
    engine.keep_routes();
    const double loss = engine.forward_backward();
    require_same(routes, whole_routes(engine, *alone_).tensors);
    return gradients_of(engine, loss);
  }
  oracle::BlockGradients blocks(int64_t, const oracle::Tensors&, const oracle::BlockFlows&,
                                const oracle::Routes&, double,
                                const std::vector<size_t>&) override {
    return {};
  }
  oracle::Gradients share(int64_t step, Share share, const oracle::Tensors& weights) override {
    Engine& engine = engine_with(step, weights, 1);
    const double loss = engine.forward_backward_share(step, share.index, share.count);
    return gradients_of(engine, loss / static_cast<double>(share.count));
  }

 private:
  Engine& engine_with(int64_t step, const oracle::Tensors& weights, double scale) {
    this->weights();  // before this engine: it asks another
    Engine& engine = engine_of(dtype_of(weights.begin()->second), scale);
    const at::NoGradGuard no_grad;
    for (const ParamShard& s : engine.shards()) s.value.copy_(weights.at(s.param->name));
    engine.go_on_from(step);
    return engine;
  }

  /// No engine knows the terms of its sums: of each layer they are taken to be its largest gradient,
  /// of one that has none but rounding (biases of keys) kLeastTerms of the model's. By all of that,
  /// gradients of queries and keys would be rounding too.
  oracle::Gradients gradients_of(Engine& engine, double loss) {
    oracle::Gradients out;
    out.loss = loss;
    for (const auto& [name, g] : whole_gradients(engine, Keep::kYes)) {
      out.gradients[name] = g.to(at::kDouble);
      out.absolute[name] = out.gradients[name].abs().contiguous();
      out.largest = std::max(out.largest, largest_of(out.absolute[name]));
    }
    for (const auto& [name, layer] : layers_apart(out.absolute, layers_)) {
      layer.fill_(std::max(largest_of(layer), kLeastTerms * out.largest));
    }
    for (Param* p : engine.params()) p->value.mutable_grad() = Tensor();
    return out;
  }
  static constexpr double kLeastTerms = 0x1p-10;
  static double largest_of(const Tensor& t) { return t.numel() == 0 ? 0 : t.max().item<double>(); }

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

  /// An engine takes no decision over from another.
  static void require_same(const oracle::Routes& theirs, const oracle::Routes& mine) {
    for (const auto& [name, t] : mine) {
      const auto found = theirs.find(name);
      // Slots beyond the capacity of one rank only pad.
      const bool is_same = found != theirs.end() && found->second.size(2) >= t.size(2) &&
                           found->second.narrow(2, 0, t.size(2)).equal(t);
      KUAFU_REQUIRE(is_same, "the routes of ", name, " are not those that one rank takes, and ",
                    "without an oracle nobody can say whether rounding excuses it; register one "
                    "beside the model");
    }
  }

  Plan plan_;
  const Registries& registries_;
  const Dataset& data_;
  std::unique_ptr<Communicator> alone_;
  std::unique_ptr<Engine> engine_;
  std::pair<DType, double> made_for_;
  oracle::Weights layers_;
};

std::string text_of(const LayerSplit& split) {
  return text(split.is_stacked ? "stacked, " : "", split.parts, " side by side",
              split.parts > 1 ? text(" in turns of ", split.width, " columns") : "");
}

/// What an oracle lacks would be compared with nothing, and a rule by layers would take norms of
/// other layers where it splits a weight otherwise.
void require_same_weights(const std::vector<WholeParam>& params, const oracle::Weights& weights) {
  const auto require = [](bool is_so, const auto&... words) {
    if (!is_so) throw UnlikeWeights(text(words...));
  };
  for (const WholeParam& p : params) {
    const Param& mine = *p.param;
    const auto found = weights.find(mine.name);
    require(found != weights.end(), "the oracle has no weight ", in_quotes(mine.name),
            ", which the model trains; add it to the oracle's weights()");
    const oracle::Weight& w = found->second;
    require(w.shape == mine.global, "the oracle's weight ", in_quotes(mine.name), " is ",
            to_string(Shape(w.shape)), ", the model's ", to_string(mine.global));
    const LayerSplit split{.is_stacked = w.is_stacked, .parts = w.fused, .width = w.run};
    const bool is_alike = split.is_stacked == mine.layers.is_stacked &&
                          split.parts == mine.layers.parts &&
                          (split.parts == 1 || split.width == mine.layers.width);
    require(is_alike, "the oracle's weight ", in_quotes(mine.name), " holds layers ",
            text_of(split), ", the model's ", text_of(mine.layers),
            "; is_stacked, fused and run of its oracle::Weight say which");
  }
}

}  // namespace

namespace {

constexpr const char *kOfStack = ", layer ", *kOfRow = ", part ";

}  // namespace

std::string weight_of_layer(const std::string& name) {
  return name.substr(0, std::min(name.find(kOfStack), name.find(kOfRow)));
}

oracle::Tensors layers_apart(const oracle::Tensors& whole, const oracle::Weights& weights) {
  oracle::Tensors out;
  for (const auto& [name, t] : whole) {
    const auto found = weights.find(name);
    const oracle::Weight w = found == weights.end() ? oracle::Weight{} : found->second;
    const int64_t stacked = w.is_stacked ? t.size(0) : 1;
    if (stacked * w.fused == 1 || t.sizes() != at::IntArrayRef(w.shape)) {
      out[name] = t;
      continue;
    }
    // (stacked, rows, turns, fused, run), as norms_of_layers has it
    const Tensor parts = t.reshape({stacked, -1, t.size(-1) / (w.fused * w.run), w.fused, w.run});
    for (int64_t s = 0; s < stacked; ++s) {
      for (int64_t part = 0; part < w.fused; ++part) {
        const std::string of_stack = stacked == 1 ? "" : text(kOfStack, s + 1, " of ", stacked);
        const std::string of_row = w.fused == 1 ? "" : text(kOfRow, part + 1, " of ", w.fused);
        out[name + of_stack + of_row] = parts[s].select(2, part);
      }
    }
  }
  return out;
}

Plan single_rank(Plan plan) {
  const int64_t micro_batches = plan.num_micro_batches();
  plan.parallel.tensor = {};
  plan.parallel.layers.clear();
  plan.parallel.sequence = {};
  plan.parallel.pipeline = {};
  plan.parallel.data = {.size = 1};
  plan.parallel.expert = 1;
  plan.parallel.zero = 0;
  plan.memory.recompute = Recompute::kNone;
  plan.train.micro_batch = plan.train.batch / micro_batches;  // the same sums, one replica
  return plan;
}

std::unique_ptr<CertificateReference> make_reference(const Plan& plan, const Registries& registries,
                                                     const Dataset& data,
                                                     const std::vector<WholeParam>& params) {
  if (registries.oracles.contains(plan.model.kind)) {
    auto model = registries.oracles.find(plan.model.kind)(plan.model, plan.train.seed);
    KUAFU_REQUIRE(model != nullptr, "the oracle of model.kind ", in_quotes(plan.model.kind),
                  " made no model");
    require_same_weights(params, model->weights());
    return std::make_unique<OracleReference>(plan, std::move(model), data);
  }
  KUAFU_REQUIRE(
      num_ranks(plan) > 1, "one rank would be compared with itself: nothing else says what ",
      "model.kind = ", in_quotes(plan.model.kind), " computes; register an oracle for it");
  return std::make_unique<EngineReference>(plan, registries, data);
}

}  // namespace kuafu
