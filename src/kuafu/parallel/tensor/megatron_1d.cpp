// SPDX-License-Identifier: Apache-2.0
//
// 1D tensor parallelism: columns, then rows.        [Shoeybi et al., arXiv 1909.08053, section 3]
//
// Picture (p = 2). The residual stream is whole on every rank; the inner stream is split by
// columns.
//
//   X (B, S, H)      expand W (H, F/tensor)      Y (B, S, F/tensor)
//   rank 0: X        W0                          Y0 = X W0
//   rank 1: X        W1                          Y1 = X W1
//
//   Y (B, S, F/tensor)    contract W (F/tensor, H)    Z (B, S, H)
//   rank 0: Y0            W0                          Z = Y0 W0 + Y1 W1   (all-reduce)
//   rank 1: Y1            W1                          Z
//
// Math, rank j:
//   expand     Y[j] = X W[j]             dX = sum_j dY[j] W[j]^T  (all-reduce)   dW[j] = X^T dY[j]
//   contract   Z = sum_j Y[j] W[j]  (all-reduce)     dY[j] = dZ W[j]^T           dW[j] = Y[j]^T dZ
//
// Cost, elements received per rank: 2 (p-1)/p |X| for an expand, in backward; 2 (p-1)/p |Z| for a
//   contract, in forward. |.| is the whole residual stream: constant as p grows. Where p does not
//   divide it: twice the whole less my own and the next part of the ring.

#include "kuafu/parallel/tensor/interface.h"
#include "kuafu/parallel/tensor/products.h"
#include "kuafu/tensor/collectives.h"

namespace kuafu {
namespace {

class Megatron1d : public TensorParallel {
 public:
  using TensorParallel::TensorParallel;

  Layout activation(Stream s) const override {
    return s == Stream::kOuter ? Layout::replicated(3) : Layout{{{}, {}, {"tensor"}}};
  }
  Layout weight(Role r) const override {
    return r == Role::kExpand ? Layout{{{}, {"tensor"}}} : Layout{{{"tensor"}, {}}};
  }

  Tensor forward(const Tensor& x, const Tensor& w, Role r) const override {
    Tensor y = multiply_rows(x, w);
    return r == Role::kContract ? sum(y) : y;
  }
  Tensor input_grad(const Tensor& dy, const Tensor& w, Role r) const override {
    Tensor dx = multiply_rows(dy, w.t());
    return r == Role::kExpand ? sum(dx) : dx;
  }
  Tensor weight_grad(const Tensor& x, const Tensor& dy, Role) const override {
    return multiply_columns(x, dy);
  }

  Cost cost(const LinearShape& s, Role r) const override {
    const int64_t received = all_reduced(mesh(), "tensor", r == Role::kExpand ? s.x : s.y);
    if (r == Role::kExpand) return {.backward = received, .input_grad = received};
    return {.forward = received};
  }
  bool is_local(Role r) const override { return r == Role::kExpand; }

 private:
  Tensor sum(const Tensor& partial) const {
    return raw::all_reduce(partial, mesh().comm("tensor"));
  }
};

}  // namespace

std::unique_ptr<TensorParallel> make_megatron_1d(const Mesh& mesh) {
  return std::make_unique<Megatron1d>(mesh);
}

}  // namespace kuafu
