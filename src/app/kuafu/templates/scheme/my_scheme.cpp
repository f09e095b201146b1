// A tensor-parallel scheme: where activations and weights lie, three products, and their cost.
// This one cuts the first weight of each pair by columns and the second by rows.
//                                                      [Shoeybi et al., arXiv 1909.08053]
// Picture (p ranks along the axis "tensor"; B batch, S sequence, H hidden, F inner width)
//
//   X (B, S, H)            expand W (H, F/tensor)      Y (B, S, F/tensor)
//   Y (B, S, F/tensor)     contract W (F/tensor, H)    Z (B, S, H)
//
// Math, rank j
//   expand     Y[j] = X W[j]              dX = sum_j dY[j] W[j]^T     dW[j] = X^T dY[j]
//   contract   Z = sum_j Y[j] W[j]        dY[j] = dZ W[j]^T           dW[j] = Y[j]^T dZ
//
// Cost: what a ring receives to sum X or Z over the ranks.
//
// What to change first: sum(). Make it a reduce and a broadcast and cost() is wrong: conformance
// says so under "traffic". Then the layouts: cut X along S too, and conformance leads from "shards"
// over "products" to "training".

#include <memory>
#include <vector>

#include <ATen/ATen.h>
#include <torch/version.h>

#include "kuafu/engine/plugin.h"
#include "kuafu/parallel/tensor/products.h"
#include "kuafu/tensor/collectives.h"

namespace {

using namespace kuafu;

class MyScheme : public TensorParallel {
 public:
  using TensorParallel::TensorParallel;

  // Where shapes come from: a layout names, for each dim of the whole tensor, the axes that cut it.
  // Kuafu deals out parameters and activations by these two, and hands you shards. "outer" is the
  // residual stream, "inner" what lies between an expand and its contract.
  Layout activation(Stream s) const override {  // of (B, S, H) or (B, S, F)
    return s == Stream::kOuter ? Layout::replicated(3) : Layout{{{}, {}, {"tensor"}}};
  }
  Layout weight(Role r) const override {  // of (in, out)
    return r == Role::kExpand ? Layout{{{}, {"tensor"}}} : Layout{{{"tensor"}, {}}};
  }

  // Shards in, shards out. Nobody records for autograd here: the three products are its backward.
  Tensor forward(const Tensor& x, const Tensor& w, Role r) const override {
    const Tensor y = multiply_rows(x, w);
    return r == Role::kContract ? sum(y) : y;
  }
  Tensor input_grad(const Tensor& dy, const Tensor& w, Role r) const override {
    const Tensor dx = multiply_rows(dy, w.t());
    return r == Role::kExpand ? sum(dx) : dx;
  }
  Tensor weight_grad(const Tensor& x, const Tensor& dy, Role) const override {
    return multiply_columns(x, dy);
  }

  // Elements that this rank receives, counted on the wire by the tests. `s` are those of my shards.
  Cost cost(const LinearShape& s, Role r) const override {
    if (r == Role::kExpand) {
      const int64_t received = all_reduced(mesh(), "tensor", s.x);
      return {.backward = received, .input_grad = received};
    }
    return {.forward = all_reduced(mesh(), "tensor", s.y)};
  }

 private:
  Tensor sum(const Tensor& partial) const {
    return raw::all_reduce(partial, mesh().comm("tensor"));
  }
};

void add(Registries& registries) {
  // The axes that parallel.tensor.size ranks are arranged on; throw Refused for sizes you cannot.
  const TensorMode mode{.name = "my_scheme",
                        .summary = "columns, then rows: a scheme of my own",
                        .axes = [](int64_t size, int64_t) -> std::vector<Axis> {
                          return {{"tensor", size}};
                        }};
  registries.tensor.add(
      mode.name, mode.summary,
      kuafu::TensorScheme{mode, [](const Mesh& mesh) { return std::make_unique<MyScheme>(mesh); }});
}

}  // namespace

extern "C" const kuafu::PluginInfo* kuafu_plugin() {
  static const kuafu::PluginInfo kInfo = {.abi = KUAFU_PLUGIN_ABI,
                                          .torch = TORCH_VERSION,
                                          .name = "my_scheme",
                                          .version = "1",
                                          .add = add};
  return &kInfo;
}
