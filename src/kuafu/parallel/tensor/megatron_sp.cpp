// SPDX-License-Identifier: Apache-2.0
//
// 1D tensor parallelism with sequence-parallel norms.
//                                           [Korthikanti et al., arXiv 2205.05198, section 4.2.2]
//
// Picture (p = 2). As 1D, but the residual stream is split along the sequence, so that norms,
// dropout and residuals are neither replicated in work nor in memory.
//
//   X (B, S/tensor, H)    expand W (H, F/tensor)    Y (B, S, F/tensor)
//   rank 0: X0            W0                        Y0 = [X0; X1] W0        (all-gather)
//   rank 1: X1            W1                        Y1 = [X0; X1] W1
//
//   Y (B, S, F/tensor)    contract W (F/tensor, H)    Z (B, S/tensor, H)
//   rank 0: Y0            W0                          Z0 of Y0 W0 + Y1 W1   (reduce-scatter)
//   rank 1: Y1            W1                          Z1
//
// Math, rank j; [.] gathers along S, (.)_j is sequence part j:
//   expand     Y[j] = [X] W[j]      dX_j = (sum_j dY[j] W[j]^T)_j      dW[j] = [X]^T dY[j]
//   contract   Z_j = (sum_j Y[j] W[j])_j     dY[j] = [dZ] W[j]^T       dW[j] = Y[j]^T [dZ]
//   Only shards are kept: X is gathered again for dW; a contract's backward gathers dZ once.
//
// Cost, elements received per rank, with |X|, |Z| the local shards of the residual stream:
//   expand (p-1)|X| forward, 2 (p-1)|X| backward; contract (p-1)|Z| forward, (p-1)|Z| backward.

#include "kuafu/parallel/tensor/interface.h"
#include "kuafu/parallel/tensor/products.h"
#include "kuafu/tensor/collectives.h"

namespace kuafu {
namespace {

constexpr int64_t kSeq = 1;  // dim of (B, S, H)

class MegatronSp : public TensorParallel {
 public:
  using TensorParallel::TensorParallel;

  Layout activation(Stream s) const override {
    return s == Stream::kOuter ? Layout{{{}, {"tensor"}, {}}} : Layout{{{}, {}, {"tensor"}}};
  }
  Layout weight(Role r) const override {
    return r == Role::kExpand ? Layout{{{}, {"tensor"}}} : Layout{{{"tensor"}, {}}};
  }

  Tensor forward(const Tensor& x, const Tensor& w, Role r) const override {
    return r == Role::kExpand ? multiply_rows(gather(x), w) : scatter_sum(multiply_rows(x, w));
  }
  Tensor input_grad(const Tensor& dy, const Tensor& w, Role r) const override {
    return r == Role::kExpand ? scatter_sum(multiply_rows(dy, w.t()))
                              : multiply_rows(gather(dy), w.t());
  }
  Tensor weight_grad(const Tensor& x, const Tensor& dy, Role r) const override {
    return r == Role::kExpand ? multiply_columns(gather(x), dy) : multiply_columns(x, gather(dy));
  }
  LinearGrads backward(const Tensor& x, const Tensor& w, const Tensor& dy, Role r) const override {
    if (r == Role::kExpand) return TensorParallel::backward(x, w, dy, r);
    const Tensor whole = gather(dy);
    return {multiply_rows(whole, w.t()), multiply_columns(x, whole)};
  }

  Cost cost(const LinearShape& s, Role r) const override {
    const int64_t turns = mesh().size("tensor") - 1;
    if (r == Role::kExpand) {
      return {.forward = turns * s.x,
              .backward = 2 * turns * s.x,
              .input_grad = turns * s.x,
              .weight_grad = turns * s.x};
    }
    return {.forward = turns * s.y,
            .backward = turns * s.y,
            .input_grad = turns * s.y,
            .weight_grad = turns * s.y};
  }

 private:
  Tensor gather(const Tensor& x) const { return raw::all_gather(x, mesh().comm("tensor"), kSeq); }
  Tensor scatter_sum(const Tensor& x) const {
    return raw::reduce_scatter(x, mesh().comm("tensor"), kSeq);
  }
};

}  // namespace

std::unique_ptr<TensorParallel> make_megatron_sp(const Mesh& mesh) {
  return std::make_unique<MegatronSp>(mesh);
}

}  // namespace kuafu
