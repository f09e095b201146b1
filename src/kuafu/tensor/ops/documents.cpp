// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>

#include <limits>

#include "kuafu/tensor/ops.h"
#include "kuafu/tensor/ops/library.h"

namespace kuafu {
namespace {

Tensor mask_meta(const Tensor& first, at::IntArrayRef queries, at::IntArrayRef keys,
                 at::ScalarType type) {
  return at::empty(
      {first.size(0), 1, static_cast<int64_t>(queries.size()), static_cast<int64_t>(keys.size())},
      first.options().dtype(type));
}

Tensor mask_plain(const Tensor& first, at::IntArrayRef queries, at::IntArrayRef keys,
                  at::ScalarType type) {
  const Tensor i = at::tensor(queries, at::kLong).to(first.device());
  const Tensor j = at::tensor(keys, at::kLong).to(first.device());
  const Tensor hidden =
      j.lt(first.index_select(1, i).unsqueeze(2)).logical_or_(j.gt(i.unsqueeze(1)));
  return mask_meta(first, queries, keys, type)
      .zero_()
      .masked_fill_(hidden.unsqueeze(1), -std::numeric_limits<double>::infinity());
}

}  // namespace

void add_document_ops(OpLibrary& lib) {
  lib.add("document_mask(Tensor first, int[] queries, int[] keys, ScalarType type) -> Tensor",
          "document_mask", &mask_plain, &mask_plain, &mask_meta, CpuKernel::kAten);
}

Tensor ops::document_mask(const Tensor& first, at::IntArrayRef queries, at::IntArrayRef keys,
                          at::ScalarType type) {
  static const auto op =
      find_op<Tensor(const Tensor&, at::IntArrayRef, at::IntArrayRef, at::ScalarType)>(
          "document_mask");
  KUAFU_CHECK(first.dim() == 2 && first.scalar_type() == at::kLong, "documents that begin at ",
              to_string(shape_of(first)), " of type ", first.scalar_type());
  const OpScope scope;
  const Tensor mask = scope.keep(op.call(first, queries, keys, type));
  scope.work(0, bytes_of(first, mask));
  return mask;
}

}  // namespace kuafu
