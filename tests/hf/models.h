// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstring>
#include <numeric>

#include "kuafu/base/errors.h"
#include "kuafu/hf/folder.h"

namespace kuafu::hf::test {

/// Models of every family, with each option that its tensors depend on.
inline std::vector<ModelPlan> models() {
  ModelPlan gpt;
  gpt.layers = 2;
  gpt.hidden = 12;
  gpt.heads = 3;
  gpt.vocab = 7;
  gpt.sequence = 5;
  ModelPlan untied = gpt;
  untied.tied = false;
  untied.ffn = 10;
  ModelPlan opt = gpt;
  opt.kind = "opt";
  opt.mlp = "relu";
  ModelPlan opt_350m = opt;
  opt_350m.post_norm = true;
  opt_350m.embedding = 4;
  ModelPlan llama = gpt;
  llama.positions = "rotary";
  llama.norm = "rms";
  llama.mlp = "swiglu";
  llama.bias = false;
  llama.tied = false;
  llama.ffn = 20;
  llama.norm_epsilon = 1e-6;
  llama.rotary_base = 500000;
  ModelPlan grouped = llama;
  grouped.heads = 6;
  grouped.kv_heads = 2;
  ModelPlan bert = gpt;
  bert.kind = "bert";
  bert.mlp = "gelu_exact";
  bert.norm_epsilon = 1e-12;
  ModelPlan vit = gpt;
  vit.kind = "vit";
  vit.vocab = ModelPlan{}.vocab;
  vit.image = 6;
  vit.patch = 2;
  vit.classes = 3;
  vit.sequence = 10;
  return {gpt, untied, opt, opt_350m, llama, grouped, bert, vit};
}

inline int64_t elements(const Shape& shape) {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

/// Bytes of a tensor that no other tensor and no other place has: "tensor t, element i".
inline std::vector<char> numbered(const std::vector<Mapped>& all, const Mapped& tensor,
                                  int64_t size) {
  int64_t before = 1;
  for (const Mapped& t : all) {
    if (t.name == tensor.name) break;
    before += elements(t.shape);
  }
  std::vector<char> bytes(static_cast<size_t>(elements(tensor.shape) * size));
  for (int64_t i = 0; i < elements(tensor.shape); ++i) {
    const int64_t value = before + i;
    std::memcpy(bytes.data() + i * size, &value, static_cast<size_t>(size));
  }
  return bytes;
}

inline void write(const std::string& path, const ModelPlan& model, DType type = DType::kF32,
                  int64_t shard = 1 << 30) {
  const Family family = family_of(model);
  const std::vector<Mapped> all = mapping(family, model);
  write_folder(
      path, family, model, type, [&](const Mapped& t) { return numbered(all, t, size_of(type)); },
      shard);
}

}  // namespace kuafu::hf::test
