// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>

#include "kuafu/tensor/ops.h"
#include "kuafu/tensor/ops/library.h"

namespace kuafu {
namespace {

/// The cosines and sines (S, D/2) of all angles, in f64.
std::pair<Tensor, Tensor> table_cpu(const Tensor& positions, int64_t half, double base) {
  const Tensor p = positions.contiguous();
  const Tensor cosines = at::empty({p.size(0), half}, p.options().dtype(at::kDouble));
  const Tensor sines = at::empty_like(cosines);
  kernels::rope_table(p.const_data_ptr<int64_t>(), p.size(0), half, base,
                      cosines.mutable_data_ptr<double>(), sines.mutable_data_ptr<double>());
  return {cosines, sines};
}

std::pair<Tensor, Tensor> table_plain(const Tensor& positions, int64_t half, double base) {
  const Tensor d = at::arange(half, positions.options().dtype(at::kDouble));
  const Tensor frequency = at::pow(base, d / static_cast<double>(-half));
  const Tensor angles = positions.unsqueeze(1) * frequency;
  return {angles.cos(), angles.sin()};
}

template <class T>
void turn(const Tensor& x, const Tensor& cosines, const Tensor& sines, double sign,
          const Tensor& y) {
  kernels::rope({x.size(0), x.size(1), x.size(2), x.size(3)},
                kernels::Rope<T>{head_rows(x.const_data_ptr<T>(), x),
                                 head_rows(y.mutable_data_ptr<T>(), y), cosines.const_data_ptr<T>(),
                                 sines.const_data_ptr<T>(), static_cast<T>(sign)});
}

Tensor rope_cpu(const Tensor& x, const Tensor& positions, double base, bool is_inverse) {
  const auto type = accumulator(x);
  const auto [cosines, sines] = table_cpu(positions, x.size(3) / 2, base);
  const Tensor in = unit_stride(x).to(type), y = at::empty_like(in);
  by_type(x, [&](auto zero) {
    turn<decltype(zero)>(in, cosines.to(type), sines.to(type), is_inverse ? -1 : 1, y);
  });
  return y.to(x.scalar_type());
}

Tensor rope_plain(const Tensor& x, const Tensor& positions, double base, bool is_inverse) {
  const int64_t half = x.size(3) / 2;
  const auto type = accumulator(x);
  auto [cosines, sines] = table_plain(positions, half, base);
  const Tensor c = cosines.to(type), s = (is_inverse ? sines.neg() : sines).to(type);
  const Tensor a = x.narrow(3, 0, half).to(type), b = x.narrow(3, half, half).to(type);
  const Tensor y = at::empty_like(unit_stride(x));
  y.narrow(3, 0, half).copy_(a * c - b * s);
  y.narrow(3, half, half).copy_(b * c + a * s);
  return y;
}

Tensor rope_meta(const Tensor& x, const Tensor&, double, bool) {
  return at::empty_like(unit_stride(x));
}

}  // namespace

void add_rope_ops(OpLibrary& lib) {
  lib.add("rope(Tensor x, Tensor positions, float base, bool is_inverse) -> Tensor", "rope",
          &rope_cpu, &rope_plain, &rope_meta);
}

Tensor ops::rope(const Tensor& x, const Tensor& positions, double base, bool is_inverse) {
  static const auto op = find_op<Tensor(const Tensor&, const Tensor&, double, bool)>("rope");
  KUAFU_CHECK(x.dim() == 4 && x.size(3) % 2 == 0 && positions.dim() == 1 &&
                  positions.size(0) == x.size(2) && positions.scalar_type() == at::kLong,
              "rope of ", to_string(shape_of(x)), " at positions ", to_string(shape_of(positions)),
              " of type ", positions.scalar_type());
  const OpScope scope;
  const Tensor y = scope.keep(op.call(x, positions, base, is_inverse));
  scope.work(0, bytes_of(x, positions, y));
  return y;
}

}  // namespace kuafu
