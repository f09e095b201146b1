// SPDX-License-Identifier: Apache-2.0
#include "tests/oracle/cases.h"

#include <ATen/ATen.h>

namespace kuafu::tests {
namespace {

Overrides mixture(const Overrides& more) {
  return keys::both({{"model.kind", "moe_gpt"}, {"model.experts", "4"}}, more);
}

/// Loss and auxiliary losses of one micro-batch.
double run(const oracle::Model& model, const oracle::Tensors& weights,
           const oracle::Samples& samples, oracle::Extra extra) {
  oracle::Flow flow;
  double sum = 0;
  for (size_t b = 0; b < model.blocks().size(); ++b) {
    extra.loss = Tensor();
    flow = model.forward(b, flow, weights, samples, extra);
    if (extra.loss.defined()) sum += extra.loss.item<double>();
  }
  return sum + flow[0].item<double>();
}

}  // namespace

const std::vector<Family>& oracle_cases() {
  static const std::vector<Family> all = {
      {"gpt", {}},
      {"gpt_dropout", {{"model.dropout", "0.2"}}},
      {"gpt_parallel_blocks", {{"model.parallel_blocks", "true"}}},
      {"gpt_no_bias", {{"model.bias", "false"}}},
      {"llama",
       {{"model.norm", "rms"},
        {"model.mlp", "swiglu"},
        {"model.positions", "rotary"},
        {"model.bias", "false"},
        {"model.kv_heads", "2"},
        {"model.ffn", "48"}}},
      {"palm",
       {{"model.parallel_blocks", "true"},
        {"model.mlp", "swiglu"},
        {"model.positions", "rotary"},
        {"model.kv_heads", "1"}}},
      {"gpt_untied",
       {{"model.tied", "false"},
        {"model.mlp", "gelu_exact"},
        {"model.positions", "rotary"},
        {"model.rotary_base", "300"},
        {"model.norm_epsilon", "0.01"}}},
      {"opt", {{"model.kind", "opt"}, {"model.mlp", "relu"}, {"model.dropout", "0.1"}}},
      {"opt_350m",
       {{"model.kind", "opt"},
        {"model.mlp", "relu"},
        {"model.post_norm", "true"},
        {"model.embedding", "8"}}},
      {"opt_untied",
       {{"model.kind", "opt"},
        {"model.tied", "false"},
        {"model.mlp", "gelu_exact"},
        {"model.embedding", "24"},
        {"model.bias", "false"},
        {"model.norm", "rms"},
        {"model.norm_epsilon", "0.001"}}},
      {"moe_untied",
       mixture({{"model.tied", "false"}, {"model.mlp", "relu"}, {"model.router", "top1"}})},
      {"moe_top1", mixture({{"model.router", "top1"}, {"model.dropout", "0.1"}})},
      {"moe_top2", mixture({{"model.router", "top2"}, {"model.capacity_factor", "0.75"}})},
      {"moe_random_second", mixture({{"model.random_second", "true"}})},
      {"moe_top3", mixture({{"model.router", "topk"},
                            {"model.top_k", "3"},
                            {"model.shared_experts", "2"},
                            {"model.mlp", "swiglu"},
                            {"model.moe_every", "2"}})},
      {"moe_expert_choice", mixture({{"model.router", "expert_choice"}, {"model.bias", "false"}})},
      {"moe_expert_choice_rotary",
       mixture({{"model.router", "expert_choice"}, {"model.positions", "rotary"}})},
      {"bert", {{"model.kind", "bert"}}},
      {"bert_grouped_rms",
       {{"model.kind", "bert"}, {"model.kv_heads", "2"}, {"model.norm", "rms"}}},
      {"bert_rotary_no_bias",
       {{"model.kind", "bert"},
        {"model.positions", "rotary"},
        {"model.bias", "false"},
        {"model.dropout", "0.1"}}},
      {"bert_exact", {{"model.kind", "bert"}, {"model.mlp", "gelu_exact"}}},
      {"vit",
       {{"model.kind", "vit"},
        {"model.vocab", "256"},
        {"model.image", "12"},
        {"model.sequence", "10"}}},
      {"vit_rotary_dropout",
       {{"model.kind", "vit"},
        {"model.vocab", "256"},
        {"model.image", "12"},
        {"model.sequence", "10"},
        {"model.positions", "rotary"},
        {"model.dropout", "0.2"}}},
  };
  return all;
}

std::vector<oracle::Samples> samples_of(const Plan& plan, const Dataset& data, int64_t step,
                                        int64_t micro_batches) {
  std::vector<oracle::Samples> all;
  const int64_t each = plan.train.batch / micro_batches;
  for (int64_t first = 0; first < plan.train.batch; first += each) {
    all.push_back({.tokens = data.train(step * plan.train.batch + first, each),
                   .first = first,
                   .step = step,
                   .batch = plan.train.batch});
  }
  return all;
}

oracle::Tensors lively_weights(const oracle::Model& model) {
  oracle::Tensors weights = oracle::initial_weights(model, 1);
  double phase = 0;
  for (auto& [name, w] : weights) {
    const Tensor wave = (at::arange(w.numel(), at::kDouble) * 1.7 + ++phase).sin().view(w.sizes());
    w = w + 0.15 * wave;
  }
  return weights;
}

double whole_loss(const oracle::Model& model, const oracle::Tensors& weights,
                  const std::vector<oracle::Samples>& micro,
                  const std::vector<oracle::Routes>& routes) {
  double sum = 0;
  for (size_t i = 0; i < micro.size(); ++i) {
    sum += run(model, weights, micro[i], {.routes = &routes[i]});
  }
  return sum;
}

std::vector<oracle::Routes> routes_of(const oracle::Model& model, const oracle::Tensors& weights,
                                      const std::vector<oracle::Samples>& micro) {
  std::vector<oracle::Routes> all(micro.size());
  for (size_t i = 0; i < micro.size(); ++i) run(model, weights, micro[i], {.routed = &all[i]});
  return all;
}

}  // namespace kuafu::tests
