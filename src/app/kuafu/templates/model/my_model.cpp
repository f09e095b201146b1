// A model: a list of blocks, each a function of what the block before it gives. This one is GPT with
// a brake: each branch is added to the residual stream times kShare.
//
//   tokens -> embedding -> [ x + kShare attention(norm1(x)); x + kShare mlp(norm2(x)) ] x layers
//          -> norm -> logits = x table^T (tied) -> cross entropy
//
// It is written once. Layers ask for an expand and a contract and know no scheme: tensor, sequence,
// pipeline and data parallelism, ZeRO, recomputation and checkpoints follow.
//
// And it is written a second time, in plain ATen on whole tensors: the oracle that certificates and
// conformance hold it against. Without one they compare with one rank of the same code, and
// conformance with finite differences.
//
// What to change first: MyModel::forward, and layer() of the oracle with it. Change one of them
// alone, and conformance says what differs.

#include <memory>
#include <string>
#include <utility>

#include <ATen/ATen.h>
#include <torch/version.h>

#include "kuafu/base/suggest.h"
#include "kuafu/engine/plugin.h"
#include "kuafu/model/blocks.h"
#include "kuafu/oracle/transformer.h"

namespace {

using namespace kuafu;

constexpr double kShare = 0.5;
constexpr double kStd = 0.02;  // of the first weights

class MyModel : public kuafu::ModelBlock {
 public:
  // Where shapes come from: `plan` has the numbers of [model] in the plan, whole; `ctx` knows which
  // part of them this rank has. A layer makes its parameters by name, the same under every scheme.
  // One of your own: add(ctx.param(name, shape, layout, RowUse::kOuterWidth, init)); the use says what
  // it meets, and its layout and sums are held against that.
  MyModel(const Context& ctx, const ModelPlan& plan, const std::string& name)
      : name_(name),
        norm1_(ctx, name + ".norm1", plan),
        norm2_(ctx, name + ".norm2", plan),
        attention_(ctx, name + ".attn", plan, kStd),
        mlp_(ctx, name + ".mlp", plan, plan.ffn_width(), kStd) {
    add_child(norm1_);
    add_child(attention_);
    add_child(norm2_);
    add_child(mlp_);
  }

  // norm.residual(x, branch) is x + branch(norm(x)). Write it so, not as a sum: a tensor that two
  // read has its gradients added within the norm.
  Flow forward(const Flow& in, const Side& side) override {
    const Tensor x = norm1_.residual(
        in[0], [&](const Tensor& y) { return kShare * attention_(y, Mask::kCausal, side); });
    return {norm2_.residual(x, [&](const Tensor& y) { return kShare * mlp_(y); })};
  }
  std::string name() const override { return name_; }

 private:
  std::string name_;
  Norm norm1_, norm2_;
  Attention attention_;
  Mlp mlp_;
};

Model make(const ModelPlan& plan, const Context& ctx) {
  check_block(ctx, plan);
  // An option that the model does not read is refused, not passed over.
  KUAFU_REQUIRE(!plan.parallel_blocks,
                "model.parallel_blocks = true does nothing in model.kind = ", in_quotes(plan.kind),
                "; nearest: parallel_blocks = false");
  Model model;
  auto embedding = std::make_unique<Embedding>(ctx, plan);
  Param& table = embedding->table();
  model.blocks.push_back(std::move(embedding));
  for (int64_t i = 0; i < plan.layers; ++i) {
    model.blocks.push_back(std::make_unique<MyModel>(ctx, plan, text("blocks.", i)));
  }
  model.blocks.push_back(std::make_unique<Head>(ctx, plan, table));
  model.loss_axes = loss_axes(ctx, Stream::kInner);
  return model;
}

/// The same, in plain ATen: oracle::Gpt has the embedding and the head.
class MyModelOracle : public oracle::Gpt {
 public:
  using Gpt::Gpt;

  oracle::Weights weights() const override {
    oracle::Weights all;
    oracle::add_embedding(all, plan());
    for (int64_t i = 0; i < plan().layers; ++i) {
      const std::string name = oracle::layer_name(i);
      oracle::add_norm(all, plan(), name + ".norm1");
      oracle::add_attention(all, plan(), name + ".attn");
      oracle::add_norm(all, plan(), name + ".norm2");
      oracle::add_mlp(all, plan(), name + ".mlp", plan().ffn_width());
      all.at(name + ".attn.out.weight").std = kStd;
      all.at(name + ".mlp.down.weight").std = kStd;
    }
    oracle::add_norm(all, plan(), "head.norm");
    return all;
  }

 protected:
  Tensor layer(const oracle::Call& call, const Tensor& in, int64_t index) const override {
    const std::string name = oracle::layer_name(index);
    const Tensor n = oracle::norm(call, in, name + ".norm1");
    const Tensor x =
        in + kShare * oracle::attention(call, n, name + ".attn", oracle::Sees::kEarlier);
    return x + kShare * oracle::mlp(call, oracle::norm(call, x, name + ".norm2"), name + ".mlp");
  }
};

void add(Registries& registries) {
  registries.models.add("my_model", "GPT whose branches count half: a model of my own", make);
  registries.oracles.add("my_model", "in plain ATen", [](const ModelPlan& plan, uint64_t seed) {
    return std::make_unique<MyModelOracle>(plan, seed);
  });
}

}  // namespace

extern "C" const kuafu::PluginInfo* kuafu_plugin() {
  static const kuafu::PluginInfo kInfo = {.abi = KUAFU_PLUGIN_ABI,
                                          .torch = TORCH_VERSION,
                                          .name = "my_model",
                                          .version = "1",
                                          .add = add};
  return &kInfo;
}
