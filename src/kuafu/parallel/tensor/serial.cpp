// SPDX-License-Identifier: Apache-2.0
//
// Serial: every rank of the tensor group (there is one) holds everything. The reference of all
// others.
//
// Picture   X (B, S, H)    W (H, F)    Y (B, S, F)
// Math      Y = X W        dX = dY W^T        dW = X^T dY
// Cost      nothing is sent

#include "kuafu/parallel/tensor/interface.h"
#include "kuafu/parallel/tensor/products.h"

namespace kuafu {
namespace {

class Serial : public TensorParallel {
 public:
  using TensorParallel::TensorParallel;

  Layout activation(Stream) const override { return Layout::replicated(3); }
  Layout weight(Role) const override { return Layout::replicated(2); }

  Tensor forward(const Tensor& x, const Tensor& w, Role) const override {
    return multiply_rows(x, w);
  }
  Tensor input_grad(const Tensor& dy, const Tensor& w, Role) const override {
    return multiply_rows(dy, w.t());
  }
  Tensor weight_grad(const Tensor& x, const Tensor& dy, Role) const override {
    return multiply_columns(x, dy);
  }

  Cost cost(const LinearShape&, Role) const override { return {}; }
  bool is_local(Role) const override { return true; }
};

}  // namespace

std::unique_ptr<TensorParallel> make_serial(const Mesh& mesh) {
  return std::make_unique<Serial>(mesh);
}

}  // namespace kuafu
