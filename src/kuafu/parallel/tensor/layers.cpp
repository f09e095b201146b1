// SPDX-License-Identifier: Apache-2.0
#include "kuafu/parallel/tensor/layers.h"

#include <ATen/ATen.h>

#include "kuafu/meter/book.h"
#include "kuafu/parallel/tensor/products.h"
#include "kuafu/tensor/collectives.h"
#include "kuafu/tensor/differentiable.h"
#include "kuafu/tensor/ops.h"
#include "kuafu/tensor/ops/bias.h"
#include "kuafu/tensor/root_gradient.h"
#include "kuafu/tensor/scale.h"
#include "kuafu/tensor/weight_grads.h"

namespace kuafu {
namespace {

/// The box of (B, S) that this rank holds.
Slice token_slice(const Mesh& mesh, const TokenGrid& grid) {
  return my_slice({{grid.activation.dims[0], grid.activation.dims[1]}}, {grid.batch, grid.sequence},
                  mesh, "tokens");
}

/// Replaces x by `combine` over each axis of the vocabulary, one after the other.
void all_reduce_axes(const Mesh& mesh, const Tensor& x, const Axes& axes, ReduceOp op) {
  for (const std::string& axis : axes) raw::all_reduce(x, mesh.comm(axis), op);
}

}  // namespace

Tensor local_tokens(const Mesh& mesh, const Tensor& ids, const TokenGrid& grid) {
  const Slice s = token_slice(mesh, grid);
  return ids.narrow(0, s.offset[0], s.extent[0]).narrow(1, s.offset[1], s.extent[1]).contiguous();
}

Slice local_slice(const Mesh& mesh, const TokenGrid& grid) { return token_slice(mesh, grid); }

std::vector<TokenRun> token_runs(const Mesh& mesh, const TokenGrid& grid) {
  const Slice s = token_slice(mesh, grid);
  const int64_t first = s.offset[1], length = s.extent[1];
  if (grid.order == nullptr) return {{0, first, length}};
  std::vector<TokenRun> runs;
  for (int64_t i = 0; i < length; ++i) {
    const int64_t position = (*grid.order)[static_cast<size_t>(first + i)];
    const bool goes_on = !runs.empty() && runs.back().position + runs.back().length == position;
    if (!goes_on) runs.push_back({i, position, 0});
    ++runs.back().length;
  }
  return runs;
}

std::vector<int64_t> local_positions(const Mesh& mesh, const TokenGrid& grid) {
  std::vector<int64_t> positions;
  for (const TokenRun& run : token_runs(mesh, grid)) {
    for (int64_t i = 0; i < run.length; ++i) positions.push_back(run.position + i);
  }
  return positions;
}

namespace {

std::string described(const Tensor& t) {
  if (!t.defined()) return "no tensor";
  return text(t.scalar_type(), " ", to_string(shape_of(t)),
              t.is_cpu() || t.is_cuda() ? "" : text(" on ", t.device()));
}

/// `dw` as it lies in `w`, whose type and shape it is held to: a scheme may be a plug-in's.
Tensor gradient_of(const Tensor& w, const Tensor& dw) {
  const bool is_right = dw.defined() && dw.sizes() == w.sizes() &&
                        dw.scalar_type() == w.scalar_type() && dw.device() == w.device();
  KUAFU_REQUIRE(is_right, "the tensor mode's weight_grad gave ", described(dw), " for a weight, ",
                described(w));
  return (dw.is_neg() ? dw.resolve_neg() : dw).contiguous();
}

/// The gradient of `x`, held to it likewise.
Tensor input_gradient_of(const Tensor& x, const Tensor& dx) {
  const bool is_right = dx.defined() && dx.sizes() == x.sizes() &&
                        dx.scalar_type() == x.scalar_type() && dx.device() == x.device();
  KUAFU_REQUIRE(is_right, "the tensor mode's product gave ", described(dx),
                " for the gradient of an input, ", described(x));
  return dx;
}

/// The product of `x`, held to its type and to the bias that is added to it.
Tensor product_of(const Tensor& x, const Tensor& y, const Tensor& bias) {
  const bool is_right = y.defined() && y.dim() == x.dim() && y.scalar_type() == x.scalar_type() &&
                        y.device() == x.device() && (!bias.defined() || y.size(-1) == bias.size(0));
  KUAFU_REQUIRE(is_right, "the tensor mode's product of ", described(x), " gave ", described(y),
                bias.defined() ? text(" for a bias ", described(bias)) : "");
  return y;
}

}  // namespace

Tensor linear(const TensorParallel& tp, const Tensor& x, const Tensor& w, const Tensor& bias,
              Role r) {
  const Forward forward = [&](const Tensors& in) -> ForwardResult {
    if (in[2].defined() && tp.is_local(r)) {
      return {{multiply_rows(in[0], in[1], in[2])}, {in[0], in[1]}};
    }
    Tensor y = product_of(in[0], tp.forward(in[0], in[1], r), in[2]);
    if (in[2].defined()) ops::add_bias(y, in[2]);
    return {{y}, {in[0], in[1]}};
  };
  const Backward backward = [&tp, r](const Tensors& saved, const Tensors& grads,
                                     const std::vector<bool>& needs) -> Tensors {
    const Tensor dy = grads[0].contiguous();
    LinearGrads g;
    if (WeightGrads* later = weight_grads_for(saved[1])) {
      later->add(saved[1], [&tp, r, dy, x = saved[0].detach(), w = saved[1].detach()] {
        return gradient_of(w, tp.weight_grad(x, dy, r));
      });
      if (needs[0]) g.dx = input_gradient_of(saved[0], tp.input_grad(dy, saved[1], r));
    } else if (needs[0]) {
      g = tp.backward(saved[0], saved[1], dy, r);
      g.dx = input_gradient_of(saved[0], g.dx);
      g.dw = gradient_of(saved[1], g.dw);
    } else {
      g.dw = gradient_of(saved[1], tp.weight_grad(saved[0], dy, r));
    }
    return {g.dx, g.dw, needs[2] ? ops::sum_rows(dy) : Tensor()};
  };
  return differentiable({x, w, bias}, forward, backward)[0];
}

Tensor tied_head(const TensorParallel& tp, const Tensor& x, const Tensor& table,
                 const Tensor& bias) {
  const Forward forward = [&](const Tensors& in) -> ForwardResult {
    Tensor logits = product_of(in[0], tp.input_grad(in[0], in[1], Role::kContract), in[2]);
    if (in[2].defined()) ops::add_bias(logits, in[2]);
    return {{logits}, {in[0], in[1]}};
  };
  const Backward backward = [&tp](const Tensors& saved, const Tensors& grads,
                                  const std::vector<bool>& needs) -> Tensors {
    const Tensor dlogits = grads[0].contiguous();
    Tensor dtable;
    const Tensor dx = input_gradient_of(saved[0], tp.forward(dlogits, saved[1], Role::kContract));
    if (WeightGrads* later = weight_grads_for(saved[1])) {
      later->add(saved[1], [&tp, dlogits, x = saved[0].detach(), w = saved[1].detach()] {
        return gradient_of(w, tp.weight_grad(dlogits, x, Role::kContract));
      });
    } else {
      dtable = gradient_of(saved[1], tp.weight_grad(dlogits, saved[0], Role::kContract));
    }
    return {dx, dtable, needs[2] ? ops::sum_rows(dlogits) : Tensor()};
  };
  return differentiable({x, table, bias}, forward, backward)[0];
}

Tensor add_positions(const Mesh& mesh, const Tensor& x, const Tensor& table, const TokenGrid& grid,
                     int64_t first) {
  std::vector<TokenRun> runs = token_runs(mesh, grid);
  for (TokenRun& run : runs) run.position += first;
  const Forward forward = [&](const Tensors& in) -> ForwardResult {
    Tensors rows;
    for (const TokenRun& run : runs) rows.push_back(in[1].narrow(0, run.position, run.length));
    return {{in[0] + (rows.size() == 1 ? rows[0] : at::cat(rows, 0))}, {}};
  };
  const Backward backward = [runs, shape = table.sizes().vec()](
                                const Tensors&, const Tensors& grads,
                                const std::vector<bool>&) -> Tensors {
    Tensor dtable = at::zeros(shape, grads[0].options());
    const Tensor sum = grads[0].sum(0);
    for (const TokenRun& run : runs) {
      dtable.narrow(0, run.position, run.length).copy_(sum.narrow(0, run.place, run.length));
    }
    return {grads[0], dtable};
  };
  return differentiable({x, table}, forward, backward)[0];
}

Tensor cross_entropy(const Mesh& mesh, const Tensor& logits, const Tensor& targets, double scale,
                     int64_t vocab, const TokenGrid& grid) {
  const Axes axes = grid.activation.dims[2];
  const Tensor mine = local_tokens(mesh, targets, grid);
  const int64_t first = mesh.coord(axes) * logits.size(2);
  const Forward forward = [&](const Tensors& in) -> ForwardResult {
    auto [top, sumexp, target] = ops::cross_entropy_stats(in[0], mine, first, vocab);
    if (mesh.size(axes) > 1) {
      const Tensor local_top = top.clone();
      all_reduce_axes(mesh, top, axes, ReduceOp::kMax);
      sumexp.mul_((local_top - top).exp_());
      all_reduce_axes(mesh, sumexp, axes, ReduceOp::kSum);
      all_reduce_axes(mesh, target, axes, ReduceOp::kSum);
    }
    // A sure target is the largest: what is left of it is not rounded to multiples of u |top|.
    const Tensor loss = (sumexp.log() + (top - target)).sum();
    kuafu::scale(loss, scale);
    return {{loss}, {in[0], top, sumexp}};
  };
  const Backward backward = [mine, scale, first, vocab](const Tensors& saved, const Tensors&,
                                                        const std::vector<bool>&) -> Tensors {
    // The root of its backward call: the incoming gradient is root_gradient() by construction.
    return {ops::cross_entropy_backward(saved[0], mine, saved[1], saved[2], scale * root_gradient(),
                                        first, vocab)};
  };
  return differentiable({logits}, forward, backward)[0];
}

Tensor dropout(const Mesh& mesh, const Tensor& x, const DropoutSite& site, int64_t hidden,
               const TokenGrid& grid) {
  if (site.p == 0) return x;
  // The global batch of the mask starts at the micro-batch's first sample, so that neither data
  // parallelism nor accumulation changes a sample's bits.
  ops::DropoutKey key{.seed = site.seed, .site = site.site, .step = site.step};
  const Slice s = my_slice(grid.activation, {grid.batch, grid.sequence, hidden}, mesh, "dropout");
  key.global = {site.first_sample + grid.batch, grid.sequence, hidden};
  key.offset = {site.first_sample + s.offset[0], 0, s.offset[2]};
  const auto drop = [p = site.p, key, runs = token_runs(mesh, grid)](const Tensor& t) {
    Tensors parts;
    for (const TokenRun& run : runs) {
      ops::DropoutKey here = key;
      here.offset[1] = run.position;
      parts.push_back(ops::dropout(t.narrow(1, run.place, run.length).contiguous(), p, here));
    }
    return parts.size() == 1 ? parts[0] : at::cat(parts, 1);
  };
  const Forward forward = [&](const Tensors& in) -> ForwardResult { return {{drop(in[0])}, {}}; };
  const Backward backward = [drop](const Tensors&, const Tensors& grads,
                                   const std::vector<bool>&) -> Tensors {
    return {drop(grads[0])};
  };
  return differentiable({x}, forward, backward)[0];
}

}  // namespace kuafu
