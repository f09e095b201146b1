// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>

#include <tuple>

#include "kuafu/kernels/experts.h"
#include "kuafu/tensor/expert_ops.h"
#include "kuafu/tensor/ops/library.h"

namespace kuafu {
namespace {

kernels::SlotShape shape_for(const Tensor& rows, int64_t num_rows, int64_t hidden) {
  return {.samples = rows.size(0),
          .experts = rows.size(1),
          .slots = rows.size(2),
          .num_rows = num_rows,
          .hidden = hidden};
}

Tensor local_cpu(const Tensor& token, const Tensor& place) {
  const Tensor in = token.contiguous(), map = place.contiguous();
  const Tensor out = at::empty(token.sizes(), token.options());
  const int64_t* from = in.const_data_ptr<int64_t>();
  int64_t* to = out.mutable_data_ptr<int64_t>();
  for (int64_t i = 0; i < in.numel(); ++i) {
    to[i] = from[i] < 0 ? -1 : map.const_data_ptr<int64_t>()[from[i]];
  }
  return out;
}

Tensor local_plain(const Tensor& token, const Tensor& place) {
  const Tensor row = place.index_select(0, token.reshape(-1).clamp_min(0)).view(token.sizes());
  return at::where(token.ge(0), row, at::full({}, -1, row.options()));
}

Tensor local_meta(const Tensor& token, const Tensor&) {
  return at::empty(token.sizes(), token.options());
}

Tensor take_cpu(const Tensor& x, const Tensor& rows) {
  const Tensor in = x.contiguous(), r = rows.contiguous();
  const Tensor slots = at::empty({r.size(1), r.size(0), r.size(2), x.size(2)}, x.options());
  kernels::take_slots(shape_for(r, x.size(1), x.size(2)), r.const_data_ptr<int64_t>(),
                      in.const_data_ptr(), slots.mutable_data_ptr(), x.size(2) * x.element_size());
  return slots;
}

/// Sums slots, times their gates where `gates` is defined.
Tensor sum_weighted(const Tensor& slots, const Tensor& gates, const Tensor& rows,
                    int64_t num_rows) {
  const Tensor in = widened(slots), r = rows.contiguous();
  const Tensor g = gates.defined() ? gates.to(in.scalar_type()).contiguous() : Tensor();
  const auto shape = shape_for(r, num_rows, slots.size(3));
  const Tensor y = at::zeros({r.size(0), num_rows, slots.size(3)}, in.options());
  const auto sum = [&]<class T>(T) {
    kernels::sum_slots<T>(shape, r.const_data_ptr<int64_t>(), in.const_data_ptr<T>(),
                          g.defined() ? g.const_data_ptr<T>() : nullptr, y.mutable_data_ptr<T>());
  };
  in.scalar_type() == at::kDouble ? sum(double{}) : sum(float{});
  return y.to(slots.scalar_type());
}

Tensor sum_cpu(const Tensor& slots, const Tensor& rows, int64_t num_rows) {
  return sum_weighted(slots, {}, rows, num_rows);
}
Tensor combine_cpu(const Tensor& slots, const Tensor& gates, const Tensor& rows, int64_t num_rows) {
  return sum_weighted(slots, gates, rows, num_rows);
}

std::tuple<Tensor, Tensor> combine_backward_cpu(const Tensor& dy, const Tensor& slots,
                                                const Tensor& gates, const Tensor& rows) {
  const Tensor grad = widened(dy), in = widened(slots), r = rows.contiguous();
  const Tensor g = gates.to(in.scalar_type()).contiguous();
  const Tensor dslots = at::empty_like(in), dgates = at::empty_like(g);
  const auto shape = shape_for(r, dy.size(1), slots.size(3));
  const auto run = [&]<class T>(T) {
    kernels::combine_backward<T>(shape, r.const_data_ptr<int64_t>(),
                                 {.dy = grad.const_data_ptr<T>(),
                                  .slots = in.const_data_ptr<T>(),
                                  .gates = g.const_data_ptr<T>(),
                                  .dslots = dslots.mutable_data_ptr<T>(),
                                  .dgates = dgates.mutable_data_ptr<T>()});
  };
  in.scalar_type() == at::kDouble ? run(double{}) : run(float{});
  return {dslots.to(slots.scalar_type()), dgates.to(gates.scalar_type())};
}

// Portable: rows of all samples in one list, with a row of zeros (or a bin) at the end.

/// (E, B, C) places in the (B R + 1) list.
Tensor places(const Tensor& rows, int64_t num_rows) {
  const Tensor first = at::arange(rows.size(0), rows.options()).mul_(num_rows).view({-1, 1, 1});
  const Tensor last = at::full({}, rows.size(0) * num_rows, rows.options());
  return at::where(rows.ge(0), rows + first, last).transpose(0, 1).contiguous();
}

Tensor take_plain(const Tensor& x, const Tensor& rows) {
  const Tensor list = at::cat({x.reshape({-1, x.size(2)}), at::zeros({1, x.size(2)}, x.options())});
  return list.index_select(0, places(rows, x.size(1)).view(-1))
      .view({rows.size(1), rows.size(0), rows.size(2), x.size(2)});
}

Tensor sum_plain(const Tensor& slots, const Tensor& rows, int64_t num_rows) {
  const int64_t hidden = slots.size(3), all = rows.size(0) * num_rows;
  const Tensor list = at::zeros({all + 1, hidden}, slots.options().dtype(accumulator(slots)));
  const Tensor at = places(rows, num_rows).view(-1);
  const Tensor each = slots.reshape({-1, hidden}).to(list.scalar_type());
  if (list.is_cuda()) {  // sorts, where index_add_ has no order
    list.index_put_({at}, each, true);
  } else {
    list.index_add_(0, at, each);
  }
  return list.narrow(0, 0, all)
      .reshape({rows.size(0), num_rows, hidden})
      .to(slots.scalar_type(), false, true);
}

Tensor combine_plain(const Tensor& slots, const Tensor& gates, const Tensor& rows,
                     int64_t num_rows) {
  const Tensor weight = gates.transpose(0, 1).unsqueeze(-1).to(accumulator(slots));
  return sum_plain(slots.to(accumulator(slots)) * weight, rows, num_rows).to(slots.scalar_type());
}

std::tuple<Tensor, Tensor> combine_backward_plain(const Tensor& dy, const Tensor& slots,
                                                  const Tensor& gates, const Tensor& rows) {
  const Tensor d = take_plain(dy, rows).to(accumulator(slots));
  const Tensor weight = gates.transpose(0, 1).unsqueeze(-1).to(accumulator(slots));
  const Tensor dot = (d * slots.to(accumulator(slots))).sum(-1).transpose(0, 1).contiguous();
  return {(d * weight).to(slots.scalar_type()), dot.to(gates.scalar_type())};
}

Tensor take_meta(const Tensor& x, const Tensor& rows) {
  return at::empty({rows.size(1), rows.size(0), rows.size(2), x.size(2)}, x.options());
}
Tensor sum_meta(const Tensor& slots, const Tensor& rows, int64_t num_rows) {
  return at::empty({rows.size(0), num_rows, slots.size(3)}, slots.options());
}
Tensor combine_meta(const Tensor& slots, const Tensor&, const Tensor& rows, int64_t num_rows) {
  return sum_meta(slots, rows, num_rows);
}
std::tuple<Tensor, Tensor> combine_backward_meta(const Tensor&, const Tensor& slots,
                                                 const Tensor& gates, const Tensor&) {
  return {at::empty(slots.sizes(), slots.options()), at::empty(gates.sizes(), gates.options())};
}

void check(const Tensor& slots, const Tensor& rows) {
  KUAFU_CHECK(rows.dim() == 3 && rows.scalar_type() == at::kLong, "rows (B, E, C) are i64, got ",
              to_string(shape_of(rows)), " ", rows.scalar_type());
  KUAFU_CHECK(!slots.defined() || (slots.dim() == 4 && slots.size(0) == rows.size(1) &&
                                   slots.size(1) == rows.size(0) && slots.size(2) == rows.size(2)),
              "slots ", to_string(shape_of(slots)), " for rows ", to_string(shape_of(rows)));
}

}  // namespace

void add_slot_ops(OpLibrary& lib) {
  lib.add("local_rows(Tensor token, Tensor place) -> Tensor", "local_rows", &local_cpu,
          &local_plain, &local_meta);
  lib.add("take_slots(Tensor x, Tensor rows) -> Tensor", "take_slots", &take_cpu, &take_plain,
          &take_meta);
  lib.add("sum_slots(Tensor slots, Tensor rows, int num_rows) -> Tensor", "sum_slots", &sum_cpu,
          &sum_plain, &sum_meta);
  lib.add("combine(Tensor slots, Tensor gates, Tensor rows, int num_rows) -> Tensor", "combine",
          &combine_cpu, &combine_plain, &combine_meta);
  lib.add(
      "combine_backward(Tensor dy, Tensor slots, Tensor gates, Tensor rows) -> (Tensor, Tensor)",
      "combine_backward", &combine_backward_cpu, &combine_backward_plain, &combine_backward_meta);
}

namespace ops {

Tensor local_rows(const Tensor& token, const Tensor& place) {
  static const auto op = find_op<Tensor(const Tensor&, const Tensor&)>("local_rows");
  check({}, token);
  const OpScope scope;
  const Tensor rows = scope.keep(op.call(token, place));
  scope.work(0, bytes_of(token, place, rows));
  return rows;
}

Tensor take_slots(const Tensor& x, const Tensor& rows) {
  static const auto op = find_op<Tensor(const Tensor&, const Tensor&)>("take_slots");
  check({}, rows);
  const OpScope scope;
  const Tensor slots = scope.keep(op.call(x, rows));
  scope.work(0, bytes_of(rows, slots, slots));
  return slots;
}

Tensor sum_slots(const Tensor& slots, const Tensor& rows, int64_t num_rows) {
  static const auto op = find_op<Tensor(const Tensor&, const Tensor&, int64_t)>("sum_slots");
  check(slots, rows);
  const OpScope scope;
  const Tensor y = scope.keep(op.call(slots, rows, num_rows));
  scope.work(0, bytes_of(slots, rows, y));
  return y;
}

Tensor combine(const Tensor& slots, const Tensor& gates, const Tensor& rows, int64_t num_rows) {
  static const auto op =
      find_op<Tensor(const Tensor&, const Tensor&, const Tensor&, int64_t)>("combine");
  check(slots, rows);
  const OpScope scope;
  const Tensor y = scope.keep(op.call(slots, gates, rows, num_rows));
  scope.work(0, bytes_of(slots, gates, rows, y));
  return y;
}

CombineGrads combine_backward(const Tensor& dy, const Tensor& slots, const Tensor& gates,
                              const Tensor& rows) {
  static const auto op = find_op<std::tuple<Tensor, Tensor>(
      const Tensor&, const Tensor&, const Tensor&, const Tensor&)>("combine_backward");
  check(slots, rows);
  const OpScope scope;
  const auto [dslots, dgates] = op.call(dy, slots, gates, rows);
  scope.work(0, bytes_of(dy, slots, gates, rows, dslots, dgates));
  return {scope.keep(dslots), scope.keep(dgates)};
}

}  // namespace ops
}  // namespace kuafu
