// SPDX-License-Identifier: Apache-2.0
#include "kuafu/tensor/ops/heads.h"

#include <ATen/ATen.h>

#include <array>
#include <vector>

#include "kuafu/tensor/ops/card.h"
#include "kuafu/tensor/ops/library.h"

namespace kuafu {
namespace {

/// (parts, B, N, S, D), a view.
Tensor pieces(const Tensor& whole, int64_t head_dim, int64_t parts) {
  const int64_t heads = whole.size(2) / (parts * head_dim);
  return whole.view({whole.size(0), whole.size(1), heads, parts, head_dim})
      .permute({3, 0, 2, 1, 4});
}

/// One part (B, N, S, D), over memory (B, S, N, D).
Tensor new_part(const Tensor& whole, int64_t head_dim, int64_t parts) {
  const int64_t heads = whole.size(2) / (parts * head_dim);
  return at::empty({whole.size(0), whole.size(1), heads, head_dim}, whole.options())
      .transpose(1, 2);
}

std::vector<Tensor> split_meta(const Tensor& whole, int64_t head_dim, int64_t parts) {
  std::vector<Tensor> out;
  for (int64_t i = 0; i < parts; ++i) out.push_back(new_part(whole, head_dim, parts));
  return out;
}

std::vector<Tensor> split_aten(const Tensor& whole, int64_t head_dim, int64_t parts) {
  const Tensor p = pieces(whole, head_dim, parts);
  std::vector<Tensor> out;
  for (int64_t i = 0; i < parts; ++i) {
    out.push_back(p[i].transpose(1, 2).clone(at::MemoryFormat::Contiguous).transpose(1, 2));
  }
  return out;
}

Tensor join_meta(at::TensorList parts) {
  const Tensor& t = parts[0];
  const int64_t all = static_cast<int64_t>(parts.size());
  return at::empty({t.size(0), t.size(2), t.size(1) * all * t.size(3)}, t.options());
}

Tensor join_aten(at::TensorList parts) {
  const Tensor all = join_meta(parts);
  const Tensor p = pieces(all, parts[0].size(3), static_cast<int64_t>(parts.size()));
  for (size_t i = 0; i < parts.size(); ++i) p[static_cast<int64_t>(i)].copy_(parts[i]);
  return all;
}

using CardParts = std::array<kernels::card::HeadPart, kernels::card::kMostParts>;

CardParts card_parts(at::TensorList parts) {
  CardParts all{};
  for (size_t i = 0; i < parts.size(); ++i) {
    const Tensor& t = parts[i];
    all[i] = {t.data_ptr(), t.stride(0), t.stride(2), t.stride(1)};
  }
  return all;
}

kernels::card::Heads heads_of(at::TensorList parts) {
  const Tensor& t = parts[0];
  return {kind_of(t), t.size(0), t.size(2), t.size(1), static_cast<int64_t>(parts.size()),
          t.size(3)};
}

bool is_for_card(const Tensor& t, int64_t parts) {
  return has_card_kernel(t) && t.numel() > 0 && parts <= kernels::card::kMostParts;
}

std::vector<Tensor> split_cuda(const Tensor& whole, int64_t head_dim, int64_t parts) {
  if (!is_for_card(whole, parts)) return split_aten(whole, head_dim, parts);
  const Tensor in = whole.contiguous();
  std::vector<Tensor> out = split_meta(whole, head_dim, parts);
  check_started(kernels::card::split_heads(heads_of(out), in.const_data_ptr(),
                                           card_parts(out).data(), card_stream_of(in)),
                "splitting heads");
  return out;
}

Tensor join_cuda(at::TensorList parts) {
  if (!is_for_card(parts[0], static_cast<int64_t>(parts.size()))) return join_aten(parts);
  std::vector<Tensor> in;
  for (const Tensor& t : parts) in.push_back(unit_stride(t));
  const Tensor all = join_meta(in);
  check_started(kernels::card::join_heads(heads_of(in), all.mutable_data_ptr(),
                                          card_parts(in).data(), card_stream_of(all)),
                "joining heads");
  return all;
}

}  // namespace

void add_head_ops(OpLibrary& lib) {
  lib.add("split_heads(Tensor whole, int head_dim, int parts) -> Tensor[]", "split_heads",
          &split_aten, &split_cuda, &split_meta, CpuKernel::kAten);
  lib.add("join_heads(Tensor[] parts) -> Tensor", "join_heads", &join_aten, &join_cuda, &join_meta,
          CpuKernel::kAten);
}

namespace ops {

Tensors split_heads(const Tensor& whole, int64_t head_dim, int64_t parts) {
  static const auto op =
      find_op<std::vector<Tensor>(const Tensor&, int64_t, int64_t)>("split_heads");
  const OpScope scope;
  Tensors out = op.call(whole, head_dim, parts);
  for (const Tensor& t : out) scope.keep(t);
  scope.work(0, 2 * bytes_of(whole));
  return out;
}

Tensor join_heads(const Tensors& parts) {
  static const auto op = find_op<Tensor(at::TensorList)>("join_heads");
  const OpScope scope;
  const Tensor all = scope.keep(op.call(parts));
  scope.work(0, 2 * bytes_of(all));
  return all;
}

}  // namespace ops
}  // namespace kuafu
