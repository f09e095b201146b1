// SPDX-License-Identifier: Apache-2.0
#include "kuafu/parallel/sequence/exchange.h"

#include <ATen/ATen.h>

#include "kuafu/meter/allocator.h"

namespace kuafu {
namespace {

/// (B, N, L, D) -> (n, B, L, N/n, D), part i the heads of rank i; a head of several ranks repeats.
Tensor by_rank(const Tensor& t, int64_t n) {
  const Tensor x = t.transpose(1, 2);  // (B, L, N, D)
  const int64_t b = x.size(0), l = x.size(1), heads = x.size(2), d = x.size(3);
  if (heads % n == 0) return x.unflatten(2, {n, heads / n}).movedim(2, 0);
  return x.unsqueeze(3).expand({b, l, heads, n / heads, d}).reshape({b, l, n, 1, d}).movedim(2, 0);
}

/// The inverse, for gradients too: repeated heads are summed.
Tensor from_ranks(const Tensor& t, int64_t heads) {
  const int64_t n = t.size(0);
  const Tensor x = t.movedim(0, 2);  // (B, L, n, N/n, D)
  if (heads % n == 0) return x.reshape({x.size(0), x.size(1), heads, x.size(4)}).transpose(1, 2);
  return x.reshape({x.size(0), x.size(1), heads, n / heads, x.size(4)}).sum(3).transpose(1, 2);
}

}  // namespace

Splits HeadExchange::splits(int64_t unit, bool is_to_heads) const {
  const std::vector<int64_t> mine(static_cast<size_t>(size()), unit * tokens().extent);
  std::vector<int64_t> theirs;
  for (int64_t r = 0; r < size(); ++r) theirs.push_back(unit * tokens_of(r).extent);
  return is_to_heads ? Splits{mine, theirs} : Splits{theirs, mine};
}

Tensor HeadExchange::to_heads(const Tensors& parts) const {
  const int64_t n = size(), b = parts[0].size(0), l = parts[0].size(2), d = parts[0].size(3);
  int64_t heads = 0;
  for (const Tensor& t : parts) heads += std::max<int64_t>(t.size(1) / n, 1);
  const CategoryScope scope(Category::kCommunication);
  Tensor out = at::empty({n, b, l, heads, d}, parts[0].options());
  int64_t first = 0;
  for (const Tensor& t : parts) {
    const Tensor ranked = by_rank(t, n);
    out.narrow(3, first, ranked.size(3)).copy_(ranked);
    first += ranked.size(3);
  }
  if (n == 1) return out[0].transpose(1, 2);
  const Tensor in = at::empty({b * sequence_ * heads * d}, out.options());
  mesh_.comm("sequence").all_to_all(view(in), view(out), splits(b * heads * d, true)).wait();
  if (b == 1) return in.view({1, sequence_, heads, d}).transpose(1, 2);
  out.reset();
  Tensors pieces;  // (B, tokens of a rank, heads, D)
  for (int64_t r = 0; r < n; ++r) {
    const Part p = tokens_of(r);
    pieces.push_back(in.narrow(0, b * p.offset * heads * d, b * p.extent * heads * d)
                         .view({b, p.extent, heads, d}));
  }
  return at::cat(pieces, 1).transpose(1, 2);
}

Tensors HeadExchange::to_tokens(const Tensors& parts, const std::vector<int64_t>& heads) const {
  const int64_t n = size(), b = parts[0].size(0), l = tokens().extent, d = parts[0].size(3);
  int64_t mine = 0;
  for (const Tensor& t : parts) mine += t.size(1);
  const CategoryScope scope(Category::kCommunication);
  const Tensor out = at::empty({b * sequence_ * mine * d}, parts[0].options());
  for (int64_t r = 0; r < n; ++r) {
    const Part p = tokens_of(r);
    const Tensor piece = out.narrow(0, b * p.offset * mine * d, b * p.extent * mine * d)
                             .view({b, p.extent, mine, d});
    int64_t first = 0;
    for (const Tensor& t : parts) {
      piece.narrow(2, first, t.size(1)).copy_(t.narrow(2, p.offset, p.extent).transpose(1, 2));
      first += t.size(1);
    }
  }
  Tensor in = out;
  if (n > 1) {
    in = at::empty({n * b * l * mine * d}, out.options());
    mesh_.comm("sequence").all_to_all(view(in), view(out), splits(b * mine * d, false)).wait();
  }
  const Tensor ranked = in.view({n, b, l, mine, d});
  Tensors whole;
  int64_t first = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    whole.push_back(from_ranks(ranked.narrow(3, first, parts[i].size(1)), heads[i]));
    first += parts[i].size(1);
  }
  return whole;
}

}  // namespace kuafu
