// SPDX-License-Identifier: Apache-2.0
#include "kuafu/tensor/collectives.h"

#include <ATen/ATen.h>

#include "kuafu/base/errors.h"
#include "kuafu/meter/allocator.h"
#include "kuafu/tensor/differentiable.h"

namespace kuafu {
namespace {

/// Tags of messages that collectives.cpp sends itself.
constexpr int kShiftTag = 0x5f1;

/// The extent of a part, refused before any communication where n does not divide the dim.
int64_t part_of(const Tensor& x, int64_t dim, int64_t n, const char* what) {
  KUAFU_CHECK(dim >= 0 && dim < x.dim(), what, " along dim ", dim, " of ", to_string(shape_of(x)));
  if (x.size(dim) % n != 0) {
    throw NotDivisible(text(what, ": dim ", dim, " of ", to_string(shape_of(x)), " has extent ",
                            x.size(dim), ", which ", n, " ranks do not divide"),
                       text(dim), x.size(dim), "the group");
  }
  return x.size(dim) / n;
}

/// True where splitting `dim` into n parts leaves each part contiguous: nothing stands before it.
bool is_leading(const Tensor& x, int64_t dim) {
  for (int64_t d = 0; d < dim; ++d) {
    if (x.size(d) != 1) return false;
  }
  return true;
}

Shape with_extent(const Tensor& x, int64_t dim, int64_t extent) {
  Shape shape = shape_of(x);
  shape[static_cast<size_t>(dim)] = extent;
  return shape;
}

/// (..., n * s, ...) -> (n, ..., s, ...), contiguous: part i of `dim` is block i.
Tensor parts_first(const Tensor& x, int64_t dim, int64_t n) {
  if (is_leading(x, dim)) return x.contiguous();
  return x.unflatten(dim, {n, x.size(dim) / n}).movedim(dim, 0).contiguous();
}

/// (n, ..., s, ...) -> (..., n * s, ...): the inverse, for blocks of the given shape.
Tensor parts_along(const Tensor& blocks, const Shape& part, int64_t dim, int64_t n) {
  Shape whole = part;
  whole[static_cast<size_t>(dim)] *= n;
  bool leading = true;
  for (int64_t d = 0; d < dim; ++d) leading = leading && part[static_cast<size_t>(d)] == 1;
  if (leading) return blocks.view(whole);
  Shape stacked = part;
  stacked.insert(stacked.begin(), n);
  return blocks.view(stacked).movedim(0, dim).reshape(whole);
}

}  // namespace

namespace raw {

Tensor all_reduce(Tensor x, Communicator& c, ReduceOp op) {
  if (c.size() == 1) return x;
  if (x.is_contiguous()) {
    c.all_reduce(view(x), op).wait();
    return x;
  }
  const CategoryScope scope(Category::kCommunication);
  const Tensor flat = x.contiguous();
  c.all_reduce(view(flat), op).wait();
  x.copy_(flat);
  return x;
}

Tensor all_gather(const Tensor& x, Communicator& c, int64_t dim) {
  if (c.size() == 1) return x;
  KUAFU_CHECK(dim >= 0 && dim < x.dim(), "all_gather along dim ", dim, " of ",
              to_string(shape_of(x)));
  const CategoryScope scope(Category::kCommunication);
  const Tensor in = x.contiguous();
  const Tensor blocks = at::empty({c.size() * in.numel()}, in.options());
  c.all_gather(view(blocks), view(in)).wait();
  return parts_along(blocks, shape_of(in), dim, c.size());
}

Tensor reduce_scatter(const Tensor& x, Communicator& c, int64_t dim) {
  if (c.size() == 1) return x;
  const int64_t part = part_of(x, dim, c.size(), "reduce_scatter");
  const CategoryScope scope(Category::kCommunication);
  const Tensor in = parts_first(x, dim, c.size());
  const Tensor out = at::empty(with_extent(x, dim, part), x.options());
  c.reduce_scatter(view(out), view(in), ReduceOp::kSum).wait();
  return out;
}

Tensor exchange(const Tensor& x, Communicator& c, int64_t from, int64_t to) {
  if (c.size() == 1) return x;
  const int64_t part = part_of(x, from, c.size(), "exchange");
  KUAFU_CHECK(to >= 0 && to < x.dim() && to != from, "exchange from dim ", from, " to dim ", to);
  const CategoryScope scope(Category::kCommunication);
  const Tensor in = parts_first(x, from, c.size());
  const Tensor blocks = at::empty({in.numel()}, in.options());
  c.all_to_all(view(blocks), view(in)).wait();
  return parts_along(blocks, with_extent(x, from, part), to, c.size());
}

Tensor shift(const Tensor& x, Communicator& c, int64_t by) {
  const int64_t n = c.size(), step = ((by % n) + n) % n;
  if (step == 0) return x;
  const CategoryScope scope(Category::kCommunication);
  const Tensor out = x.contiguous();
  const Tensor in = at::empty(out.sizes(), out.options());
  const int to = static_cast<int>((c.rank() + step) % n);
  const int from = static_cast<int>((c.rank() + n - step) % n);
  c.send_recv(view(out), to, view(in), from, kShiftTag).wait();
  return in;
}

Tensor broadcast(const Tensor& x, Communicator& c, int64_t root) {
  if (c.size() == 1) return x;
  KUAFU_CHECK(root >= 0 && root < c.size(), "broadcast from ", root, " of ", c.size());
  const CategoryScope scope(Category::kCommunication);
  const Tensor b = c.rank() == root ? x.contiguous() : at::empty(x.sizes(), x.options());
  c.broadcast(view(b), static_cast<int>(root)).wait();
  return b;
}

void reduce(const Tensor& x, Communicator& c, int64_t root) {
  if (c.size() == 1) return;
  KUAFU_CHECK(root >= 0 && root < c.size(), "reduce to ", root, " of ", c.size());
  const CategoryScope scope(Category::kCommunication);
  const Tensor b = x.contiguous();
  c.reduce(view(b), static_cast<int>(root), ReduceOp::kSum).wait();
  if (c.rank() == root && !b.is_same(x)) x.copy_(b);
}

}  // namespace raw

namespace {

/// A contiguous copy that a collective may overwrite. clone() alone would keep the strides.
Tensor fresh(const Tensor& x) { return x.clone(at::MemoryFormat::Contiguous); }

/// y = there(x), dx = back(dy). A new y gets the caller's category: it is an activation by now.
template <class There, class Back>
Tensor map(const Tensor& x, There there, Back back) {
  const Forward forward = [&](const Tensors& in) -> ForwardResult { return {{there(in[0])}, {}}; };
  const Backward backward = [back](const Tensors&, const Tensors& grads,
                                   const std::vector<bool>&) -> Tensors {
    return {back(grads[0])};
  };
  const Tensor y = differentiable({x}, forward, backward)[0];
  if (!y.is_alias_of(x)) recategorise(y, current_category());
  return y;
}

/// `dim` counted from the end where negative.
int64_t wrap(const Tensor& x, int64_t dim) { return dim < 0 ? dim + x.dim() : dim; }

Tensor my_part(const Tensor& x, Communicator& c, int64_t dim) {
  const int64_t part = part_of(x, dim, c.size(), "slice");
  return fresh(x.narrow(dim, c.rank() * part, part));
}

}  // namespace

Tensor fork(const Tensor& x, Communicator& c) {
  if (c.size() == 1) return x;
  return map(
      x, [](const Tensor& t) { return t; },
      [&c](const Tensor& g) { return raw::all_reduce(fresh(g), c); });
}

Tensor join(const Tensor& x, Communicator& c) {
  if (c.size() == 1) return x;
  return map(
      x, [&c](const Tensor& t) { return raw::all_reduce(fresh(t), c); },
      [](const Tensor& g) { return g; });
}

Tensor gather(const Tensor& x, Communicator& c, int64_t dim) {
  if (c.size() == 1) return x;
  const int64_t d = wrap(x, dim);
  return map(
      x, [&c, d](const Tensor& t) { return raw::all_gather(t, c, d); },
      [&c, d](const Tensor& g) { return raw::reduce_scatter(g, c, d); });
}

Tensor scatter_sum(const Tensor& x, Communicator& c, int64_t dim) {
  if (c.size() == 1) return x;
  const int64_t d = wrap(x, dim);
  return map(
      x, [&c, d](const Tensor& t) { return raw::reduce_scatter(t, c, d); },
      [&c, d](const Tensor& g) { return raw::all_gather(g, c, d); });
}

Tensor collect(const Tensor& x, Communicator& c, int64_t dim) {
  if (c.size() == 1) return x;
  const int64_t d = wrap(x, dim);
  return map(
      x, [&c, d](const Tensor& t) { return raw::all_gather(t, c, d); },
      [&c, d](const Tensor& g) { return my_part(g, c, d); });
}

Tensor slice(const Tensor& x, Communicator& c, int64_t dim) {
  if (c.size() == 1) return x;
  const int64_t d = wrap(x, dim);
  return map(
      x, [&c, d](const Tensor& t) { return my_part(t, c, d); },
      [&c, d](const Tensor& g) { return raw::all_gather(g, c, d); });
}

Tensor exchange(const Tensor& x, Communicator& c, int64_t from, int64_t to) {
  if (c.size() == 1) return x;
  const int64_t f = wrap(x, from), t = wrap(x, to);
  return map(
      x, [&c, f, t](const Tensor& in) { return raw::exchange(in, c, f, t); },
      [&c, f, t](const Tensor& g) { return raw::exchange(g, c, t, f); });
}

Tensor shift(const Tensor& x, Communicator& c, int64_t by) {
  if (c.size() == 1) return x;
  return map(
      x, [&c, by](const Tensor& t) { return raw::shift(t, c, by); },
      [&c, by](const Tensor& g) { return raw::shift(g, c, -by); });
}

}  // namespace kuafu
