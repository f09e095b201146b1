// SPDX-License-Identifier: Apache-2.0
#include <mpi.h>

#include <algorithm>
#include <array>
#include <limits>
#include <numeric>
#include <vector>

#include "kuafu/comm/mpi_channel.h"
#include "kuafu/comm/reduction.h"

namespace kuafu {

namespace {

constexpr int64_t kPieceBytes = int64_t{1} << 30;
constexpr size_t kNumOps = 3;

void check_mpi(int code, const char* call) {
  if (code == MPI_SUCCESS) return;
  std::array<char, MPI_MAX_ERROR_STRING> reason{};
  int length = 0;
  MPI_Error_string(code, reason.data(), &length);
  throw Error(text(call, ": ", reason.data()));
}

#define KUAFU_MPI(call) check_mpi(call, #call)

template <DType dtype, ReduceOp op>
void combine_halves(void* from, void* into, int* count, MPI_Datatype*) {
  accumulate(dtype, op, into, from, *count);
}

template <DType dtype>
std::array<MPI_Op, kNumOps> make_ops() {
  std::array<MPI_Op, kNumOps> ops{};
  KUAFU_MPI(MPI_Op_create(combine_halves<dtype, ReduceOp::kSum>, 1, &ops[0]));
  KUAFU_MPI(MPI_Op_create(combine_halves<dtype, ReduceOp::kMax>, 1, &ops[1]));
  KUAFU_MPI(MPI_Op_create(combine_halves<dtype, ReduceOp::kMin>, 1, &ops[2]));
  return ops;
}

// Calls f(offset, length) for pieces of at most 1 GiB.
template <class F>
void in_pieces(const Buffer& b, const F& f) {
  const int64_t most = kPieceBytes / size_of(b.dtype);
  for (int64_t at = 0; at < b.count; at += most) {
    f(at, static_cast<int>(std::min(most, b.count - at)));
  }
}

std::vector<int> offsets(const std::vector<int>& counts) {
  std::vector<int> at(counts.size(), 0);
  std::partial_sum(counts.begin(), counts.end() - 1, at.begin() + 1);
  return at;
}

}  // namespace

struct MpiNative::Types {
  MPI_Datatype half = MPI_DATATYPE_NULL;  // 16 bits of bf16 or f16
  std::array<MPI_Op, kNumOps> bf16 = make_ops<DType::kBF16>();
  std::array<MPI_Op, kNumOps> f16 = make_ops<DType::kF16>();

  MPI_Datatype type(DType t) const {
    switch (t) {
      case DType::kF64:
        return MPI_DOUBLE;
      case DType::kF32:
        return MPI_FLOAT;
      case DType::kI64:
        return MPI_INT64_T;
      case DType::kI32:
        return MPI_INT32_T;
      case DType::kU8:
        return MPI_UINT8_T;
      default:
        return half;
    }
  }

  MPI_Op op(DType t, ReduceOp op) const {
    const auto i = static_cast<size_t>(op);
    if (t == DType::kBF16) return bf16[i];
    if (t == DType::kF16) return f16[i];
    return std::array<MPI_Op, kNumOps>{MPI_SUM, MPI_MAX, MPI_MIN}[i];
  }
};

MpiNative::MpiNative() : types_(std::make_unique<Types>()) {
  KUAFU_MPI(MPI_Type_contiguous(2, MPI_BYTE, &types_->half));
  KUAFU_MPI(MPI_Type_commit(&types_->half));
}

MpiNative::~MpiNative() = default;  // types and operators end with MPI

bool MpiNative::can_run(const Call& call) {
  const bool is_cut =
      call.verb == Verb::kAllReduce || call.verb == Verb::kReduce || call.verb == Verb::kBroadcast;
  constexpr int64_t kMost = std::numeric_limits<int>::max();
  return is_cut || std::max(call.in.bytes(), call.out.bytes()) <= kMost;
}

void MpiNative::run(MpiChannel& channel, const Call& call) const {
  const MPI_Comm comm = *static_cast<MPI_Comm*>(channel.handle());
  const MPI_Datatype type = types_->type(call.in.dtype);
  const MPI_Op op = types_->op(call.in.dtype, call.op);
  const auto at = [&](int64_t i) {
    return static_cast<std::byte*>(call.out.data) + i * size_of(call.out.dtype);
  };
  const bool is_in_place = call.in.data == call.out.data;
  switch (call.verb) {
    case Verb::kAllReduce:
      return in_pieces(call.out, [&](int64_t i, int n) {
        KUAFU_MPI(MPI_Allreduce(MPI_IN_PLACE, at(i), n, type, op, comm));
      });
    case Verb::kReduce:
      return in_pieces(call.out, [&](int64_t i, int n) {
        const bool is_root = channel.rank() == call.root;
        KUAFU_MPI(MPI_Reduce(is_root ? MPI_IN_PLACE : at(i), is_root ? at(i) : nullptr, n, type, op,
                             call.root, comm));
      });
    case Verb::kBroadcast:
      return in_pieces(call.out, [&](int64_t i, int n) {
        KUAFU_MPI(MPI_Bcast(at(i), n, type, call.root, comm));
      });
    case Verb::kAllGather: {
      const auto n = static_cast<int>(call.in.count);
      const bool is_own_part = n > 0 && call.in.data == at(int64_t{channel.rank()} * n);
      KUAFU_MPI(MPI_Allgather(is_own_part ? MPI_IN_PLACE : call.in.data, n, type, call.out.data, n,
                              type, comm));
      return;
    }
    case Verb::kReduceScatter: {
      // MPI's in-place form puts the result first; this one leaves `in` and puts it where asked.
      std::vector<std::byte> result(static_cast<size_t>(call.out.bytes()));
      KUAFU_MPI(MPI_Reduce_scatter_block(call.in.data, result.data(),
                                         static_cast<int>(call.out.count), type, op, comm));
      std::copy(result.begin(), result.end(), at(0));
      return;
    }
    case Verb::kAllToAll: {
      const std::vector<int> sends(call.splits.send.begin(), call.splits.send.end());
      const std::vector<int> receives(call.splits.recv.begin(), call.splits.recv.end());
      KUAFU_CHECK(!is_in_place || call.in.count == 0, "all_to_all in place is staged before");
      KUAFU_MPI(MPI_Alltoallv(call.in.data, sends.data(), offsets(sends).data(), type,
                              call.out.data, receives.data(), offsets(receives).data(), type,
                              comm));
      return;
    }
    case Verb::kBarrier:
      KUAFU_MPI(MPI_Barrier(comm));
      return;
    default:
      KUAFU_CHECK(false, describe(call), " is no collective");
  }
}

}  // namespace kuafu
