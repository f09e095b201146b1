// SPDX-License-Identifier: Apache-2.0
#include "kuafu/hf/tensors.h"

#include <algorithm>

#include "kuafu/base/errors.h"
#include "kuafu/plan/kind_names.h"

namespace kuafu::hf {
namespace {

/// Names and orders of a family's linears, norms and attention, in one voice.
class Table {
 public:
  Table(const ModelPlan& model, bool is_transposed) : m_(model), is_transposed_(is_transposed) {}

  std::vector<Mapped> take() {
    std::sort(all_.begin(), all_.end(),
              [](const Mapped& a, const Mapped& b) { return a.name < b.name; });
    return std::move(all_);
  }

  /// The same bytes in the same order; `theirs` where their file has other dims.
  void same(const std::string& ours, const std::string& name, Shape shape, Shape theirs = {}) {
    if (theirs.empty()) theirs = shape;
    all_.push_back({.name = ours, .shape = std::move(shape), .parts = {{name}}, .theirs = theirs});
  }

  /// "ours.weight" (in, out) and "ours.bias" of the linears `names` side by side in blocks.
  void linear(const std::string& ours, const std::vector<std::string>& names, int64_t in,
              int64_t out, int64_t block = 1, bool has_bias = true) {
    const auto count = static_cast<int64_t>(names.size());
    Mapped weight{.name = ours + ".weight",
                  .shape = {in, count * out},
                  .parts = {},
                  .block = block,
                  .is_transposed = is_transposed_,
                  .theirs = is_transposed_ ? Shape{out, in} : Shape{in, out}};
    for (const std::string& name : names) weight.parts.push_back({name + ".weight"});
    all_.push_back(std::move(weight));
    if (!m_.bias || !has_bias) return;
    Mapped bias{.name = ours + ".bias",
                .shape = {count * out},
                .parts = {},
                .block = block,
                .theirs = {out}};
    for (const std::string& name : names) bias.parts.push_back({name + ".bias"});
    all_.push_back(std::move(bias));
  }

  void norm(const std::string& ours, const std::string& name, int64_t width) {
    same(ours + ".weight", name + ".weight", {width});
    if (m_.bias && m_.norm == "layer") same(ours + ".bias", name + ".bias", {width});
  }

  /// q, k and v as linears of their own: one of ours, or two where key-value heads are fewer.
  void attention(const std::string& ours, const std::string& q, const std::string& k,
                 const std::string& v) {
    const int64_t h = m_.hidden, d = h / m_.heads;
    const int64_t pairs = m_.kv_heads == 0 ? m_.heads : m_.kv_heads;
    if (pairs == m_.heads) return linear(ours + ".qkv", {q, k, v}, h, h, d);
    linear(ours + ".q", {q}, h, h);
    linear(ours + ".kv", {k, v}, h, pairs * d, d);
  }

  void add(Mapped tensor) { all_.push_back(std::move(tensor)); }

 private:
  const ModelPlan& m_;
  bool is_transposed_;
  std::vector<Mapped> all_;
};

int64_t ffn_of(const ModelPlan& m) { return m.ffn == 0 ? 4 * m.hidden : m.ffn; }

std::string layer(const std::string& before, int64_t i, const std::string& behind) {
  return before + std::to_string(i) + behind;
}

std::vector<Mapped> gpt2(const ModelPlan& m) {
  Table t(m, false);  // Conv1D keeps (in, out)
  const int64_t h = m.hidden, d = h / m.heads;
  t.same("embedding.tokens", "transformer.wte.weight", {m.vocab, h});
  t.same("embedding.positions", "transformer.wpe.weight", {m.sequence, h});
  for (int64_t i = 0; i < m.layers; ++i) {
    const std::string ours = layer("blocks.", i, ""), theirs = layer("transformer.h.", i, "");
    // One tensor has q, k and v beside each other.
    for (const auto& [end, rows] : {std::pair{".weight", h}, {".bias", int64_t{1}}}) {
      const std::string packed = theirs + ".attn.c_attn" + end;
      const bool is_bias = rows == 1 && std::string_view(end) == ".bias";
      t.add({.name = ours + ".attn.qkv" + end,
             .shape = is_bias ? Shape{3 * h} : Shape{h, 3 * h},
             .parts = {{packed, 0}, {packed, h}, {packed, 2 * h}},
             .block = d,
             .theirs = is_bias ? Shape{3 * h} : Shape{h, 3 * h}});
    }
    t.linear(ours + ".attn.out", {theirs + ".attn.c_proj"}, h, h);
    t.linear(ours + ".mlp.up", {theirs + ".mlp.c_fc"}, h, ffn_of(m));
    t.linear(ours + ".mlp.down", {theirs + ".mlp.c_proj"}, ffn_of(m), h);
    t.norm(ours + ".norm1", theirs + ".ln_1", h);
    t.norm(ours + ".norm2", theirs + ".ln_2", h);
  }
  t.norm("head.norm", "transformer.ln_f", h);
  if (!m.tied) t.same("head.tokens", "lm_head.weight", {m.vocab, h});
  return t.take();
}

std::vector<Mapped> opt(const ModelPlan& m) {
  Table t(m, true);
  const std::string at = "model.decoder.";
  const int64_t h = m.hidden, e = m.embedding == 0 ? h : m.embedding;
  t.same("embedding.tokens", at + "embed_tokens.weight", {m.vocab, e});
  t.same("embedding.positions", at + "embed_positions.weight", {m.sequence + 2, h});
  if (e != h) {
    t.linear("embedding.project", {at + "project_in"}, e, h, 1, false);
    t.linear("head.project", {at + "project_out"}, h, e, 1, false);
  }
  for (int64_t i = 0; i < m.layers; ++i) {
    const std::string ours = layer("blocks.", i, ""), theirs = layer(at + "layers.", i, "");
    const std::string self = theirs + ".self_attn.";
    t.attention(ours + ".attn", self + "q_proj", self + "k_proj", self + "v_proj");
    t.linear(ours + ".attn.out", {self + "out_proj"}, h, h);
    t.linear(ours + ".mlp.up", {theirs + ".fc1"}, h, ffn_of(m));
    t.linear(ours + ".mlp.down", {theirs + ".fc2"}, ffn_of(m), h);
    t.norm(ours + ".norm1", theirs + ".self_attn_layer_norm", h);
    t.norm(ours + ".norm2", theirs + ".final_layer_norm", h);
  }
  if (!m.post_norm) t.norm("head.norm", at + "final_layer_norm", h);
  if (!m.tied) t.same("head.tokens", "lm_head.weight", {m.vocab, e});
  return t.take();
}

std::vector<Mapped> llama(const ModelPlan& m) {
  Table t(m, true);
  const int64_t h = m.hidden;
  t.same("embedding.tokens", "model.embed_tokens.weight", {m.vocab, h});
  for (int64_t i = 0; i < m.layers; ++i) {
    const std::string ours = layer("blocks.", i, ""), theirs = layer("model.layers.", i, "");
    const std::string self = theirs + ".self_attn.", mlp = theirs + ".mlp.";
    t.attention(ours + ".attn", self + "q_proj", self + "k_proj", self + "v_proj");
    t.linear(ours + ".attn.out", {self + "o_proj"}, h, h);
    t.linear(ours + ".mlp.up", {mlp + "gate_proj", mlp + "up_proj"}, h, ffn_of(m));  // pairs
    t.linear(ours + ".mlp.down", {mlp + "down_proj"}, ffn_of(m), h);
    t.norm(ours + ".norm1", theirs + ".input_layernorm", h);
    t.norm(ours + ".norm2", theirs + ".post_attention_layernorm", h);
  }
  t.norm("head.norm", "model.norm", h);
  if (!m.tied) t.same("head.tokens", "lm_head.weight", {m.vocab, h});
  return t.take();
}

std::vector<Mapped> bert(const ModelPlan& m) {
  Table t(m, true);
  const int64_t h = m.hidden;
  const std::string in = "bert.embeddings.", out = "cls.predictions.";
  t.same("embedding.tokens", in + "word_embeddings.weight", {m.vocab, h});
  t.same("embedding.positions", in + "position_embeddings.weight", {m.sequence, h});
  t.same("embedding.segments", in + "token_type_embeddings.weight", {2, h});
  t.norm("embedding.norm", in + "LayerNorm", h);
  for (int64_t i = 0; i < m.layers; ++i) {
    const std::string ours = layer("blocks.", i, ""), theirs = layer("bert.encoder.layer.", i, "");
    const std::string self = theirs + ".attention.self.";
    t.attention(ours + ".attn", self + "query", self + "key", self + "value");
    t.linear(ours + ".attn.out", {theirs + ".attention.output.dense"}, h, h);
    t.linear(ours + ".mlp.up", {theirs + ".intermediate.dense"}, h, ffn_of(m));
    t.linear(ours + ".mlp.down", {theirs + ".output.dense"}, ffn_of(m), h);
    t.norm(ours + ".norm1", theirs + ".attention.output.LayerNorm", h);
    t.norm(ours + ".norm2", theirs + ".output.LayerNorm", h);
  }
  t.linear("head.pooler", {"bert.pooler.dense"}, h, h);
  t.linear("head.transform", {out + "transform.dense"}, h, h);
  t.norm("head.norm", out + "transform.LayerNorm", h);
  t.same("head.bias", out + "bias", {m.vocab});
  t.linear("head.answer", {"cls.seq_relationship"}, h, 2);
  return t.take();
}

std::vector<Mapped> vit(const ModelPlan& m) {
  Table t(m, true);
  const int64_t h = m.hidden, p = m.patch;
  const std::string in = "vit.embeddings.", patches = in + "patch_embeddings.projection";
  // Theirs (H, channel, row, column); ours (row, column, channel; H).
  t.add({.name = "embedding.patches.weight",
         .shape = {3 * p * p, h},
         .parts = {{patches + ".weight", 0},
                   {patches + ".weight", p * p},
                   {patches + ".weight", 2 * p * p}},
         .along_rows = true,
         .theirs = {h, 3, p, p}});
  if (m.bias) t.same("embedding.patches.bias", patches + ".bias", {h});
  t.same("embedding.class", in + "cls_token", {h}, {1, 1, h});
  t.same("embedding.positions", in + "position_embeddings", {m.sequence, h}, {1, m.sequence, h});
  for (int64_t i = 0; i < m.layers; ++i) {
    const std::string ours = layer("blocks.", i, ""), theirs = layer("vit.encoder.layer.", i, "");
    const std::string self = theirs + ".attention.attention.";
    t.attention(ours + ".attn", self + "query", self + "key", self + "value");
    t.linear(ours + ".attn.out", {theirs + ".attention.output.dense"}, h, h);
    t.linear(ours + ".mlp.up", {theirs + ".intermediate.dense"}, h, ffn_of(m));
    t.linear(ours + ".mlp.down", {theirs + ".output.dense"}, ffn_of(m), h);
    t.norm(ours + ".norm1", theirs + ".layernorm_before", h);
    t.norm(ours + ".norm2", theirs + ".layernorm_after", h);
  }
  t.norm("head.norm", "vit.layernorm", h);
  t.linear("head.classes", {"classifier"}, h, m.classes);
  return t.take();
}

}  // namespace

std::vector<Mapped> mapping(Family family, const ModelPlan& model) {
  switch (family) {
    case Family::kGpt2:
      return gpt2(model);
    case Family::kOpt:
      return opt(model);
    case Family::kLlama:
      return llama(model);
    case Family::kBert:
      return bert(model);
    case Family::kVit:
      return vit(model);
  }
  KUAFU_CHECK(false, "a family without a mapping");
  return {};
}

bool is_passed_over(Family family, const ModelPlan& model, const std::string& theirs) {
  const auto ends_with = [&](const char* end) { return theirs.ends_with(end); };
  switch (family) {
    case Family::kGpt2:  // the causal mask
      if (ends_with(".attn.bias") || ends_with(".attn.masked_bias")) return true;
      return model.tied && theirs == "lm_head.weight";
    case Family::kOpt:
      return model.tied && theirs == "lm_head.weight";
    case Family::kLlama:
      return ends_with(".rotary_emb.inv_freq") || (model.tied && theirs == "lm_head.weight");
    case Family::kBert:
      return ends_with(".position_ids") || theirs == "cls.predictions.decoder.weight" ||
             theirs == "cls.predictions.decoder.bias";
    case Family::kVit:
      return false;
  }
  return false;
}

}  // namespace kuafu::hf
