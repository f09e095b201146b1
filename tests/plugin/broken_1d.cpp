// SPDX-License-Identifier: Apache-2.0
//
// 1D tensor parallelism as its author believes in it: the input gradient of an expand has every sum it
// needs, and is 2 % too large. Loads like any plug-in; the conformance kit must say what is wrong. With
// SUMS = 0 the parts are never summed, which no plan is resolved with.

#include <torch/version.h>

#include "kuafu/engine/plugin.h"
#include "kuafu/parallel/tensor/products.h"
#include "kuafu/tensor/collectives.h"

#ifndef SUMS
#define SUMS 1
#endif

namespace {

using namespace kuafu;

class Broken1d : public TensorParallel {
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
    return r == Role::kContract ? raw::all_reduce(y, mesh().comm("tensor")) : y;
  }
  Tensor input_grad(const Tensor& dy, const Tensor& w, Role r) const override {
    const Tensor dx = multiply_rows(dy, w.t());
    if (SUMS == 0 || r == Role::kContract) return dx;
    return raw::all_reduce(dx, mesh().comm("tensor")).mul_(mesh().size("tensor") > 1 ? 1.02 : 1.0);
  }
  Tensor weight_grad(const Tensor& x, const Tensor& dy, Role) const override {
    return multiply_columns(x, dy);
  }
  Cost cost(const LinearShape& s, Role r) const override {
    const int64_t p = mesh().size("tensor");
    if (r == Role::kContract) return {.forward = 2 * (p - 1) * s.y / p};
    const int64_t sums = SUMS * 2 * (p - 1) * s.x / p;
    return {.backward = sums, .input_grad = sums};
  }
};

void add(Registries& registries) {
  const TensorMode mode{.name = "1d-broken",
                        .summary = "1d whose input gradients are too large",
                        .axes = [](int64_t size, int64_t) -> std::vector<Axis> {
                          return {{"tensor", size}};
                        }};
  registries.tensor.add(
      mode.name, mode.summary,
      TensorScheme{mode, [](const Mesh& mesh) { return std::make_unique<Broken1d>(mesh); }});
}

}  // namespace

extern "C" const kuafu::PluginInfo* kuafu_plugin() {
  static const kuafu::PluginInfo kInfo = {.abi = KUAFU_PLUGIN_ABI,
                                          .torch = TORCH_VERSION,
                                          .name = "broken-1d",
                                          .version = "1",
                                          .add = add};
  return &kInfo;
}
