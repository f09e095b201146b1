// SPDX-License-Identifier: Apache-2.0
//
// The three products of a scheme against the serial ones, and their traffic against cost().

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include "kuafu/conformance/subject.h"
#include "kuafu/parallel/tensor/embedding.h"

namespace kuafu::conformance {
namespace {

/// What is done to each element of the inputs.
using OfInputs = std::function<Tensor(const Tensor& x)>;

/// One linear layer's tensors on one rank: x (B, S, K), w (K, M), dy (B, S, M).
struct Linear {
  Linear(const TensorParallel& tp, const LayerShape& e, Role role, const OfInputs& change = {})
      : r(role),
        k(role == Role::kExpand ? e.h : e.f),
        m(role == Role::kExpand ? e.f : e.h),
        x(shard("x", {e.b, e.s, k}, tp.activation(input_of(r)), tp.mesh())),
        w(shard("w", {k, m}, tp.weight(r), tp.mesh(),
                grad_axes(tp.activation(input_of(r)), tp.weight(r)))),
        dy(shard("dy", {e.b, e.s, m}, tp.activation(output_of(r)), tp.mesh())) {
    if (!change) return;
    for (Param* p : {&x, &w, &dy}) p->value = change(p->value.detach());
  }

  Role r;
  int64_t k, m;
  Param x, w, dy;
  at::NoGradGuard no_grad;  // schemes are never called under recording
};

/// Whole results, gradients summed over the ranks they are partial over.
struct Whole {
  Tensor y, dx, dw;
};

Whole run_linear(const TensorParallel& tp, const LayerShape& e, Role r,
                 const OfInputs& change = {}) {
  const Linear l(tp, e, r, change);
  const Tensor y = tp.forward(l.x.value, l.w.value, r);
  const LinearGrads g = tp.backward(l.x.value, l.w.value, l.dy.value, r);
  sum_over(tp.mesh(), l.w.grad_axes, g.dw);
  return {gather_param(l.dy, y, tp.mesh()), gather_param(l.x, g.dx, tp.mesh()),
          gather_param(l.w, g.dw, tp.mesh())};
}

std::string name_of(Role r, const Mesh& mesh) {
  return text(" of a", r == Role::kExpand ? "n expand" : " contract", " layer on ",
              mesh.describe());
}

constexpr Role kRoles[] = {Role::kExpand, Role::kContract};

/// Runs and compares the elements (f64) received with what a formula says.
void expect_received(MeshRank& me, Notes& notes, const std::string& what, int64_t expected,
                     const std::function<void()>& run) {
  me.ledger.clear();
  run();
  const int64_t received = me.received() / 8;
  notes.expect(received == expected, what, " on ", me.mesh.describe(), " receives ", received,
               " elements, its cost says ", expected);
}

void check_embedding_traffic(const TensorParallel& tp, MeshRank& me, const LayerShape& e,
                             Notes& notes) {
  const Layout layout = tp.weight(Role::kContract);
  const TokenGrid grid{tp.activation(Stream::kOuter), e.b, e.s};
  const Param table = shard("table", {e.v, e.h}, layout, tp.mesh());
  const Param dy = shard("dy", {e.b, e.s, e.h}, grid.activation, tp.mesh());
  const Cost cost = embedding_cost(tp.mesh(), table.global, layout, grid);
  Tensor y;
  expect_received(me, notes, "embedding", cost.forward, [&] {
    y = embedding(tp.mesh(), ids(e.b, e.s, e.v, 1), table.value, layout, grid);
  });
  expect_received(me, notes, "gradient of the embedding", cost.backward,
                  [&] { torch::autograd::backward({y}, {dy.value.detach()}); });
}

}  // namespace

void check_products(const Subject& subject, const LayerShape& e, Notes& notes) {
  const SerialScheme serial;
  for (const Role r : kRoles) {
    const Whole expected = run_linear(*serial, e, r);
    const int64_t k = r == Role::kExpand ? e.h : e.f, m = r == Role::kExpand ? e.f : e.h;
    subject.on_ranks([&](const TensorParallel& tp, MeshRank& me) {
      const Whole mine = run_linear(tp, e, r);
      const std::string where = name_of(r, me.mesh);
      notes.expect_close(mine.y, expected.y, tolerance(k), "output" + where);
      notes.expect_close(mine.dx, expected.dx, tolerance(m), "input gradient" + where);
      notes.expect_close(mine.dw, expected.dw, tolerance(e.b * e.s), "weight gradient" + where);
    });
  }
}

/// A result of 8 or 11 bits is rounded once on each rank and once with each sum of two ranks' parts,
/// where those are summed in that type: at most 2 p halves of a unit of the terms that it sums, one
/// more for products that are summed in it by LibTorch's own kernels.
void check_half(const Subject& subject, const LayerShape& e, Notes& notes) {
  const SerialScheme serial;
  for (const auto& [type, unit] : {std::pair{at::kBFloat16, 0x1.0p-8}, {at::kHalf, 0x1.0p-11}}) {
    const auto rounded = [type = type](const Tensor& x) { return x.to(type); };
    const auto exact = [&](const Tensor& x) { return rounded(x).to(at::kDouble); };
    const auto terms = [&](const Tensor& x) { return exact(x).abs(); };
    const double limit = unit * static_cast<double>(subject.ranks() + 1);
    for (const Role r : kRoles) {
      const Whole expected = run_linear(*serial, e, r, exact);
      const Whole sizes = run_linear(*serial, e, r, terms);
      subject.on_ranks([&](const TensorParallel& tp, MeshRank& me) {
        const Whole mine = run_linear(tp, e, r, rounded);
        const auto expect = [&](const char* what, Tensor Whole::*part) {
          const Tensor far = ((mine.*part).to(at::kDouble) - expected.*part).abs();
          const Tensor share = far / (sizes.*part);
          const double most = share.numel() == 0 ? 0 : share.max().item<double>();
          notes.expect(most <= limit, what, " in ", c10::toString(type), name_of(r, me.mesh),
                       " is off by ", most, " of the terms it sums, tolerance ", limit);
        };
        expect("output", &Whole::y);
        expect("input gradient", &Whole::dx);
        expect("weight gradient", &Whole::dw);
      });
    }
  }
}

void check_gradients(const Subject& subject, const LayerShape& e, Notes& notes) {
  for (const Role r : kRoles) {
    subject.on_ranks([&](const TensorParallel& tp, MeshRank& me) {
      const Linear l(tp, e, r);
      const Tensor &x = l.x.value, &w = l.w.value, &dy = l.dy.value;
      const std::string where = name_of(r, me.mesh);
      const LinearGrads both = tp.backward(x, w, dy, r);
      notes.expect_same(tp.input_grad(dy, w, r), both.dx, "input gradient apart" + where);
      notes.expect_same(tp.weight_grad(x, dy, r), both.dw, "weight gradient apart" + where);
      notes.expect_same(tp.forward(x, w, r), tp.forward(x, w, r), "second forward" + where);
    });
  }
}

void check_traffic(const Subject& subject, const LayerShape& e, Notes& notes) {
  for (const Role r : kRoles) {
    subject.on_ranks([&](const TensorParallel& tp, MeshRank& me) {
      const Linear l(tp, e, r);
      const Tensor &x = l.x.value, &w = l.w.value, &dy = l.dy.value;
      const Cost cost = tp.cost({x.numel(), w.numel(), dy.numel()}, r);
      const std::string of = r == Role::kExpand ? " of an expand" : " of a contract";
      const auto expect = [&](const char* product, int64_t expected, const auto& run) {
        expect_received(me, notes, product + of, expected, run);
      };
      expect("forward", cost.forward, [&] { tp.forward(x, w, r); });
      expect("backward", cost.backward, [&] { tp.backward(x, w, dy, r); });
      expect("input gradient", cost.input_grad, [&] { tp.input_grad(dy, w, r); });
      expect("weight gradient", cost.weight_grad, [&] { tp.weight_grad(x, dy, r); });
    });
  }
  subject.on_ranks(
      [&](const TensorParallel& tp, MeshRank& me) { check_embedding_traffic(tp, me, e, notes); });
}

void check_shards(const Subject& subject, const LayerShape& e, Notes& notes) {
  subject.on_ranks([&](const TensorParallel& tp, MeshRank& me) {
    const at::NoGradGuard no_grad;
    const Mesh alone({}, 0);
    const auto round_trip = [&](const char* what, const Shape& global, const Layout& layout) {
      const Layout whole = Layout::replicated(global.size());
      const Tensor expected = shard("p", global, whole, alone).value;
      const Param p = shard("p", global, layout, tp.mesh());
      const std::string where =
          text(what, " ", kuafu::to_string(global), " on ", me.mesh.describe());
      notes.expect_same(gather_param(p, p.value, tp.mesh()), expected, "gathered " + where);
      notes.expect_same(scatter_param(p, expected, tp.mesh()), p.value, "scattered " + where);
    };
    round_trip("expand weight", {e.h, e.f}, tp.weight(Role::kExpand));
    round_trip("contract weight", {e.f, e.h}, tp.weight(Role::kContract));
    round_trip("outer activation", {e.b, e.s, e.h}, tp.activation(Stream::kOuter));
    round_trip("inner activation", {e.b, e.s, e.f}, tp.activation(Stream::kInner));
    round_trip("outer vector", {e.h}, last_dim(tp, Stream::kOuter));
    round_trip("inner vector", {e.f}, last_dim(tp, Stream::kInner));
    round_trip("padded table", {e.v, e.h}, tp.weight(Role::kContract));
  });
}

}  // namespace kuafu::conformance
