// SPDX-License-Identifier: Apache-2.0
//
// Tesseract: 2.5D tensor parallelism on a (dep d) x (row q) x (col q) mesh. d = 1 is 2D SUMMA.
//                                 [Wang et al., arXiv 2105.14500; Xu et al., arXiv 2104.05343]
//
// Picture (q = 2, d = 2). Each depth layer is a SUMMA grid; layers share W and split the batch.
//
//   X (B/dep.row, S, H/col)        W (H/row, F/col), same on every dep     Y (B/dep.row, S, F/col)
//   dep 0: X00 X01                 W00 W01                                 Y00 Y01
//          X10 X11                 W10 W11                                 Y10 Y11
//   dep 1: X20 X21                 W00 W01                                 Y20 Y21
//          X30 X31                 W10 W11                                 Y30 Y31
//
// Math, for batch block m = (dep, row) and column block j:
//   (1) Y[m,j]  = sum_t X[m,t] W[t,j]       turn t: X[m,t] along its row, W[t,j] down its column
//   (2) dX[m,t] = sum_j dY[m,j] W[t,j]^T    turn t: W[t,j] down its column, partials reduced along
//                                           the row
//   (3) dW[t,j] = sum_m X[m,t]^T dY[m,j]    turn t: X[m,t] along its row, partials reduced down the
//                                           column; the sum over dep is left to gradient sync:
//                                           grad_axes(W) = {dep}
//
// Cost, elements received per rank, |.| = local size:
//   (1) (q-1)(|X| + |W|)     (2) (q-1)(|W| + |X|)     (3) (q-1)(|X| + |W|)
// For a fixed rank count a deeper d means less traffic and more copies of W.

#include "kuafu/parallel/tensor/interface.h"
#include "kuafu/parallel/tensor/products.h"
#include "kuafu/tensor/collectives.h"
#include "kuafu/tensor/ops.h"

namespace kuafu {
namespace {

class Tesseract : public TensorParallel {
 public:
  explicit Tesseract(const Mesh& mesh)
      : TensorParallel(mesh), q_(mesh.size("row")), i_(mesh.coord("row")), j_(mesh.coord("col")) {
    KUAFU_REQUIRE(mesh.size("row") == mesh.size("col"), "2.5D needs a square row x col grid, got ",
                  mesh.describe());
  }

  Layout activation(Stream) const override { return {{{"dep", "row"}, {}, {"col"}}}; }
  Layout weight(Role) const override { return {{{"row"}, {"col"}}}; }

  Tensor forward(const Tensor& x, const Tensor& w, Role) const override {  // (1)
    Tensor y;
    for (int64_t t = 0; t < q_; ++t) {
      const Tensor left = rows(along_row(x, t)), right = down_col(w, t);
      if (t == 0) {
        y = ops::matmul(left, right);
      } else {
        ops::matmul_add(y, left, right);
      }
    }
    return y.view({x.size(0), x.size(1), w.size(1)});
  }

  Tensor input_grad(const Tensor& dy, const Tensor& w, Role) const override {  // (2)
    Tensor dx;
    for (int64_t t = 0; t < q_; ++t) {
      const Tensor partial = multiply_rows(dy, down_col(w, t).t());
      raw::reduce(partial, row_group(), t);
      if (j_ == t) dx = partial;
    }
    return dx;
  }

  Tensor weight_grad(const Tensor& x, const Tensor& dy, Role) const override {  // (3)
    Tensor dw;
    for (int64_t t = 0; t < q_; ++t) {
      const Tensor partial = multiply_columns(along_row(x, t), dy);
      raw::reduce(partial, col_group(), t);
      if (i_ == t) dw = partial;
    }
    return dw;
  }

  Cost cost(const LinearShape& s, Role) const override {
    const int64_t turns = q_ - 1;
    return {.forward = turns * (s.x + s.w),
            .backward = 2 * turns * s.w + turns * 2 * s.x,
            .input_grad = turns * (s.w + s.x),
            .weight_grad = turns * (s.x + s.w)};
  }

 private:
  // Moving along a row of the grid means changing column, and vice versa.
  Communicator& row_group() const { return mesh().comm("col"); }
  Communicator& col_group() const { return mesh().comm("row"); }
  Tensor along_row(const Tensor& x, int64_t t) const { return raw::broadcast(x, row_group(), t); }
  Tensor down_col(const Tensor& w, int64_t t) const { return raw::broadcast(w, col_group(), t); }

  int64_t q_, i_, j_;  // grid side, my row, my column
};

}  // namespace

std::unique_ptr<TensorParallel> make_tesseract_2p5d(const Mesh& mesh) {
  return std::make_unique<Tesseract>(mesh);
}

}  // namespace kuafu
