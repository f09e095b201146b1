// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>

#include "kuafu/kernels/kernels.h"
#include "kuafu/tensor/ops.h"
#include "kuafu/tensor/ops/library.h"

namespace kuafu {
namespace {

Shape with_hidden(const Tensor& ids, int64_t hidden) {
  Shape shape = shape_of(ids);
  shape.push_back(hidden);
  return shape;
}

template <class T>
void lookup(const Tensor& ids, const Tensor& table, int64_t first, const Tensor& y) {
  kernels::embedding(ids.const_data_ptr<int64_t>(), ids.numel(), first,
                     {table.size(0), table.size(1)}, table.const_data_ptr<T>(),
                     y.mutable_data_ptr<T>());
}

Tensor embedding_cpu(const Tensor& ids, const Tensor& table, int64_t first) {
  const Tensor i = ids.contiguous(), w = table.contiguous();
  const Tensor y = at::empty(with_hidden(ids, w.size(1)), w.options());
  switch (w.scalar_type()) {
    case at::kDouble:
      lookup<double>(i, w, first, y);
      break;
    case at::kFloat:
      lookup<float>(i, w, first, y);
      break;
    default: {
      const Tensor wide = at::empty(y.sizes(), y.options().dtype(at::kFloat));
      lookup<float>(i, widened(w), first, wide);
      y.copy_(wide);
    }
  }
  return y;
}

/// True (B, S, 1) where an id is in my shard.
Tensor is_mine(const Tensor& ids, int64_t first, int64_t rows) {
  return ids.ge(first).logical_and_(ids.lt(first + rows)).unsqueeze(-1);
}

Tensor embedding_plain(const Tensor& ids, const Tensor& table, int64_t first) {
  const Tensor row = (ids - first).clamp_(0, table.size(0) - 1);
  const Tensor y = table.index_select(0, row.reshape(-1)).view(with_hidden(ids, table.size(1)));
  return y.mul_(is_mine(ids, first, table.size(0)));
}

Tensor embedding_meta(const Tensor& ids, const Tensor& table, int64_t) {
  return at::empty(with_hidden(ids, table.size(1)), table.options());
}

template <class T>
void sum_rows(const Tensor& dy, const Tensor& ids, int64_t first, const Tensor& dw) {
  kernels::embedding_backward(ids.const_data_ptr<int64_t>(), ids.numel(), first,
                              {dw.size(0), dw.size(1)}, dy.const_data_ptr<T>(),
                              dw.mutable_data_ptr<T>());
}

Tensor embedding_backward_cpu(const Tensor& dy, const Tensor& ids, int64_t first, int64_t rows) {
  const Tensor i = ids.contiguous(), g = widened(dy);
  const Tensor dw = at::zeros({rows, dy.size(-1)}, g.options());
  if (dy.scalar_type() == at::kDouble) {
    sum_rows<double>(g, i, first, dw);
  } else {
    sum_rows<float>(g, i, first, dw);
  }
  return dw.to(dy.scalar_type());
}

/// Foreign ids go to a row of zeros at the end; ATen sorts by id, so the order of sums is fixed.
Tensor embedding_backward_plain(const Tensor& dy, const Tensor& ids, int64_t first, int64_t rows) {
  const Tensor row = at::where(is_mine(ids, first, rows).squeeze(-1), ids - first,
                               at::full({}, rows, ids.options()));
  return at::embedding_dense_backward(dy, row, rows + 1, rows, false).narrow(0, 0, rows).clone();
}

Tensor embedding_backward_meta(const Tensor& dy, const Tensor&, int64_t, int64_t rows) {
  return at::empty({rows, dy.size(-1)}, dy.options());
}

void check(const Tensor& ids) {
  KUAFU_CHECK(ids.scalar_type() == at::kLong, "ids are i64, got ", ids.scalar_type());
}

}  // namespace

void add_embedding_ops(OpLibrary& lib) {
  lib.add("embedding(Tensor ids, Tensor table, int first) -> Tensor", "embedding", &embedding_cpu,
          &embedding_plain, &embedding_meta);
  lib.add("embedding_backward(Tensor dy, Tensor ids, int first, int rows) -> Tensor",
          "embedding_backward", &embedding_backward_cpu, &embedding_backward_plain,
          &embedding_backward_meta);
}

namespace ops {

Tensor embedding(const Tensor& ids, const Tensor& table, int64_t first) {
  static const auto op = find_op<Tensor(const Tensor&, const Tensor&, int64_t)>("embedding");
  check(ids);
  const OpScope scope;
  const Tensor y = scope.keep(op.call(ids, table, first));
  scope.work(0, bytes_of(ids, y, y));
  return y;
}

Tensor embedding_backward(const Tensor& dy, const Tensor& ids, int64_t first, int64_t rows) {
  static const auto op =
      find_op<Tensor(const Tensor&, const Tensor&, int64_t, int64_t)>("embedding_backward");
  check(ids);
  const OpScope scope;
  const Tensor dw = scope.keep(op.call(dy, ids, first, rows));
  scope.work(0, bytes_of(dy, ids, dw));
  return dw;
}

}  // namespace ops
}  // namespace kuafu
