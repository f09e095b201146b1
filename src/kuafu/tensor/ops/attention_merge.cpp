// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>

#include "kuafu/tensor/ops.h"
#include "kuafu/tensor/ops/library.h"

namespace kuafu {
namespace {

void merge_cpu(const Tensor& out, const Tensor& lse, const Tensor& part, const Tensor& part_lse) {
  const Tensor p = unit_stride(part).to(out.scalar_type());
  by_type(out, [&](auto zero) {
    using T = decltype(zero);
    kernels::attention_merge(
        {out.size(0), out.size(1), out.size(2), out.size(3)},
        kernels::AttentionMerge<T>{head_rows(out.mutable_data_ptr<T>(), out),
                                   head_rows(lse.mutable_data_ptr<T>(), lse),
                                   head_rows(p.const_data_ptr<T>(), p),
                                   head_rows(part_lse.const_data_ptr<T>(), part_lse)});
  });
}

void merge_plain(const Tensor& out, const Tensor& lse, const Tensor& part, const Tensor& part_lse) {
  const Tensor sum = at::logaddexp(lse, part_lse);
  const auto weight = [&](const Tensor& of) {  // 0 where neither saw a key
    return (of - sum).exp_().masked_fill_(of.isneginf(), 0).unsqueeze_(3);
  };
  out.mul_(weight(lse)).add_(part.to(out.scalar_type()) * weight(part_lse));
  lse.copy_(sum);
}

void merge_meta(const Tensor&, const Tensor&, const Tensor&, const Tensor&) {}

}  // namespace

void add_merge_ops(OpLibrary& lib) {
  lib.add("attention_merge(Tensor(a!) out, Tensor(b!) lse, Tensor part, Tensor part_lse) -> ()",
          "attention_merge", &merge_cpu, &merge_plain, &merge_meta);
}

void ops::attention_merge(AttentionOut& into, const AttentionOut& part) {
  static const auto op =
      find_op<void(const Tensor&, const Tensor&, const Tensor&, const Tensor&)>("attention_merge");
  if (!into.out.defined()) {
    into = {part.out.to(accumulator(part.out)), part.lse};
    return;
  }
  KUAFU_CHECK(into.out.sizes() == part.out.sizes() && into.lse.sizes() == part.lse.sizes() &&
                  into.out.scalar_type() == accumulator(part.out) &&
                  into.lse.scalar_type() == into.out.scalar_type() &&
                  part.lse.scalar_type() == into.lse.scalar_type() && into.out.stride(3) == 1,
              "merge of attention ", to_string(shape_of(part.out)), " of type ",
              part.out.scalar_type(), " into ", to_string(shape_of(into.out)), " of type ",
              into.out.scalar_type());
  const OpScope scope;
  op.call(into.out, into.lse, part.out, part.lse);
  scope.work(0, bytes_of(into.out, into.out, into.lse, into.lse, part.out, part.lse));
}

}  // namespace kuafu
