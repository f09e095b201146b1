// SPDX-License-Identifier: Apache-2.0
//
// A model's keys as a config.json.

#include <algorithm>

#include "kuafu/base/errors.h"
#include "kuafu/base/suggest.h"
#include "kuafu/hf/config.h"
#include "kuafu/hf/families.h"
#include "kuafu/plan/kind_names.h"

namespace kuafu::hf {
namespace {

/// Key by key: what a family has in one way only.
void require(const std::string& key, const std::string& value, bool holds, Family family,
             const std::string& wanted) {
  KUAFU_REQUIRE(holds, "model.", key, " = ", value, ", and the family ", in_quotes(name_of(family)),
                " has ", wanted, " only: such a model has no config.json; export it with ",
                "--format safetensors");
}

std::string their_activation(const std::string& ours) {
  for (const ActivationName& row : kActivations) {
    if (ours == row.ours) return row.theirs;
  }
  return "silu";
}

const char* name_of(DType type) {
  return type == DType::kF64    ? "float64"
         : type == DType::kBF16 ? "bfloat16"
         : type == DType::kF16  ? "float16"
                                : "float32";
}

int64_t ffn_of(const ModelPlan& m) { return m.ffn == 0 ? 4 * m.hidden : m.ffn; }

void add_gpt2(Json& c, const ModelPlan& m) {
  c.update({{"vocab_size", m.vocab},
            {"n_positions", m.sequence},
            {"n_embd", m.hidden},
            {"n_layer", m.layers},
            {"n_head", m.heads},
            {"n_inner", ffn_of(m)},
            {"activation_function", their_activation(m.mlp)},
            {"layer_norm_epsilon", m.norm_epsilon}});
}

void add_opt(Json& c, const ModelPlan& m) {
  c.update({{"ffn_dim", ffn_of(m)},
            {"activation_function", their_activation(m.mlp)},
            {"do_layer_norm_before", !m.post_norm},
            {"word_embed_proj_dim", m.embedding == 0 ? m.hidden : m.embedding}});
}

void add_llama(Json& c, const ModelPlan& m) {
  c.update({{"intermediate_size", ffn_of(m)},
            {"hidden_act", their_activation(m.mlp)},
            {"num_key_value_heads", m.kv_heads == 0 ? m.heads : m.kv_heads},
            {"rms_norm_eps", m.norm_epsilon},
            {"rope_theta", m.rotary_base}});
}

void add_bert(Json& c, const ModelPlan& m) {
  c.update({{"intermediate_size", ffn_of(m)},
            {"hidden_act", their_activation(m.mlp)},
            {"type_vocab_size", 2},
            {"layer_norm_eps", m.norm_epsilon}});
}

void add_vit(Json& c, const ModelPlan& m) {
  Json labels = Json::object();
  for (int64_t i = 0; i < m.classes; ++i) labels[std::to_string(i)] = text("LABEL_", i);
  c.update({{"intermediate_size", ffn_of(m)},
            {"hidden_act", their_activation(m.mlp)},
            {"layer_norm_eps", m.norm_epsilon},
            {"image_size", m.image},
            {"patch_size", m.patch},
            {"num_channels", 3},
            {"qkv_bias", true},
            {"id2label", labels}});
}

}  // namespace

Family family_of(const ModelPlan& m) {
  const bool is_llama = m.kind == model_kinds::kGpt && m.positions == "rotary";
  KUAFU_REQUIRE(
      m.kind == model_kinds::kGpt || m.kind == model_kinds::kOpt || m.kind == model_kinds::kBert ||
          m.kind == model_kinds::kVit,
      "model.kind = ", in_quotes(m.kind), " is of no family of Hugging Face that this ",
      "build writes; those are of \"gpt\", \"opt\", \"bert\" and \"vit\"; export it with ",
      "--format safetensors");
  const Family family = is_llama                       ? Family::kLlama
                        : m.kind == model_kinds::kGpt  ? Family::kGpt2
                        : m.kind == model_kinds::kOpt  ? Family::kOpt
                        : m.kind == model_kinds::kBert ? Family::kBert
                                                       : Family::kVit;
  const auto flag = [](bool value) { return std::string(value ? "true" : "false"); };
  require("parallel_blocks", flag(m.parallel_blocks), !m.parallel_blocks, family, "false");
  require("norm", in_quotes(m.norm), m.norm == (is_llama ? "rms" : "layer"), family,
          is_llama ? "\"rms\"" : "\"layer\"");
  require("bias", flag(m.bias), m.bias == !is_llama, family, flag(!is_llama));
  require("mlp", in_quotes(m.mlp), (m.mlp == "swiglu") == is_llama, family,
          is_llama ? "\"swiglu\"" : "\"gelu\", \"gelu_exact\" or \"relu\"");
  require("positions", in_quotes(m.positions), is_llama || m.positions == "learned", family,
          "\"learned\"");
  require("kv_heads", text(m.kv_heads), is_llama || m.kv_heads == 0 || m.kv_heads == m.heads,
          family, "one for each head");
  require("norm_epsilon", text(m.norm_epsilon), family != Family::kOpt || m.norm_epsilon == 1e-5,
          family, "1e-5");
  return family;
}

Json config_json(Family family, const ModelPlan& m, DType type) {
  const auto* const row = std::find_if(std::begin(kFamilies), std::end(kFamilies),
                                       [&](const FamilyName& r) { return r.family == family; });
  Json c = {{"model_type", row->name},
            {"architectures", {row->architecture}},
            {"torch_dtype", name_of(type)}};
  if (family != Family::kVit) c["tie_word_embeddings"] = m.tied;
  if (family == Family::kGpt2) {
    add_gpt2(c, m);
    return c;
  }
  c.update({{"hidden_size", m.hidden},
            {"num_hidden_layers", m.layers},
            {"num_attention_heads", m.heads}});
  if (family == Family::kVit) {
    add_vit(c, m);
    return c;
  }
  c.update({{"vocab_size", m.vocab}, {"max_position_embeddings", m.sequence}});
  if (family == Family::kOpt) add_opt(c, m);
  if (family == Family::kLlama) add_llama(c, m);
  if (family == Family::kBert) add_bert(c, m);
  return c;
}

}  // namespace kuafu::hf
