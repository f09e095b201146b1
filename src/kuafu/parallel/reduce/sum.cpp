// SPDX-License-Identifier: Apache-2.0
//
// Back ends may add in any order that depends on the group alone: a ring begins the sum of each
// part at another rank, so an element's bits depend on where it lies in its buffer. Where bits must
// not (SumOrder::kRank), ranks exchange their parts and each adds up its own:
//
//   BEFORE        rank 0      rank 1      all_to_all       rank 0        rank 1
//                 a0 | b0     a1 | b1                      a0 | a1       b0 | b1
//   AFTER         rank 0 has a0 + a1, rank 1 has b0 + b1; n > 2: ((a0 + a1) + a2) + ...
//
// It receives what a reduce-scatter does, (n-1)/n of the buffer. Half precision adds in f32 and is
// rounded once.

#include "kuafu/parallel/reduce/sum.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "kuafu/meter/allocator.h"
#include "kuafu/states/slots.h"

namespace kuafu {
namespace {

/// parts (n * part) -> out (part).
void add_parts(const Tensor& out, const Tensor& parts) {
  const at::NoGradGuard no_grad;
  const CategoryScope scope(Category::kCommunication);
  const int64_t n = parts.numel() / out.numel();
  const Tensor sum = parts.narrow(0, 0, out.numel()).to(update_type(out));
  for (int64_t i = 1; i < n; ++i) {
    // Widened here: inside add_ it would be too, by a copy that meta tensors do not make.
    sum.add_(parts.narrow(0, i * out.numel(), out.numel()).to(sum.scalar_type()));
  }
  out.copy_(sum);
}

/// As sum_in_parts, in rank order.
PendingSum add_in_rank_order(const Tensor& out, const Tensor& flat, Communicator& c) {
  const CategoryScope scope(Category::kCommunication);
  const Tensor parts = at::empty_like(flat);
  return PendingSum(c.all_to_all(view(parts), view(flat)),
                    [out, flat, parts] { add_parts(out, parts); });
}

}  // namespace

PendingSum sum_everywhere(const Tensor& flat, Communicator& c, SumOrder order) {
  if (order == SumOrder::kAny || c.size() == 1) {
    return PendingSum(c.all_reduce(view(flat), ReduceOp::kSum), [flat] {});
  }
  const CategoryScope scope(Category::kCommunication);
  const int64_t n = c.size(), part = (flat.numel() + n - 1) / n;
  const Tensor padded = at::zeros({n * part}, flat.options());
  padded.narrow(0, 0, flat.numel()).copy_(flat);
  const Tensor mine = padded.narrow(0, c.rank() * part, part);
  PendingSum sum = add_in_rank_order(mine, padded, c);
  sum.then([flat, padded, mine, &c] {
    const at::NoGradGuard no_grad;
    c.all_gather(view(padded), view(mine)).wait();
    flat.copy_(padded.narrow(0, 0, flat.numel()));
  });
  return sum;
}

PendingSum sum_in_parts(const Tensor& out, const Tensor& flat, Communicator& c, SumOrder order) {
  if (order == SumOrder::kRank && c.size() > 1) return add_in_rank_order(out, flat, c);
  return PendingSum(c.reduce_scatter(view(out), view(flat), ReduceOp::kSum), [out, flat] {});
}

}  // namespace kuafu
