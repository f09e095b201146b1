// SPDX-License-Identifier: Apache-2.0
//
// What every model is made of, under a scheme against serial: values and all gradients.

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>

#include "kuafu/conformance/subject.h"
#include "kuafu/parallel/tensor/layers.h"
#include "kuafu/parallel/tensor/norms.h"

namespace kuafu::conformance {
namespace {

/// A differentiable input: an activation, or a parameter that meets the stream `meets`.
struct Leaf {
  std::string name;
  Shape global;
  Layout layout;
  Axes grad_axes = {};
};

/// A layer on one rank. A scalar output (no shape) is partial over the axes of `out_layout`.
struct Layer {
  std::vector<Leaf> leaves;
  Layout out_layout;
  Shape out_shape;
  std::function<Tensor(const Tensors&)> call;
};

/// A layer, the longest sum in it, and whether its output has the bits of one rank.
struct Case {
  std::string name;
  std::function<Layer(const TensorParallel&)> make;
  int64_t longest = 1;
  bool is_exact = false;
};

/// Whole output and whole gradients, by leaf.
struct Outcome {
  Tensor y;
  Tensors grads;
};

Outcome evaluate(const TensorParallel& tp, const Layer& layer) {
  std::vector<Param> params;
  Tensors leaves;
  for (const Leaf& leaf : layer.leaves) {
    params.push_back(shard(leaf.name, leaf.global, leaf.layout, tp.mesh(), leaf.grad_axes));
    leaves.push_back(params.back().value);
  }
  Outcome out;
  const Tensor y = layer.call(leaves);
  if (layer.out_shape.empty()) {
    torch::autograd::backward({y}, {at::ones_like(y)});
    out.y = y.detach().clone();
    sum_over(tp.mesh(), layer.out_layout.all_axes(), out.y);
  } else {
    const Param dy = shard("dy", layer.out_shape, layer.out_layout, tp.mesh());
    torch::autograd::backward({y}, {dy.value.detach()});
    out.y = gather_param(dy, y.detach(), tp.mesh());
  }
  const at::NoGradGuard no_grad;
  for (const Param& p : params) {
    const Tensor grad = p.value.grad().clone();
    sum_over(tp.mesh(), p.grad_axes, grad);
    out.grads.push_back(gather_param(p, grad, tp.mesh()));
  }
  return out;
}

Leaf parameter(const TensorParallel& tp, const std::string& name, const Shape& global,
               const Layout& layout, Stream meets) {
  return {name, global, layout, grad_axes(tp.activation(meets), layout)};
}

Leaf outer(const TensorParallel& tp, const LayerShape& e) {
  return {"x", {e.b, e.s, e.h}, tp.activation(Stream::kOuter)};
}

TokenGrid grid(const TensorParallel& tp, Stream s, const LayerShape& e) {
  return {tp.activation(s), e.b, e.s};
}

/// The axes that shard tokens: what a loss is partial over.
Layout tokens_of(const TensorParallel& tp, Stream s) {
  const Layout a = tp.activation(s);
  return {{a.dims[0], a.dims[1]}};
}

Case linear_case(const LayerShape& e, Role r) {
  const int64_t k = r == Role::kExpand ? e.h : e.f, m = r == Role::kExpand ? e.f : e.h;
  const auto make = [=](const TensorParallel& tp) -> Layer {
    const Stream in = input_of(r), out = output_of(r);
    return {{{"x", {e.b, e.s, k}, tp.activation(in)},
             parameter(tp, "w", {k, m}, tp.weight(r), in),
             parameter(tp, "b", {m}, last_dim(tp, out), out)},
            tp.activation(out),
            {e.b, e.s, m},
            [&tp, r](const Tensors& t) { return linear(tp, t[0], t[1], t[2], r); }};
  };
  return {r == Role::kExpand ? "expand with bias" : "contract with bias", make,
          std::max({e.b * e.s, k, m})};
}

Case norm_case(const LayerShape& e) {
  const auto make = [e](const TensorParallel& tp) -> Layer {
    const Layout vector = last_dim(tp, Stream::kOuter);
    return {{outer(tp, e), parameter(tp, "w", {e.h}, vector, Stream::kOuter),
             parameter(tp, "b", {e.h}, vector, Stream::kOuter)},
            tp.activation(Stream::kOuter),
            {e.b, e.s, e.h},
            [&tp, e](const Tensors& t) {
              const Normed n = layer_norm_with_input(tp, t[0], t[1], t[2], e.h, 1e-5);
              return n.x + n.y;
            }};
  };
  return {"layer norm and its input", make, 3 * std::max(e.b * e.s, e.h)};  // three sums in a row
}

// Both uses of x have gradients, which the norm's backward adds.
Case rms_case(const LayerShape& e) {
  const auto make = [e](const TensorParallel& tp) -> Layer {
    const Layout vector = last_dim(tp, Stream::kOuter);
    return {{outer(tp, e), parameter(tp, "w", {e.h}, vector, Stream::kOuter)},
            tp.activation(Stream::kOuter),
            {e.b, e.s, e.h},
            [&tp, e](const Tensors& t) {
              const Normed n = rms_norm_with_input(tp, t[0], t[1], e.h, 1e-5);
              return n.x + n.y;
            }};
  };
  return {"RMS norm and its input", make, 3 * std::max(e.b * e.s, e.h)};
}

// One rank owns a token's row and the others add zeros: exact. So are the position rows.
Case embedding_case(const LayerShape& e) {
  const auto make = [e](const TensorParallel& tp) -> Layer {
    const Layout table = tp.weight(Role::kContract);
    return {{parameter(tp, "table", {e.v, e.h}, table, Stream::kOuter)},
            tp.activation(Stream::kOuter),
            {e.b, e.s, e.h},
            [&tp, e, table](const Tensors& t) {
              return embedding(tp.mesh(), ids(e.b, e.s, e.v, 1), t[0], table,
                               grid(tp, Stream::kOuter, e));
            }};
  };
  return {"embedding of a padded vocabulary", make, e.b * e.s, true};
}

Case positions_case(const LayerShape& e) {
  const auto make = [e](const TensorParallel& tp) -> Layer {
    const Layout table{{{}, tp.activation(Stream::kOuter).dims[2]}};
    return {{outer(tp, e), parameter(tp, "table", {e.s, e.h}, table, Stream::kOuter)},
            tp.activation(Stream::kOuter),
            {e.b, e.s, e.h},
            [&tp, e](const Tensors& t) {
              return add_positions(tp.mesh(), t[0], t[1], grid(tp, Stream::kOuter, e));
            }};
  };
  return {"positions", make, e.b, true};
}

// The mask is that of one rank, bit for bit.
Case dropout_case(const LayerShape& e) {
  const auto make = [e](const TensorParallel& tp) -> Layer {
    return {
        {outer(tp, e)}, tp.activation(Stream::kOuter), {e.b, e.s, e.h}, [&tp, e](const Tensors& t) {
          const DropoutSite site{.p = 0.3, .seed = 3, .site = 17, .step = 2, .first_sample = 5};
          return dropout(tp.mesh(), t[0], site, e.h, grid(tp, Stream::kOuter, e));
        }};
  };
  return {"dropout", make, 0, true};
}

/// A target of every kind: ignored, the last id, any.
Tensor targets_of(const LayerShape& e) {
  const Tensor targets = ids(e.b, e.s, e.v, 2);
  targets[e.b - 1][0] = e.v - 1;
  if (e.s > 1) targets[0][1] = -1;
  return targets;
}

Case loss_case(const LayerShape& e) {
  const auto make = [e](const TensorParallel& tp) -> Layer {
    return {{{"logits", {e.b, e.s, e.v}, tp.activation(Stream::kInner)}},
            tokens_of(tp, Stream::kInner),
            {},
            [&tp, e](const Tensors& t) {
              return cross_entropy(tp.mesh(), t[0], targets_of(e), 1.0, e.v,
                                   grid(tp, Stream::kInner, e));
            }};
  };
  return {"cross entropy over a padded vocabulary", make, e.v + e.b * e.s};
}

// The logits are padded as the table is; the loss masks what the table has no rows for.
Case head_case(const LayerShape& e) {
  const auto make = [e](const TensorParallel& tp) -> Layer {
    const Layout table = tp.weight(Role::kContract);
    return {{outer(tp, e), parameter(tp, "table", {e.v, e.h}, table, Stream::kOuter)},
            tokens_of(tp, Stream::kInner),
            {},
            [&tp, e](const Tensors& t) {
              return cross_entropy(tp.mesh(), tied_head(tp, t[0], t[1]), targets_of(e), 1.0, e.v,
                                   grid(tp, Stream::kInner, e));
            }};
  };
  return {"tied head and its loss", make, e.h + e.v + e.b * e.s};
}

/// Closed form: the loss of logits that are all equal is ln(vocab) a token, whatever the padding.
double loss_of_equal_logits(const TensorParallel& tp, const LayerShape& e) {
  const Param p = shard("logits", {e.b, e.s, e.v}, tp.activation(Stream::kInner), tp.mesh());
  const at::NoGradGuard no_grad;
  const Tensor loss =
      cross_entropy(tp.mesh(), at::full_like(p.value, 2.5), ids(e.b, e.s, e.v, 2),
                    1.0 / static_cast<double>(e.b * e.s), e.v, grid(tp, Stream::kInner, e))
          .clone();
  sum_over(tp.mesh(), tokens_of(tp, Stream::kInner).all_axes(), loss);
  return loss.item<double>();
}

}  // namespace

void check_layers(const Subject& subject, const LayerShape& e, Notes& notes) {
  const SerialScheme serial;
  const std::vector<Case> cases = {linear_case(e, Role::kExpand),
                                   linear_case(e, Role::kContract),
                                   norm_case(e),
                                   embedding_case(e),
                                   positions_case(e),
                                   dropout_case(e),
                                   loss_case(e),
                                   head_case(e),
                                   rms_case(e)};
  std::vector<Outcome> expected;
  for (const Case& c : cases) expected.push_back(evaluate(*serial, c.make(*serial)));
  subject.on_ranks([&](const TensorParallel& tp, MeshRank& me) {
    const std::string where = " on " + me.mesh.describe();
    for (size_t i = 0; i < cases.size(); ++i) {
      const Case& c = cases[i];
      const Outcome mine = evaluate(tp, c.make(tp));
      notes.expect_close(mine.y, expected[i].y, c.is_exact ? 0 : tolerance(c.longest),
                         c.name + where);
      for (size_t g = 0; g < mine.grads.size(); ++g) {
        notes.expect_close(mine.grads[g], expected[i].grads[g], tolerance(c.longest),
                           text("gradient of input ", g, " of ", c.name, where));
      }
    }
    const double far = loss_of_equal_logits(tp, e) / std::log(static_cast<double>(e.v)) - 1;
    notes.expect(std::abs(far) <= tolerance(e.v + e.b * e.s), "loss of equal logits", where,
                 ": relative error ", far);
  });
}

}  // namespace kuafu::conformance
