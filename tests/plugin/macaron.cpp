// SPDX-License-Identifier: Apache-2.0
//
// A model out of tree, written with the layers of model/: GPT whose blocks have half an MLP before
// attention and half after it. [Lu et al., arXiv 1906.02762] Load it with --plugin and set
// model.kind = "macaron".
//
// It brings its own oracle, the same model in plain ATen, which certificates hold it against. Built
// with ORACLE = 0 it brings none, and one rank of the engine is the reference; with ORACLE = 2 the
// oracle is wrong, with 3 it knows nothing of a bias, with 4 it takes q, k and v for one layer; with 5 it
// brings none, and the model is wrong in f32.

#include <torch/version.h>

#include "kuafu/engine/plugin.h"
#include "kuafu/model/blocks.h"
#include "kuafu/oracle/transformer.h"

#ifndef ORACLE
#define ORACLE 1
#endif

namespace {

using namespace kuafu;

class MacaronBlock : public ModelBlock {
 public:
  MacaronBlock(const Context& ctx, const ModelPlan& plan, const std::string& name)
      : name_(name),
        norm1_(ctx, name + ".norm1", plan),
        norm2_(ctx, name + ".norm2", plan),
        norm3_(ctx, name + ".norm3", plan),
        before_(ctx, name + ".before", plan, plan.ffn_width() / 2, 0.02),
        attention_(ctx, name + ".attn", plan, 0.02),
        after_(ctx, name + ".after", plan, plan.ffn_width() / 2, 0.02) {
    for (Module* child : std::initializer_list<Module*>{&norm1_, &before_, &norm2_, &attention_,
                                                        &norm3_, &after_}) {
      add_child(*child);
    }
  }

  Flow forward(const Flow& in, const Side& side) override {
    Tensor x = in[0] + 0.5 * before_(norm1_(in[0]));
    x = x + attention_(norm2_(x), Mask::kCausal, side);
    const bool is_wrong = ORACLE == 5 && x.scalar_type() == at::kFloat;
    return {x + (is_wrong ? 0.5005 : 0.5) * after_(norm3_(x))};
  }
  std::string name() const override { return name_; }

 private:
  std::string name_;
  Norm norm1_, norm2_, norm3_;
  Mlp before_;
  Attention attention_;
  Mlp after_;
};

Model make_macaron(const ModelPlan& plan, const Context& ctx) {
  check_block(ctx, plan);
  Model model;
  auto embedding = std::make_unique<Embedding>(ctx, plan);
  Param& table = embedding->table();
  model.blocks.push_back(std::move(embedding));
  for (int64_t i = 0; i < plan.layers; ++i) {
    model.blocks.push_back(std::make_unique<MacaronBlock>(ctx, plan, text("blocks.", i)));
  }
  model.blocks.push_back(std::make_unique<Head>(ctx, plan, table));
  model.loss_axes = loss_axes(ctx, Stream::kInner);
  return model;
}

/// x += mlp1(norm1(x)) / 2; x += attention(norm2(x)); x += mlp2(norm3(x)) / 2
class MacaronOracle : public oracle::Gpt {
 public:
  using Gpt::Gpt;

  oracle::Weights weights() const override {
    oracle::Weights all;
    oracle::add_embedding(all, plan());
    for (int64_t i = 0; i < plan().layers; ++i) {
      const std::string name = oracle::layer_name(i);
      for (const char* norm : {".norm1", ".norm2", ".norm3"}) {
        oracle::add_norm(all, plan(), name + norm);
      }
      for (const char* mlp : {".before", ".after"}) {
        oracle::add_mlp(all, plan(), name + mlp, plan().ffn_width() / 2);
      }
      oracle::add_attention(all, plan(), name + ".attn");
      // The model draws all weights with 0.02, those that end in the residual stream too.
      for (const char* last : {".before.down", ".after.down", ".attn.out"}) {
        all.at(name + last + ".weight").std = oracle::kStd;
      }
    }
    oracle::add_norm(all, plan(), "head.norm");
    if (ORACLE == 3) all.erase("blocks.1.after.down.bias");
    if (ORACLE == 4) all.at("blocks.0.attn.qkv.weight").fused = 1;
    return all;
  }

 protected:
  Tensor layer(const oracle::Call& call, const Tensor& in, int64_t index) const override {
    constexpr double kShare = ORACLE == 2 ? 0.501 : 0.5;
    const std::string name = oracle::layer_name(index);
    const auto half = [&](const Tensor& x, const std::string& norm, const std::string& mlp) {
      return x + kShare * oracle::mlp(call, oracle::norm(call, x, name + norm), name + mlp);
    };
    Tensor x = half(in, ".norm1", ".before");
    const Tensor n = oracle::norm(call, x, name + ".norm2");
    x = x + oracle::attention(call, n, name + ".attn", oracle::Sees::kEarlier);
    return half(x, ".norm3", ".after");
  }
};

void add(Registries& registries) {
  registries.models.add("macaron", "GPT with half an MLP before attention and half after it",
                        make_macaron);
  if (ORACLE == 0 || ORACLE == 5) return;
  registries.oracles.add("macaron", "in plain ATen", [](const ModelPlan& plan, uint64_t seed) {
    return std::make_unique<MacaronOracle>(plan, seed);
  });
}

}  // namespace

extern "C" const kuafu::PluginInfo* kuafu_plugin() {
  static const kuafu::PluginInfo kInfo = {.abi = KUAFU_PLUGIN_ABI,
                                          .torch = TORCH_VERSION,
                                          .name = "macaron",
                                          .version = "1",
                                          .add = add};
  return &kInfo;
}
