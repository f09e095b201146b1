// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kuafu/comm/communicator.h"
#include "kuafu/tensor/tensor.h"

namespace kuafu {

// The complete vocabulary of differentiable collectives. On a group of one each is the identity.
// Dims may be any; data is made contiguous as needed. Each has a BEFORE/AFTER table in README.md.

/// identity; backward all-reduces. A replicated value, used differently per rank.
Tensor fork(const Tensor& x, Communicator& c);
/// all-reduce; backward identity. Partial sums -> replicated value.
Tensor join(const Tensor& x, Communicator& c);
/// all-gather along dim; backward reduce-scatter. Shard -> whole, used differently per rank.
Tensor gather(const Tensor& x, Communicator& c, int64_t dim);
/// reduce-scatter along dim; backward all-gather. Partial sums -> shard.
Tensor scatter_sum(const Tensor& x, Communicator& c, int64_t dim);
/// all-gather along dim; backward slices. Shard -> whole, used identically.
Tensor collect(const Tensor& x, Communicator& c, int64_t dim);
/// my slice of dim; backward all-gathers. Whole -> shard.
Tensor slice(const Tensor& x, Communicator& c, int64_t dim);
/// all-to-all: splits dim `from`, concatenates along dim `to`; backward swaps them. Re-shards.
Tensor exchange(const Tensor& x, Communicator& c, int64_t from, int64_t to);
/// receives from rank - by, sends to rank + by, cyclically; backward shifts by -by.
Tensor shift(const Tensor& x, Communicator& c, int64_t by);

// The same without autograd, for code that runs inside differentiable() (schemes, optimizers).
// They allocate their results under Category::kCommunication or as stated.
namespace raw {
Tensor all_reduce(Tensor x, Communicator& c,
                  ReduceOp op = ReduceOp::kSum);  ///< in place, returns x
Tensor all_gather(const Tensor& x, Communicator& c, int64_t dim);
Tensor reduce_scatter(const Tensor& x, Communicator& c, int64_t dim);
Tensor exchange(const Tensor& x, Communicator& c, int64_t from, int64_t to);
Tensor shift(const Tensor& x, Communicator& c, int64_t by);
/// The root's x on every rank; allocates on the others. @pre same shape everywhere
Tensor broadcast(const Tensor& x, Communicator& c, int64_t root);
/// The sum in the root's x, in place; other ranks' x is spent.
void reduce(const Tensor& x, Communicator& c, int64_t root);
}  // namespace raw

}  // namespace kuafu
