// SPDX-License-Identifier: Apache-2.0
#include "tests/generation/support.h"

#include <ATen/ATen.h>

#include <cmath>
#include <cstring>

#include "kuafu/engine/saving/given_weights.h"
#include "tests/oracle/cases.h"
#include "tests/support/tensors.h"

namespace kuafu::tests {
namespace {

const Overrides kLlama = {{"model.norm", "rms"},         {"model.mlp", "swiglu"},
                          {"model.positions", "rotary"}, {"model.bias", "false"},
                          {"model.kv_heads", "2"},       {"model.ffn", "48"}};

NamedWeights named(const oracle::Tensors& weights) {
  NamedWeights out{.path = "lively weights", .tensors = {}, .read = {}};
  for (const auto& [name, t] : weights) {
    out.tensors.push_back({name, DType::kF64, t.sizes().vec(), nullptr});
  }
  out.read = [weights](const std::string& name, const Slice& box, char* to) {
    Tensor t = weights.at(name);
    for (size_t d = 0; d < box.extent.size(); ++d) {
      t = t.narrow(static_cast<int64_t>(d), box.offset[d], box.extent[d]);
    }
    t = t.contiguous();
    std::memcpy(to, t.const_data_ptr(), t.nbytes());
  };
  return out;
}

/// (samples, sequence) as the oracle reads them, in inference.
oracle::Samples samples_of(const Plan& plan, const std::vector<int64_t>& tokens, int64_t samples) {
  const int64_t s = plan.model.sequence;
  return {.tokens = {.inputs = tokens,
                     .targets = std::vector<int64_t>(static_cast<size_t>(samples * s), -1),
                     .samples = samples,
                     .sequence = s,
                     .predictions = s},
          .batch = samples,
          .is_training = false};
}

Tensor whole_logits(const Plan& plan, const std::vector<int64_t>& tokens, int64_t samples) {
  const auto model = oracle::make_model(plan.model, plan.train.seed);
  return oracle::logits_of(*model, lively_weights(*model), samples_of(plan, tokens, samples));
}

}  // namespace

std::vector<Family> generating_plans() {
  using namespace keys;  // NOLINT: the rows below are a table
  std::vector<Family> all = families();
  const auto add = [&](const char* name, const Overrides& a, const Overrides& b = {}) {
    all.push_back({name, both(a, b)});
  };
  for (const char* n : {"zero_3", "mixed", "experts_2", "experts_2_zero_3", "server_2"}) {
    all.push_back(sharding(n));
  }
  // 12 samples are what every number of ranks up to 6 divides.
  for (Family& f : all) f.overrides.insert(f.overrides.begin(), {"train.batch", "12"});
  const Overrides twelve = {{"train.batch", "12"}};
  add("data_5", {{"parallel.data", "5"}, {"train.batch", "5"}});
  add("data_6_zero_2", replicas("6", "2"), twelve);
  add("sequence_5", sequence("ring-zigzag", "5"), twelve);
  add("all_gather_4", sequence("all-gather", "4"), twelve);
  add("gpipe_3", {{"parallel.pipeline.size", "3"}, {"parallel.pipeline.schedule", "gpipe"}},
      {{"train.batch", "6"}, {"train.micro_batch", "2"}});
  add("zbv_2", {{"parallel.pipeline.size", "2"}, {"parallel.pipeline.schedule", "zbv"}},
      {{"parallel.pipeline.chunks", "2"}, {"train.micro_batch", "3"}, {"train.batch", "12"}});
  add("interleaved_2",
      {{"parallel.pipeline.size", "2"}, {"parallel.pipeline.schedule", "interleaved"}},
      {{"parallel.pipeline.chunks", "2"}, {"train.micro_batch", "3"}, {"train.batch", "12"}});
  add("pipeline_2_ring_3", both(stages(), sequence("ring", "3")), twelve);
  add("moe_ring_3", both(experts("1"), sequence("ring", "3")), twelve);
  add("moe_top3_t1d_2", both(experts("1"), tensor("1d", "2")),
      {{"model.router", "topk"}, {"model.top_k", "3"}, {"model.shared_experts", "2"}});
  add("llama", kLlama);
  add("llama_t1d_4", kLlama, tensor("1d", "4"));
  add("llama_zigzag_3", kLlama, sequence("ring-zigzag", "3"));
  add("llama_t3d_8", kLlama, tensor("3d", "8"));
  const Overrides opt = {{"model.kind", "opt"}, {"model.mlp", "relu"}};
  add("opt_t2d_4", opt, tensor("2d", "4"));
  add("opt_350m_pipeline_2", both(opt, {{"model.post_norm", "true"}, {"model.embedding", "8"}}),
      both(stages(), twelve));
  add("untied_t1d_sp_2", {{"model.tied", "false"}}, tensor("1d-sp", "2"));
  add("tiers", {{"memory.policy", "host"}, {"memory.chunk_size", "2KiB"}});
  add("recompute", {{"memory.recompute", "full"}});
  return all;
}

Plan generating_plan(const Family& family) { return plan_of_generation(plan_of(family)); }

void enliven(Engine& engine, Communicator& world) {
  const Plan& plan = engine.plan();
  const auto model = oracle::make_model(plan.model, plan.train.seed);
  begin_with(named(lively_weights(*model)), engine, world);
}

Asked asked_of(const Plan& plan) {
  const int64_t b = plan.train.batch, s = plan.model.sequence;
  Asked asked;
  asked.batch.samples = b;
  asked.batch.sequence = s;
  for (int64_t i = 0; i < b * s; ++i) {
    asked.batch.inputs.push_back((7 * i * i + 5 * i + 3) % plan.model.vocab);
  }
  for (int64_t i = 0; i < b; ++i) asked.positions.push_back((5 * i + 11) % s);
  return asked;
}

Tokens Asked::columns(int64_t first, int64_t end) const {
  Tokens some{.inputs = {}, .targets = {}, .samples = batch.samples, .sequence = end - first};
  for (int64_t b = 0; b < batch.samples; ++b) {
    const auto row = batch.inputs.begin() + b * batch.sequence;
    some.inputs.insert(some.inputs.end(), row + first, row + end);
  }
  return some;
}

Tokens Asked::at_positions() const {
  Tokens some{.inputs = {}, .targets = {}, .samples = batch.samples, .sequence = 1};
  for (int64_t b = 0; b < batch.samples; ++b) {
    const int64_t position = positions[static_cast<size_t>(b)];
    some.inputs.push_back(batch.inputs[static_cast<size_t>(b * batch.sequence + position)]);
  }
  return some;
}

Tensor oracle_logits(const Plan& plan, const Asked& asked) {
  const Tensor all = whole_logits(plan, asked.batch.inputs, asked.batch.samples);
  std::vector<Tensor> rows;
  for (int64_t b = 0; b < asked.batch.samples; ++b) {
    rows.push_back(all[b][asked.positions[static_cast<size_t>(b)]]);
  }
  return at::stack(rows);
}

Tensor oracle_logits(const Plan& plan, const std::vector<int64_t>& tokens) {
  return whole_logits(plan, tokens, 1);
}

Tensor oracle_last_input(const Plan& plan, const std::vector<std::vector<int64_t>>& texts) {
  const auto model = oracle::make_model(plan.model, plan.train.seed);
  const oracle::Tensors weights = lively_weights(*model);
  const int64_t samples = std::ssize(texts), s = std::ssize(texts[0]);
  Tokens tokens{.inputs = {}, .targets = {}, .samples = samples, .sequence = s, .predictions = s};
  for (const auto& row : texts) {
    tokens.inputs.insert(tokens.inputs.end(), row.begin(), row.end());
  }
  tokens.is_pair = true;
  tokens.segments.assign(tokens.inputs.size(), 0);
  const oracle::Samples all{.tokens = tokens, .batch = samples, .is_training = false};
  oracle::Flow flow;
  for (size_t b = 0; b + 1 < model->blocks().size(); ++b) {
    oracle::Extra extra;
    flow = model->forward(b, flow, weights, all, extra);
  }
  return flow[0];
}

// As tests/oracle/engine_test.cpp derives it: sums of up to 144 terms, 8 a block and head, of two
// blocks and a head, errors at random, l = 4. The largest logit stands for the terms that make one,
// which are up to sqrt(32) times as large together where they are of any sign.
double logit_tolerance(const Tensor& expected) {
  return 4 * std::sqrt(144 * 8 * 3) * std::sqrt(32) * kEps * expected.abs().max().item<double>();
}

std::vector<std::vector<int64_t>> uneven_prompts(const Plan& plan) {
  std::vector<std::vector<int64_t>> prompts;
  for (const int64_t length : {1, 5, 10, 3}) {
    prompts.emplace_back();
    for (int64_t i = 0; i < length; ++i) {
      prompts.back().push_back((11 * i * i + 3 * length + i) % plan.model.vocab);
    }
  }
  return prompts;
}

std::vector<int64_t> oracle_tokens(const Plan& plan, std::vector<int64_t> prompt) {
  const auto s = static_cast<size_t>(plan.model.sequence);
  std::vector<int64_t> made;
  while (prompt.size() < s) {
    std::vector<int64_t> row = prompt;
    row.resize(s);
    const Tensor logits = whole_logits(plan, row, 1)[0][std::ssize(prompt) - 1];
    made.push_back(logits.argmax().item<int64_t>());
    prompt.push_back(made.back());
  }
  return made;
}

}  // namespace kuafu::tests
