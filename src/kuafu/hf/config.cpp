// SPDX-License-Identifier: Apache-2.0
#include "kuafu/hf/config.h"

#include <algorithm>
#include <filesystem>
#include <optional>

#include "kuafu/base/config.h"
#include "kuafu/base/errors.h"
#include "kuafu/base/suggest.h"
#include "kuafu/base/utf8.h"
#include "kuafu/hf/families.h"
#include "kuafu/plan/kind_names.h"
#include "kuafu/record/json_text.h"

namespace kuafu::hf {
namespace {

constexpr int64_t kMostTokens = 1 << 24, kMostWidth = 1 << 20, kMostLayers = 1 << 16;

/// Members of a config, with their messages.
class Members {
 public:
  Members(const std::string& file, const Json& all) : file_(file), all_(all) {}

  bool has(const char* name) const { return all_.contains(name) && !all_[name].is_null(); }

  /// Bounds keep what is computed of counts, and lists of tensors, in bounds too; those of the plan's
  /// keys are the same or narrower.
  int64_t count(const char* name, std::optional<int64_t> otherwise = {},
                int64_t most = kMostTokens) const {
    if (!has(name) && otherwise) return *otherwise;
    const std::string allowed = text("a whole number from 1 to ", most);
    KUAFU_REQUIRE(has(name), file_, " has no ", name, ", ", allowed);
    const std::optional<int64_t> value = whole_number(all_[name]);
    if (!value || *value < 1 || *value > most) refuse(name, allowed);
    return *value;
  }
  int64_t width(const char* name) const { return count(name, {}, kMostWidth); }
  int64_t layers(const char* name) const { return count(name, {}, kMostLayers); }
  double epsilon(const char* name, double otherwise) const {
    const double value = number(name, otherwise);
    if (!(value > 0 && value < 1)) refuse(name, "a number above 0 and below 1");
    return value;
  }
  /// Of rotary positions.
  double base(const char* name, double otherwise = 10000) const {
    const double value = number(name, otherwise);
    if (!(value > 1 && value <= 1e15)) refuse(name, "a number above 1, to 1e15");
    return value;
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
    for (const ActivationName& row : kActivations) {
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
  m.hidden = c.width("n_embd");
  m.layers = c.layers("n_layer");
  m.heads = c.width("n_head");
  m.ffn = c.count("n_inner", 0);
  m.mlp = c.activation("activation_function", "gelu_new");
  m.norm_epsilon = c.epsilon("layer_norm_epsilon", 1e-5);
  m.tied = c.flag("tie_word_embeddings", true);
  c.must_be("scale_attn_weights", true);
  c.must_be("scale_attn_by_inverse_layer_idx", false);
  c.must_be("add_cross_attention", false);
}

void read_opt(const Members& c, ModelPlan& m) {
  m.kind = model_kinds::kOpt;
  m.vocab = c.count("vocab_size");
  m.sequence = c.count("max_position_embeddings");
  m.hidden = c.width("hidden_size");
  m.layers = c.layers("num_hidden_layers");
  m.heads = c.width("num_attention_heads");
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
  m.hidden = c.width("hidden_size");
  m.layers = c.layers("num_hidden_layers");
  m.heads = c.width("num_attention_heads");
  const int64_t pairs = c.count("num_key_value_heads", m.heads);
  m.kv_heads = pairs == m.heads ? 0 : pairs;
  m.ffn = c.count("intermediate_size");
  m.norm_epsilon = c.epsilon("rms_norm_eps", 1e-6);
  m.rotary_base = c.base("rope_theta");
  m.tied = c.flag("tie_word_embeddings", false);
  c.must_be("attention_bias", false);
  c.must_be("mlp_bias", false);
  if (c.word("hidden_act", "silu") != "silu") c.refuse("hidden_act", "\"silu\"");
  if (c.count("head_dim", m.hidden / m.heads) != m.hidden / m.heads) {
    c.refuse("head_dim", text("hidden_size / num_attention_heads = ", m.hidden / m.heads));
  }
  if (c.has("rope_scaling")) c.refuse("rope_scaling", "null: positions as they are");
  if (!c.has("rope_parameters")) return;  // the newer spelling of rope_theta
  if (!c.at("rope_parameters").is_object()) c.refuse("rope_parameters", "an object");
  const Members rope(c.file(), c.at("rope_parameters"));
  m.rotary_base = rope.base("rope_theta", m.rotary_base);
  if (rope.word("rope_type", "default") != "default" ||
      rope.number("partial_rotary_factor", 1) != 1) {
    c.refuse("rope_parameters", "rope_type \"default\" of all dims: positions as they are");
  }
}

void read_bert(const Members& c, ModelPlan& m) {
  m.kind = model_kinds::kBert;
  m.vocab = c.count("vocab_size");
  m.sequence = c.count("max_position_embeddings");
  m.hidden = c.width("hidden_size");
  m.layers = c.layers("num_hidden_layers");
  m.heads = c.width("num_attention_heads");
  m.ffn = c.count("intermediate_size");
  m.mlp = c.activation("hidden_act", "gelu");
  m.norm_epsilon = c.epsilon("layer_norm_eps", 1e-12);
  c.must_be("is_decoder", false);
  c.must_be("tie_word_embeddings", true);
  if (c.count("type_vocab_size", 2) != 2) c.refuse("type_vocab_size", "2");
  if (c.word("position_embedding_type", "absolute") != "absolute") {
    c.refuse("position_embedding_type", "\"absolute\"");
  }
}

void read_vit(const Members& c, ModelPlan& m) {
  m.kind = model_kinds::kVit;
  m.hidden = c.width("hidden_size");
  m.layers = c.layers("num_hidden_layers");
  m.heads = c.width("num_attention_heads");
  m.ffn = c.count("intermediate_size");
  m.mlp = c.activation("hidden_act", "gelu");
  m.norm_epsilon = c.epsilon("layer_norm_eps", 1e-12);
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

Json read_object(const std::string& file, const char* what) {
  std::error_code error;
  const auto status = std::filesystem::status(file, error);  // a cache of downloads has links
  KUAFU_REQUIRE(!std::filesystem::exists(status) || std::filesystem::is_regular_file(status),
                "the ", what, " ", file, " is no regular file but a folder, a pipe or a device");
  const std::string bytes = read_file(file, what);
  Json all;
  try {
    all = parse_json(bytes);
  } catch (const ConfigError& e) {
    throw ConfigError(text(file, " is no JSON: ", e.what()));
  }
  KUAFU_REQUIRE(all.is_object(), file, " is no JSON object, but ", json_excerpt(all));
  const std::string repeated = repeated_key(bytes);
  KUAFU_REQUIRE(repeated.empty(), file, " has ", in_quotes(as_utf8(repeated)), " twice");
  return all;
}

Config read_config(const std::string& file) {
  const Json all = read_object(file, "config of a Hugging Face model");
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

}  // namespace kuafu::hf
