// SPDX-License-Identifier: Apache-2.0
#include "tests/comm/every_verb.h"

#include <string>

namespace kuafu::conformance {
namespace {

/// Buffers of one call after the other, each from the start of the same memory.
class Arena {
 public:
  explicit Arena(Substance substance) : has_data_(substance == Substance::kData) {}

  struct Wanted {
    int64_t count;
    DType dtype;
  };
  /// Buffers that lie apart.
  std::vector<Buffer> take(const std::vector<Wanted>& wanted) {
    std::vector<Buffer> buffers;
    size_t used = 0;
    std::vector<size_t> offsets;
    for (const Wanted& w : wanted) {
      offsets.push_back(used);
      used += static_cast<size_t>(w.count * size_of(w.dtype) + 7) / 8 * 8;
    }
    if (has_data_ && memory_.size() < used) memory_.resize(used);
    for (size_t i = 0; i < wanted.size(); ++i) {
      buffers.push_back({.data = has_data_ ? memory_.data() + offsets[i] : nullptr,
                         .count = wanted[i].count,
                         .dtype = wanted[i].dtype});
    }
    return buffers;
  }

 private:
  bool has_data_;
  std::vector<std::byte> memory_;
};

void whole_buffers(Communicator& c, Arena& arena, int64_t count) {
  const int n = c.size();
  const auto one = [&](DType t) { return arena.take({{count, t}})[0]; };
  c.broadcast(one(DType::kF32), n - 1).wait();
  c.broadcast(one(DType::kU8), 0).wait();
  c.reduce(one(DType::kF64), n / 2, ReduceOp::kSum).wait();
  c.all_reduce(one(DType::kBF16), ReduceOp::kMax).wait();
  c.all_reduce(one(DType::kF32), ReduceOp::kSum).wait();
}

void messages(Communicator& c, Arena& arena, int64_t count) {
  const int n = c.size(), next = (c.rank() + 1) % n, prev = (c.rank() + n - 1) % n;
  const auto two = arena.take({{count, DType::kF32}, {count, DType::kF32}});
  c.send_recv(two[0], next, two[1], prev, 0).wait();
  Work sent = c.send(two[0], next, 2);
  c.recv(two[1], prev, 2).wait();
  sent.wait();
}

void parts(Communicator& c, Arena& arena, int64_t count) {
  const int n = c.size();
  for (const DType t : {DType::kF32, DType::kF16}) {
    const auto two = arena.take({{count * n, t}, {count, t}});
    c.all_gather(two[0], two[1]).wait();
    c.reduce_scatter(two[1], two[0], ReduceOp::kSum).wait();
  }
  const auto two = arena.take({{count * n, DType::kF32}, {count * n, DType::kF32}});
  c.all_to_all(two[0], two[1]).wait();
}

void uneven_all_to_all(Communicator& c, Arena& arena) {
  Splits uneven;
  int64_t send_total = 0, recv_total = 0;
  for (int r = 0; r < c.size(); ++r) {
    send_total += uneven.send.emplace_back((c.rank() + 2 * r) % 3);
    recv_total += uneven.recv.emplace_back((r + 2 * c.rank()) % 3);
  }
  const auto two = arena.take({{recv_total, DType::kF32}, {send_total, DType::kF32}});
  c.all_to_all(two[0], two[1], uneven).wait();
}

void use(Communicator& c, Substance substance, const CallSizes& sizes) {
  Arena arena(substance);
  for (const int64_t count : sizes.wholes) {
    whole_buffers(c, arena, count);
    messages(c, arena, count);
  }
  for (const int64_t count : sizes.parts) parts(c, arena, count);
  uneven_all_to_all(c, arena);
  c.barrier();
}

}  // namespace

CallSizes sizes_around_thresholds() {
  CallSizes sizes;
  constexpr int64_t kKiB = 1024, kMiB = 1024 * kKiB, kF32 = 4;
  for (const int64_t bytes : {32 * kKiB, 64 * kKiB, 96 * kKiB, kMiB, 2 * kMiB, 8 * kMiB}) {
    for (const int64_t more : {-1, 0, 1}) sizes.wholes.push_back(bytes / kF32 + more);
  }
  for (int64_t n = 1; n <= 8; ++n) {
    for (const int64_t more : {0, 1}) sizes.parts.push_back(64 * kKiB / kF32 / n + more);
  }
  sizes.parts.insert(sizes.parts.end(), {7919, kMiB / kF32, kMiB / kF32 + 1, 600'011});
  return sizes;
}

void every_verb(Communicator& world, Ledger& ledger, Substance substance, const CallSizes& sizes) {
  const auto use_group = [&](const std::string& label, const SplitRule& rule) {
    const auto group = world.split(rule);
    if (group == nullptr) return;
    group->meter(&ledger, label);
    use(*group, substance, sizes);
  };
  world.meter(&ledger, "world");
  use(world, substance, sizes);
  use_group("pairs", [](int r) { return SplitKey{r / 2, -r}; });
  use_group("most", [](int r) { return SplitKey{r == 1 ? -1 : 0, 0}; });
  for (int k = 1; k <= world.size(); ++k) {
    use_group("first " + std::to_string(k), [k](int r) { return SplitKey{r < k ? 0 : -1, -r}; });
  }
}

}  // namespace kuafu::conformance
