// SPDX-License-Identifier: Apache-2.0
#include "kuafu/hf/config.h"

#include <algorithm>
#include <limits>

#include "kuafu/base/config.h"
#include "kuafu/base/errors.h"
#include "kuafu/base/suggest.h"
#include "kuafu/base/utf8.h"
#include "kuafu/plan/kind_names.h"
#include "kuafu/record/json_text.h"

namespace kuafu::hf {
namespace {

struct FamilyName {
  Family family;
  const char* name;
  const char* architecture;  ///< the class that has all of our tensors
};
constexpr FamilyName kFamilies[] = {{Family::kGpt2, "gpt2", "GPT2LMHeadModel"},
                                    {Family::kOpt, "opt", "OPTForCausalLM"},
                                    {Family::kLlama, "llama", "LlamaForCausalLM"},
                                    {Family::kBert, "bert", "BertForPreTraining"},
                                    {Family::kVit, "vit", "ViTForImageClassification"}};

/// Their name of an activation, and ours.
struct Activation {
  const char* theirs;
  const char* ours;
};
constexpr Activation kActivations[] = {
    {"gelu_new", "gelu"}, {"gelu_pytorch_tanh", "gelu"}, {"gelu", "gelu_exact"}, {"relu", "relu"}};

/// Members of a config, with their messages.
class Members {
 public:
  Members(const std::string& file, const Json& all) : file_(file), all_(all) {}

  bool has(const char* name) const { return all_.contains(name) && !all_[name].is_null(); }

  int64_t count(const char* name) const {
    KUAFU_REQUIRE(has(name), file_, " has no ", name, ", a whole number from 1");
    const std::optional<int64_t> value = whole_number(all_[name]);
    if (!value || *value < 1) refuse(name, "a whole number from 1");
    return *value;
  }
  int64_t count(const char* name, int64_t otherwise) const {
    return has(name) ? count(name) : otherwise;
  }
  double number(const char* name, double otherwise) const {
    if (!has(name)) return otherwise;
    if (!all_[name].is_number()) refuse(name, "a number");
    return all_[name].get<double>();
  }
  bool flag(const char* name, bool otherwise) const {
    if (!has(name)) return otherwise;
    if (!all_[name].is_boolean()) refuse(name, "true or false");
    return all_[name].get<bool>();
  }
  std::string word(const char* name, const std::string& otherwise) const {
    if (!has(name)) return otherwise;
    if (!all_[name].is_string()) refuse(name, "a text");
    return all_[name].get<std::string>();
  }
  std::string activation(const char* name, const char* otherwise) const {
    const std::string given = word(name, otherwise);
    std::vector<std::string> known;
    for (const Activation& row : kActivations) {
      if (given == row.theirs) return row.ours;
      known.push_back(row.theirs);
    }
    refuse(name, text(join(in_quotes(known)), "; nearest: ", in_quotes(nearest(given, known))));
  }
  /// What Kuafu has in one way only.
  void must_be(const char* name, bool wanted) const {
    if (flag(name, wanted) != wanted) refuse(name, wanted ? "true" : "false");
  }
  [[noreturn]] void refuse(const char* name, const std::string& allowed) const {
    throw ConfigError(
        text(file_, ": ", name, " is ", json_excerpt(all_[name]), "; allowed here: ", allowed));
  }
  const Json& at(const char* name) const { return all_[name]; }
  const std::string& file() const { return file_; }

 private:
  const std::string& file_;
  const Json& all_;
};

void read_gpt2(const Members& c, ModelPlan& m) {
  m.kind = model_kinds::kGpt;
  m.vocab = c.count("vocab_size");
  m.sequence = c.count("n_positions");
  m.hidden = c.count("n_embd");
  m.layers = c.count("n_layer");
  m.heads = c.count("n_head");
  m.ffn = c.count("n_inner", 0);
  m.mlp = c.activation("activation_function", "gelu_new");
  m.norm_epsilon = c.number("layer_norm_epsilon", 1e-5);
  m.tied = c.flag("tie_word_embeddings", true);
  c.must_be("scale_attn_weights", true);
  c.must_be("scale_attn_by_inverse_layer_idx", false);
  c.must_be("add_cross_attention", false);
}

void read_opt(const Members& c, ModelPlan& m) {
  m.kind = model_kinds::kOpt;
  m.vocab = c.count("vocab_size");
  m.sequence = c.count("max_position_embeddings");
  m.hidden = c.count("hidden_size");
  m.layers = c.count("num_hidden_layers");
  m.heads = c.count("num_attention_heads");
  m.ffn = c.count("ffn_dim");
  m.mlp = c.activation("activation_function", "relu");
  m.post_norm = !c.flag("do_layer_norm_before", true);
  const int64_t embedding = c.count("word_embed_proj_dim", m.hidden);
  m.embedding = embedding == m.hidden ? 0 : embedding;
  m.tied = c.flag("tie_word_embeddings", true);
  m.bias = c.flag("enable_bias", true);
  c.must_be("layer_norm_elementwise_affine", true);
  c.must_be("_remove_final_layer_norm", false);
  if (!m.bias)
    c.refuse("enable_bias", "true: the norms of an OPT have biases where its linears have none");
}

void read_llama(const Members& c, ModelPlan& m) {
  m.kind = model_kinds::kGpt;
  m.positions = "rotary";
  m.norm = "rms";
  m.mlp = "swiglu";
  m.bias = false;
  m.vocab = c.count("vocab_size");
  m.sequence = c.count("max_position_embeddings", 2048);
  m.hidden = c.count("hidden_size");
  m.layers = c.count("num_hidden_layers");
  m.heads = c.count("num_attention_heads");
  const int64_t pairs = c.count("num_key_value_heads", m.heads);
  m.kv_heads = pairs == m.heads ? 0 : pairs;
  m.ffn = c.count("intermediate_size");
  m.norm_epsilon = c.number("rms_norm_eps", 1e-6);
  m.rotary_base = c.number("rope_theta", 10000);
  m.tied = c.flag("tie_word_embeddings", false);
  c.must_be("attention_bias", false);
  c.must_be("mlp_bias", false);
  if (c.word("hidden_act", "silu") != "silu") c.refuse("hidden_act", "\"silu\"");
  if (c.count("head_dim", m.hidden / m.heads) != m.hidden / m.heads) {
    c.refuse("head_dim", text("hidden_size / num_attention_heads = ", m.hidden / m.heads));
  }
  if (c.has("rope_scaling")) c.refuse("rope_scaling", "null: positions as they are");
  if (!c.has("rope_parameters")) return;  // the newer spelling of rope_theta
  const Members rope(c.file(), c.at("rope_parameters"));
  m.rotary_base = rope.number("rope_theta", 10000);
  if (rope.word("rope_type", "default") != "default") {
    c.refuse("rope_parameters", "rope_type \"default\": positions as they are");
  }
}

void read_bert(const Members& c, ModelPlan& m) {
  m.kind = model_kinds::kBert;
  m.vocab = c.count("vocab_size");
  m.sequence = c.count("max_position_embeddings");
  m.hidden = c.count("hidden_size");
  m.layers = c.count("num_hidden_layers");
  m.heads = c.count("num_attention_heads");
  m.ffn = c.count("intermediate_size");
  m.mlp = c.activation("hidden_act", "gelu");
  m.norm_epsilon = c.number("layer_norm_eps", 1e-12);
  c.must_be("is_decoder", false);
  c.must_be("tie_word_embeddings", true);
  if (c.count("type_vocab_size", 2) != 2) c.refuse("type_vocab_size", "2");
  if (c.word("position_embedding_type", "absolute") != "absolute") {
    c.refuse("position_embedding_type", "\"absolute\"");
  }
}

void read_vit(const Members& c, ModelPlan& m) {
  m.kind = model_kinds::kVit;
  m.hidden = c.count("hidden_size");
  m.layers = c.count("num_hidden_layers");
  m.heads = c.count("num_attention_heads");
  m.ffn = c.count("intermediate_size");
  m.mlp = c.activation("hidden_act", "gelu");
  m.norm_epsilon = c.number("layer_norm_eps", 1e-12);
  m.image = c.count("image_size", 224);
  m.patch = c.count("patch_size", 16);
  if (c.has("id2label")) {
    if (!c.at("id2label").is_object() || c.at("id2label").empty()) {
      c.refuse("id2label", "an object of labels");
    }
    m.classes = static_cast<int64_t>(c.at("id2label").size());
  } else {
    m.classes = c.count("num_labels", 2);
  }
  c.must_be("qkv_bias", true);
  if (c.count("num_channels", 3) != 3) c.refuse("num_channels", "3");
  const int64_t side = m.image / m.patch;
  if (side * m.patch != m.image) {
    c.refuse("patch_size", text("a divisor of image_size = ", m.image));
  }
  m.sequence = side * side + 1;
}

/// Key by key: what a family has in one way only.
void require(const std::string& key, const std::string& value, bool holds, Family family,
             const std::string& wanted) {
  KUAFU_REQUIRE(holds, "model.", key, " = ", value, ", and the family ", in_quotes(name_of(family)),
                " has ", wanted, " only: such a model has no config.json; export it with ",
                "--format safetensors");
}

std::string their_activation(const std::string& ours) {
  for (const Activation& row : kActivations) {
    if (ours == row.ours) return row.theirs;
  }
  return "silu";
}

}  // namespace

std::vector<std::string> family_names() {
  std::vector<std::string> names;
  for (const FamilyName& row : kFamilies) names.push_back(row.name);
  return names;
}

const char* name_of(Family family) {
  return std::find_if(std::begin(kFamilies), std::end(kFamilies),
                      [&](const FamilyName& row) { return row.family == family; })
      ->name;
}

Config read_config(const std::string& file) {
  Json all;
  try {
    all = parse_json(read_file(file, "config of a Hugging Face model"));
  } catch (const ConfigError& e) {
    throw ConfigError(std::string_view(e.what()).starts_with("byte") ? text(file, ": ", e.what())
                                                                     : e.what());
  }
  KUAFU_REQUIRE(all.is_object(), file, " is no JSON object, but ", json_excerpt(all));
  const Members members(file, all);
  KUAFU_REQUIRE(members.has("model_type"), file, " has no model_type; known are ",
                join(in_quotes(family_names())));
  const std::string type = members.word("model_type", "");
  const auto* const found = std::find_if(std::begin(kFamilies), std::end(kFamilies),
                                         [&](const FamilyName& row) { return type == row.name; });
  if (found == std::end(kFamilies)) {
    members.refuse("model_type", text(join(in_quotes(family_names())), "; nearest: ",
                                      in_quotes(nearest(as_utf8(type), family_names()))));
  }
  Config config{found->family};
  switch (config.family) {
    case Family::kGpt2:
      read_gpt2(members, config.model);
      break;
    case Family::kOpt:
      read_opt(members, config.model);
      break;
    case Family::kLlama:
      read_llama(members, config.model);
      break;
    case Family::kBert:
      read_bert(members, config.model);
      break;
    case Family::kVit:
      read_vit(members, config.model);
      break;
  }
  if (config.model.hidden % config.model.heads != 0) {
    throw ConfigError(text(file, ": ", config.model.heads, " heads do not divide a width of ",
                           config.model.hidden));
  }
  if (config.model.ffn == 4 * config.model.hidden) config.model.ffn = 0;
  return config;
}

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
  const int64_t ffn = m.ffn == 0 ? 4 * m.hidden : m.ffn;
  const int64_t pairs = m.kv_heads == 0 ? m.heads : m.kv_heads;
  const auto* const row = std::find_if(std::begin(kFamilies), std::end(kFamilies),
                                       [&](const FamilyName& r) { return r.family == family; });
  const char* const dtype = type == DType::kF64    ? "float64"
                            : type == DType::kBF16 ? "bfloat16"
                            : type == DType::kF16  ? "float16"
                                                   : "float32";
  Json c = {{"model_type", row->name},
            {"architectures", {row->architecture}},
            {"torch_dtype", dtype},
            {"tie_word_embeddings", m.tied}};
  const std::string activation = their_activation(m.mlp);
  if (family == Family::kGpt2) {
    c.update({{"vocab_size", m.vocab},
              {"n_positions", m.sequence},
              {"n_embd", m.hidden},
              {"n_layer", m.layers},
              {"n_head", m.heads},
              {"n_inner", ffn},
              {"activation_function", activation},
              {"layer_norm_epsilon", m.norm_epsilon}});
    return c;
  }
  c.update({{"hidden_size", m.hidden},
            {"num_hidden_layers", m.layers},
            {"num_attention_heads", m.heads}});
  if (family != Family::kVit) {
    c.update({{"vocab_size", m.vocab}, {"max_position_embeddings", m.sequence}});
  }
  switch (family) {
    case Family::kOpt:
      c.update({{"ffn_dim", ffn},
                {"activation_function", activation},
                {"do_layer_norm_before", !m.post_norm},
                {"word_embed_proj_dim", m.embedding == 0 ? m.hidden : m.embedding}});
      break;
    case Family::kLlama:
      c.update({{"intermediate_size", ffn},
                {"hidden_act", activation},
                {"num_key_value_heads", pairs},
                {"rms_norm_eps", m.norm_epsilon},
                {"rope_theta", m.rotary_base}});
      break;
    case Family::kBert:
      c.update({{"intermediate_size", ffn},
                {"hidden_act", activation},
                {"type_vocab_size", 2},
                {"layer_norm_eps", m.norm_epsilon}});
      break;
    case Family::kVit: {
      Json labels = Json::object();
      for (int64_t i = 0; i < m.classes; ++i) labels[std::to_string(i)] = text("LABEL_", i);
      c.erase("tie_word_embeddings");
      c.update({{"intermediate_size", ffn},
                {"hidden_act", activation},
                {"layer_norm_eps", m.norm_epsilon},
                {"image_size", m.image},
                {"patch_size", m.patch},
                {"num_channels", 3},
                {"qkv_bias", true},
                {"id2label", labels}});
      break;
    }
    case Family::kGpt2:
      break;
  }
  return c;
}

}  // namespace kuafu::hf
