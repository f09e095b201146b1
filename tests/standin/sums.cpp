// SPDX-License-Identifier: Apache-2.0
#include "tests/standin/sums.h"

#include <cstring>

#include "kuafu/comm/reduction.h"

namespace kuafu::standin {

namespace {

DType dtype_of(ncclDataType_t type) {
  switch (type) {
    case ncclFloat64:
      return DType::kF64;
    case ncclFloat32:
      return DType::kF32;
    case ncclBfloat16:
      return DType::kBF16;
    case ncclFloat16:
      return DType::kF16;
    case ncclInt64:
      return DType::kI64;
    case ncclInt32:
      return DType::kI32;
    default:
      return DType::kU8;
  }
}

ReduceOp op_of(ncclRedOp_t op) {
  if (op == ncclSum) return ReduceOp::kSum;
  return op == ncclMax ? ReduceOp::kMax : ReduceOp::kMin;
}

/// Everybody's `count` elements from byte `first` on, rank after rank.
std::vector<std::byte> reduced(const std::vector<CollectiveCall>& calls, size_t first,
                               size_t count) {
  const auto at = [first](const CollectiveCall& c) {
    return static_cast<const std::byte*>(c.in) + first;
  };
  const size_t bytes = count * bytes_of(calls.front().type);
  std::vector<std::byte> sum(at(calls.front()), at(calls.front()) + bytes);
  for (size_t r = 1; r < calls.size(); ++r) {
    // Memory of a caller may lie anywhere.
    std::vector<std::byte> next(at(calls[r]), at(calls[r]) + bytes);
    accumulate(dtype_of(calls[r].type), op_of(calls[r].op), sum.data(), next.data(),
               static_cast<int64_t>(count));
  }
  return sum;
}

void put(void* to, size_t first, const std::vector<std::byte>& bytes) {
  if (!bytes.empty()) std::memcpy(static_cast<std::byte*>(to) + first, bytes.data(), bytes.size());
}

}  // namespace

size_t bytes_of(ncclDataType_t type) { return static_cast<size_t>(size_of(dtype_of(type))); }

void run(const std::vector<CollectiveCall>& calls) {
  const CollectiveCall& any = calls.front();
  const size_t bytes = any.count * bytes_of(any.type);
  const auto input = [&](const CollectiveCall& c) {
    const auto* in = static_cast<const std::byte*>(c.in);
    return std::vector<std::byte>(in, in + bytes);
  };
  const CollectiveCall& root = calls[static_cast<size_t>(any.root)];
  switch (any.what) {
    case Collective::kBroadcast: {
      const auto whole = input(root);
      for (const CollectiveCall& c : calls) put(c.out, 0, whole);
      return;
    }
    case Collective::kReduce:
      return put(root.out, 0, reduced(calls, 0, any.count));
    case Collective::kAllReduce: {
      const auto sum = reduced(calls, 0, any.count);
      for (const CollectiveCall& c : calls) put(c.out, 0, sum);
      return;
    }
    case Collective::kAllGather: {
      std::vector<std::vector<std::byte>> parts;
      for (const CollectiveCall& c : calls) parts.push_back(input(c));
      for (const CollectiveCall& c : calls) {
        for (size_t r = 0; r < parts.size(); ++r) put(c.out, r * bytes, parts[r]);
      }
      return;
    }
    case Collective::kReduceScatter: {
      std::vector<std::vector<std::byte>> sums;
      for (size_t r = 0; r < calls.size(); ++r)
        sums.push_back(reduced(calls, r * bytes, any.count));
      for (size_t r = 0; r < calls.size(); ++r) put(calls[r].out, 0, sums[r]);
    }
  }
}

}  // namespace kuafu::standin
