// SPDX-License-Identifier: Apache-2.0
//
// 3D tensor parallelism: a matrix product in a cube of ranks.       [Bian et al., arXiv 2105.14450]
//
// Picture (q = 2). Activations and weights are cut three ways each: no rank holds a copy of
// anything. The two products of a pair exchange the roles of y and z.
//
//   expand     X (B/x.y, S, H/z)    W (H/z.x, F/y)    Y (B/x.z, S, F/y)
//   contract   Y (B/x.z, S, F/y)    W (F/y.x, H/z)    Z (B/x.y, S, H/z)
//
//        z            rank (x,y,z) multiplies block x of the batch, block z of the width in and
//       /             block y of the width out, as the cell of a cube: it gathers X along y and W
//      +-- y          along x, and what it has is one of the q parts of the sum over z.
//      |
//      x
//
// Math, with (in, out) = (y, z) for an expand and (z, y) for a contract; [.]_a gathers over axis a,
// (sum_a .)_a sums over a and keeps my part:
//   (1) Y  = (sum_out [X]_in [W]_x)_out         parts of the batch
//   (2) dX = (sum_in  [dY]_out [W]_x^T)_in      parts of the batch
//   (3) dW = (sum_x   [X]_in^T [dY]_out)_x      parts of the width in
//   X, W and Y come round in all three; only shards are kept, so they are gathered again.
//
// Cost, elements received per rank, |.| = local size = 1/P of the whole, with axes of q:
//   (1), (2), (3) each (q-1) (|X| + |W| + |Y|); (2) and (3) in one go share [dY]_out. A rank of P
//   receives P^(1/3) / P of everything: P^(-2/3).

#include "kuafu/parallel/tensor/interface.h"
#include "kuafu/parallel/tensor/products.h"
#include "kuafu/tensor/collectives.h"

namespace kuafu {
namespace {

constexpr int64_t kBatch = 0;  // dim of activations
constexpr int64_t kIn = 0;     // dim of weights

/// The axis my input is gathered over, and the one my output is summed over.
struct Ends {
  const char* in;
  const char* out;
};
Ends ends(Role r) { return r == Role::kExpand ? Ends{"y", "z"} : Ends{"z", "y"}; }

class Cube : public TensorParallel {
 public:
  using TensorParallel::TensorParallel;

  Layout activation(Stream s) const override {
    return s == Stream::kOuter ? Layout{{{"x", "y"}, {}, {"z"}}} : Layout{{{"x", "z"}, {}, {"y"}}};
  }
  Layout weight(Role r) const override {
    return r == Role::kExpand ? Layout{{{"z", "x"}, {"y"}}} : Layout{{{"y", "x"}, {"z"}}};
  }

  Tensor forward(const Tensor& x, const Tensor& w, Role r) const override {  // (1)
    const auto [in, out] = ends(r);
    return scatter_sum(multiply_rows(gather(x, in, kBatch), gather(w, "x", kIn)), out, kBatch);
  }
  Tensor input_grad(const Tensor& dy, const Tensor& w, Role r) const override {  // (2)
    return input_grad_of(gather(dy, ends(r).out, kBatch), w, r);
  }
  Tensor weight_grad(const Tensor& x, const Tensor& dy, Role r) const override {  // (3)
    return weight_grad_of(x, gather(dy, ends(r).out, kBatch), r);
  }
  LinearGrads backward(const Tensor& x, const Tensor& w, const Tensor& dy, Role r) const override {
    const Tensor whole = gather(dy, ends(r).out, kBatch);
    Tensor dx = input_grad_of(whole, w, r);
    return {dx, weight_grad_of(x, whole, r)};
  }

  Cost cost(const LinearShape& s, Role r) const override {
    const auto turns = [this](const char* axis) { return mesh().size(axis) - 1; };
    const auto [in, out] = ends(r);
    const int64_t x = turns(in) * s.x, w = turns("x") * s.w, y = turns(out) * s.y;
    const int64_t each = x + w + y;
    return {.forward = each, .backward = 2 * each - y, .input_grad = each, .weight_grad = each};
  }

 private:
  Tensor input_grad_of(const Tensor& whole_dy, const Tensor& w, Role r) const {
    return scatter_sum(multiply_rows(whole_dy, gather(w, "x", kIn).t()), ends(r).in, kBatch);
  }
  Tensor weight_grad_of(const Tensor& x, const Tensor& whole_dy, Role r) const {
    return scatter_sum(multiply_columns(gather(x, ends(r).in, kBatch), whole_dy), "x", kIn);
  }
  Tensor gather(const Tensor& t, const char* axis, int64_t dim) const {
    return raw::all_gather(t, mesh().comm(axis), dim);
  }
  Tensor scatter_sum(const Tensor& t, const char* axis, int64_t dim) const {
    return raw::reduce_scatter(t, mesh().comm(axis), dim);
  }
};

}  // namespace

std::unique_ptr<TensorParallel> make_cube_3d(const Mesh& mesh) {
  return std::make_unique<Cube>(mesh);
}

}  // namespace kuafu
