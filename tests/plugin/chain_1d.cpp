// SPDX-License-Identifier: Apache-2.0
//
// A tensor scheme out of tree: 1D tensor parallelism whose sums are a reduction to the first rank
// and a broadcast from it. Load it with --plugin and set parallel.tensor = { mode = "1d-chain",
// size = n }.
//
// Picture (p = 2): that of 1D.
//
//   X (B, S, H)            expand W (H, F/tensor)      Y (B, S, F/tensor)
//   Y (B, S, F/tensor)     contract W (F/tensor, H)    Z (B, S, H)
//
// Math, rank j; sum_j = reduce to rank 0, then broadcast:
//   expand     Y[j] = X W[j]            dX = sum_j dY[j] W[j]^T      dW[j] = X^T dY[j]
//   contract   Z = sum_j Y[j] W[j]      dY[j] = dZ W[j]^T            dW[j] = Y[j]^T dZ
//
// Cost, elements received: along the chain 1, 2, .., p-1, 0 of the reduction every rank but 1
// receives
//   |X| once; along the chain 0, 1, .., p-1 of the broadcast every rank but 0.

#include <torch/version.h>

#include "kuafu/engine/plugin.h"
#include "kuafu/parallel/tensor/products.h"
#include "kuafu/tensor/collectives.h"

namespace {

using namespace kuafu;

class Chain1d : public TensorParallel {
 public:
  using TensorParallel::TensorParallel;

  Layout activation(Stream s) const override {
    return s == Stream::kOuter ? Layout::replicated(3) : Layout{{{}, {}, {"tensor"}}};
  }
  Layout weight(Role r) const override {
    return r == Role::kExpand ? Layout{{{}, {"tensor"}}} : Layout{{{"tensor"}, {}}};
  }

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

  Cost cost(const LinearShape& s, Role r) const override {
    const int64_t p = mesh().size("tensor"), rank = mesh().coord("tensor");
    if (p == 1) return {};
    const int64_t whole = r == Role::kExpand ? s.x : s.y;
    const int64_t received = (rank == 1 ? 0 : whole) + (rank == 0 ? 0 : whole);
    if (r == Role::kExpand) return {.backward = received, .input_grad = received};
    return {.forward = received};
  }

 private:
  Tensor sum(const Tensor& partial) const {
    Communicator& group = mesh().comm("tensor");
    raw::reduce(partial, group, 0);
    return raw::broadcast(partial, group, 0);
  }
};

void add(Registries& registries) {
  const TensorMode mode{.name = "1d-chain",
                        .summary = "1d whose sums are a reduction and a broadcast",
                        .axes = [](int64_t size, int64_t) -> std::vector<Axis> {
                          return {{"tensor", size}};
                        }};
  registries.tensor.add(
      mode.name, mode.summary,
      TensorScheme{mode, [](const Mesh& mesh) { return std::make_unique<Chain1d>(mesh); }});
}

}  // namespace

extern "C" const kuafu::PluginInfo* kuafu_plugin() {
  static const kuafu::PluginInfo kInfo = {.abi = KUAFU_PLUGIN_ABI,
                                          .torch = TORCH_VERSION,
                                          .name = "chain-1d",
                                          .version = "1",
                                          .add = add};
  return &kInfo;
}
