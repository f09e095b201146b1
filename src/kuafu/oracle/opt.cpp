// SPDX-License-Identifier: Apache-2.0
//
// OPT.                                                        [Zhang et al., arXiv 2205.01068]
//
// GPT-2 whose position s has row s + 2 of its table, after a table made for padding: rows 0 and 1
// are never read. With norms after the sums, as in the 350 million parameter model, there is none
// before the logits; with a table of tokens of another width E than H
//
//   h_0 = (U W_e) W_in + W_p,   P(u) = softmax((h_n W_out) W_e^T)
//
// [Hugging Face transformers, modeling_opt.py: OPTLearnedPositionalEmbedding, project_in, project_out,
// do_layer_norm_before]

#include "kuafu/oracle/transformer.h"

namespace kuafu::oracle {
namespace {

constexpr int64_t kUnread = 2;

class Opt : public Gpt {
 public:
  using Gpt::Gpt;

  Weights weights() const override {
    Weights all = Gpt::weights();
    const int64_t h = plan().hidden, e = plan().embedding;
    if (has_table()) all["embedding.positions"].shape[0] += kUnread;
    if (is_projected()) {
      for (const char* table : {"embedding.tokens", "head.tokens"}) {
        if (all.contains(table)) all[table].shape[1] = e;
      }
      all["embedding.project.weight"] = {.shape = {e, h}};
      all["head.project.weight"] = {.shape = {h, e}};
    }
    if (plan().post_norm) {
      all.erase("head.norm.weight");
      all.erase("head.norm.bias");
    }
    return all;
  }

 protected:
  Tensor embed(const Call& call) const override {
    Tensor x = lookup(call, ids(call.samples, call.samples.tokens.inputs), "embedding.tokens");
    if (is_projected()) x = product(call, x, "embedding.project");
    if (has_table()) x = add_positions(call, x, "embedding.positions", kUnread);
    return dropout(call, x, "embedding");
  }

  Tensor layer(const Call& call, const Tensor& x, int64_t index) const override {
    if (!plan().post_norm) return Gpt::layer(call, x, index);
    return post_norm_layer(call, x, layer_name(index), Sees::kEarlier);
  }

  Tensor loss(const Call& call, const Tensor& x) const override {
    const Tensor y = plan().post_norm ? x : norm(call, x, "head.norm");
    return surprise(call, is_projected() ? product(call, y, "head.project") : y);
  }

 private:
  bool has_table() const { return plan().positions == "learned"; }
  bool is_projected() const { return plan().embedding != 0 && plan().embedding != plan().hidden; }
};

}  // namespace

std::unique_ptr<Model> make_opt(const ModelPlan& plan, uint64_t seed) {
  return std::make_unique<Opt>(plan, seed);
}

}  // namespace kuafu::oracle
