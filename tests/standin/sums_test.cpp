// SPDX-License-Identifier: Apache-2.0
//
// Sums of bf16 and f16: added in f32, rounded once, whatever moves them.

#include <array>

#include "tests/standin/backends.h"

namespace kuafu::conformance {
namespace {

// One and many small ones: each alone would be rounded away.
double element(int rank, int64_t i) { return rank == 0 ? 1.0 : (1.0 + i % 3) / 512; }

double rounded_once(DType t, int ranks, int64_t i) {
  float sum = 0;
  for (int r = 0; r < ranks; ++r) sum += static_cast<float>(element(r, i));
  return static_cast<double>(t == DType::kBF16 ? from_bf16(to_bf16(sum)) : from_f16(to_f16(sum)));
}

void sums_round_once(Communicator& c) {
  const int n = c.size();
  for (const DType t : {DType::kBF16, DType::kF16}) {
    for (const int64_t count : {int64_t{1}, int64_t{5}, int64_t{1003}}) {
      const auto mine = [&](int64_t i) { return element(c.rank(), i); };
      const auto expected = [&](int64_t i) { return rounded_once(t, n, i); };
      Values all(t, count, mine), one(t, count, mine), whole(t, count * n, mine), part(t, count);
      c.all_reduce(all.buffer(), ReduceOp::kSum).wait();
      c.reduce(one.buffer(), n - 1, ReduceOp::kSum).wait();
      c.reduce_scatter(part.buffer(), whole.buffer(), ReduceOp::kSum).wait();
      expect_values(all, expected, "all_reduce");
      if (c.rank() == n - 1) expect_values(one, expected, "reduce");
      expect_values(
          part, [&](int64_t i) { return expected(c.rank() * count + i); }, "reduce_scatter");
    }
  }
}

TEST(WideSums, AreRoundedOnceOnOneCard) {
  for (const int n : {2, 7, 8}) {
    on_fresh_machine(1, 1, [n] { run_on_threads(n, on_a_stream(sums_round_once)); });
  }
}

TEST(WideSums, AreRoundedOnceOnNcclRanks) {
  for (const int n : {2, 7, 8}) {
    on_fresh_machine(n, 1, [n] { run_on_nccl_threads(n, on_a_stream(sums_round_once)); });
  }
}

}  // namespace
}  // namespace kuafu::conformance
