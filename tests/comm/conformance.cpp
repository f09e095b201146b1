// SPDX-License-Identifier: Apache-2.0
#include "tests/comm/conformance.h"

#include <numeric>
#include <thread>

#include "kuafu/comm/algorithms/algorithms.h"
#include "kuafu/comm/algorithms/messages.h"
#include "tests/comm/values.h"

namespace kuafu::conformance {

namespace {

const std::vector<int64_t> kCounts = {0, 1, 2, 3, 5, 17, 1000, 65537};
const std::vector<ReduceOp> kOps = {ReduceOp::kSum, ReduceOp::kMax, ReduceOp::kMin};

std::string label(const char* verb, DType t, int64_t count, const Communicator& c) {
  return text(verb, " of ", to_string(t), " x ", count, " on rank ", c.rank(), " of ", c.size(),
              " ", c.name());
}

Values mine(DType t, int64_t count, int rank) {
  return Values(t, count, [rank](int64_t i) { return value(rank, i); });
}

// Calls f for every dtype and count; the largest count for half of the dtypes only.
void for_all(const std::function<void(DType, int64_t)>& f) {
  for (const DType t : kAllTypes) {
    for (const int64_t count : kCounts) {
      if (count <= 1000 || t == DType::kF32 || t == DType::kBF16 || t == DType::kI64) f(t, count);
    }
  }
}

void broadcasts(Communicator& c) {
  for_all([&](DType t, int64_t count) {
    for (int root = 0; root < c.size(); ++root) {
      Values v = mine(t, count, c.rank());
      c.broadcast(v.buffer(), root).wait();
      expect_values(
          v, [&](int64_t i) { return value(root, i); }, label("broadcast", t, count, c));
    }
  });
}

void reduces(Communicator& c) {
  for_all([&](DType t, int64_t count) {
    for (int root = 0; root < c.size(); ++root) {
      const ReduceOp op = kOps[static_cast<size_t>(root) % kOps.size()];
      Values v = mine(t, count, c.rank());
      c.reduce(v.buffer(), root, op).wait();
      if (c.rank() != root) continue;
      expect_values(
          v, [&](int64_t i) { return reduced(op, c.size(), i); }, label("reduce", t, count, c));
    }
  });
}

void all_reduces(Communicator& c) {
  for_all([&](DType t, int64_t count) {
    for (const ReduceOp op : kOps) {
      Values v = mine(t, count, c.rank());
      c.all_reduce(v.buffer(), op).wait();
      expect_values(
          v, [&](int64_t i) { return reduced(op, c.size(), i); }, label("all_reduce", t, count, c));
    }
  });
}

void all_gathers(Communicator& c) {
  for_all([&](DType t, int64_t count) {
    const auto expected = [&](int64_t i) { return value(i / count, i % count); };
    Values in = mine(t, count, c.rank());
    Values out(t, count * c.size());
    c.all_gather(out.buffer(), in.buffer()).wait();
    expect_values(out, expected, label("all_gather", t, count, c));

    Values both(t, count * c.size(), [&](int64_t i) { return value(c.rank(), i % count); });
    c.all_gather(both.buffer(), both.buffer().part(c.rank(), c.size())).wait();
    expect_values(both, expected, label("all_gather in place", t, count, c));
  });
}

void reduce_scatters(Communicator& c) {
  for_all([&](DType t, int64_t count) {
    const auto expected = [&](ReduceOp op) {
      return [&c, op, count](int64_t i) { return reduced(op, c.size(), c.rank() * count + i); };
    };
    Values in = mine(t, count * c.size(), c.rank());
    Values out(t, count);
    c.reduce_scatter(out.buffer(), in.buffer(), ReduceOp::kSum).wait();
    expect_values(out, expected(ReduceOp::kSum), label("reduce_scatter", t, count, c));
    expect_values(
        in, [&](int64_t i) { return value(c.rank(), i); },
        label("input of reduce_scatter", t, count, c));

    const Buffer part = in.buffer().part(c.rank(), c.size());
    c.reduce_scatter(part, in.buffer(), ReduceOp::kMax).wait();
    out.take(part);
    expect_values(out, expected(ReduceOp::kMax), label("reduce_scatter in place", t, count, c));
  });
}

void all_to_alls(Communicator& c) {
  for_all([&](DType t, int64_t count) {
    const auto sent = [&](int from, int64_t to, int64_t i) { return value(from * 3 + to, i); };
    const auto expected = [&](int64_t i) {
      return sent(static_cast<int>(i / count), c.rank(), i % count);
    };
    Values in(t, count * c.size(), [&](int64_t i) { return sent(c.rank(), i / count, i % count); });
    Values out(t, count * c.size());
    c.all_to_all(out.buffer(), in.buffer()).wait();
    expect_values(out, expected, label("all_to_all", t, count, c));
    c.all_to_all(in.buffer(), in.buffer()).wait();
    expect_values(in, expected, label("all_to_all in place", t, count, c));
  });
}

// Rank i sends (i + 2 j) % 4 * unit elements to rank j: some pairs none.
void uneven_all_to_alls(Communicator& c) {
  for (const int64_t unit : {int64_t{1}, int64_t{7}, int64_t{9000}}) {
    const auto length = [&](int from, int to) { return (from + 2 * to) % 4 * unit; };
    Splits splits;
    for (int r = 0; r < c.size(); ++r) {
      splits.send.push_back(length(c.rank(), r));
      splits.recv.push_back(length(r, c.rank()));
    }
    const auto total = [](const std::vector<int64_t>& parts) {
      return std::accumulate(parts.begin(), parts.end(), int64_t{0});
    };
    Values in(DType::kF32, total(splits.send));
    Values out(DType::kF32, total(splits.recv));
    int64_t at = 0;
    for (int r = 0; r < c.size(); ++r) {
      for (int64_t i = 0; i < length(c.rank(), r); ++i) in.set(at++, value(c.rank() * 5 + r, i));
    }
    c.all_to_all(out.buffer(), in.buffer(), splits).wait();
    at = 0;
    for (int r = 0; r < c.size(); ++r) {
      for (int64_t i = 0; i < length(r, c.rank()); ++i) {
        ASSERT_EQ(out.get(at++), value(r * 5 + c.rank(), i)) << "element " << i << " from " << r;
      }
    }
  }
}

// Messages around the ring, the later tag received first; small and large ones.
void messages_match_by_tag(Communicator& c) {
  const int next = (c.rank() + 1) % c.size(), prev = (c.rank() + c.size() - 1) % c.size();
  for (const int64_t count : {int64_t{0}, int64_t{3}, int64_t{65537}}) {
    Values first = mine(DType::kF64, count, c.rank()),
           second = mine(DType::kI32, count, c.rank() + 9);
    Values got_first(DType::kF64, count), got_second(DType::kI32, count);
    Work send_first = c.send(first.buffer(), next, 1);
    Work send_second = c.send(second.buffer(), next, 2);
    c.recv(got_second.buffer(), prev, 2).wait();
    c.recv(got_first.buffer(), prev, 1).wait();
    send_first.wait();
    send_second.wait();
    expect_values(
        got_first, [&](int64_t i) { return value(prev, i); }, "tag 1");
    expect_values(
        got_second, [&](int64_t i) { return value(prev + 9, i); }, "tag 2");
  }
}

// Messages of one tag arrive in the order they were sent.
void messages_keep_their_order(Communicator& c) {
  const int next = (c.rank() + 1) % c.size(), prev = (c.rank() + c.size() - 1) % c.size();
  for (const int64_t count : {int64_t{4}, int64_t{20000}}) {
    std::vector<Values> out, in;
    std::vector<Work> works;
    for (int k = 0; k < 5; ++k) {
      out.push_back(mine(DType::kF32, count, c.rank() + k));
      in.emplace_back(DType::kF32, count);
    }
    for (Values& v : out) works.push_back(c.send(v.buffer(), next, 0));
    for (Values& v : in) works.push_back(c.recv(v.buffer(), prev, 0));
    for (Work& w : works) w.wait();
    for (int k = 0; k < 5; ++k) {
      expect_values(
          in[static_cast<size_t>(k)], [&](int64_t i) { return value(prev + k, i); },
          text("message ", k));
    }
  }
}

void shifts_around_the_ring(Communicator& c) {
  for (const int64_t count : {int64_t{0}, int64_t{1}, int64_t{1000}, int64_t{65537}}) {
    for (int by = 0; by < c.size(); ++by) {
      const int to = (c.rank() + by) % c.size(), from = (c.rank() + c.size() - by) % c.size();
      Values out = mine(DType::kF32, count, c.rank()), in(DType::kF32, count);
      c.send_recv(out.buffer(), to, in.buffer(), from, 5).wait();
      expect_values(
          in, [&](int64_t i) { return value(from, i); }, "shifted");
      c.send_recv(out.buffer(), to, out.buffer(), from, 6).wait();
      expect_values(
          out, [&](int64_t i) { return value(from, i); }, "shifted in place");
    }
  }
}

void splits_into_groups(Communicator& c) {
  const auto half = c.split([](int r) { return SplitKey{r % 2, -r}; });  // highest rank first
  ASSERT_NE(half, nullptr);
  std::vector<int> expected;
  for (int r = c.size() - 1; r >= 0; --r) {
    if (r % 2 == c.rank() % 2) expected.push_back(c.members()[static_cast<size_t>(r)]);
  }
  EXPECT_EQ(half->members(), expected);
  EXPECT_EQ(half->members()[static_cast<size_t>(half->rank())],
            c.members()[static_cast<size_t>(c.rank())]);
  Values v = mine(DType::kF32, 100, half->rank());
  half->all_reduce(v.buffer(), ReduceOp::kSum).wait();
  expect_values(
      v, [&](int64_t i) { return reduced(ReduceOp::kSum, half->size(), i); }, "half");

  const auto most = c.split([](int r) { return SplitKey{r == 0 ? -1 : 3, 0}; });
  EXPECT_EQ(most == nullptr, c.rank() == 0);
  if (most != nullptr) {
    EXPECT_EQ(most->size(), c.size() - 1);
    EXPECT_EQ(most->rank(), c.rank() - 1);
    all_reduces(*most);
    const auto nested = most->split([](int r) { return SplitKey{r / 2, 0}; });
    Values w = mine(DType::kI64, 5, nested->rank());
    nested->all_reduce(w.buffer(), ReduceOp::kSum).wait();
    expect_values(
        w, [&](int64_t i) { return reduced(ReduceOp::kSum, nested->size(), i); }, "nested");
  }
}

// Two collectives and a shift under way at once, over the world and a subgroup, waited for in an
// order that differs from rank to rank.
void operations_overlap(Communicator& c) {
  const auto group = c.split([](int r) { return SplitKey{r / 2, 0}; });
  const int next = (c.rank() + 1) % c.size(), prev = (c.rank() + c.size() - 1) % c.size();
  for (const int64_t count : {int64_t{3}, int64_t{1000}, int64_t{200000}}) {
    for (int order = 0; order < 2; ++order) {
      Values a = mine(DType::kF32, count, c.rank()), b = mine(DType::kF64, count, c.rank());
      Values d = mine(DType::kI32, count, group->rank());
      Values out = mine(DType::kF32, count, c.rank()), in(DType::kF32, count);
      std::vector<Work> works;
      works.push_back(c.all_reduce(a.buffer(), ReduceOp::kSum));
      works.push_back(c.broadcast(b.buffer(), c.size() - 1));
      works.push_back(group->all_reduce(d.buffer(), ReduceOp::kMax));
      works.push_back(c.send_recv(out.buffer(), next, in.buffer(), prev, 1));
      const size_t n = works.size(), turn = static_cast<size_t>(c.rank() + order);
      for (size_t k = 0; k < n; ++k) works[(turn % 2 == 0 ? k : n - 1 - k)].wait();
      expect_values(
          a, [&](int64_t i) { return reduced(ReduceOp::kSum, c.size(), i); }, "first");
      expect_values(
          b, [&](int64_t i) { return value(c.size() - 1, i); }, "second");
      expect_values(
          d, [&](int64_t i) { return reduced(ReduceOp::kMax, group->size(), i); }, "third");
      expect_values(
          in, [&](int64_t i) { return value(prev, i); }, "shift");
    }
  }
}

void dropped_work_is_waited_for(Communicator& c) {
  Values v = mine(DType::kF32, 100000, c.rank());
  c.all_reduce(v.buffer(), ReduceOp::kSum);
  expect_values(
      v, [&](int64_t i) { return reduced(ReduceOp::kSum, c.size(), i); }, "dropped");
}

// Sums that round: all ranks have the same bits, and a second run too.
void sums_repeat_bit_by_bit(Communicator& c) {
  for (const int64_t count : {int64_t{7}, int64_t{1001}, int64_t{50000}}) {
    std::vector<double> sums;
    for (int run = 0; run < 2; ++run) {
      Values v(DType::kF32, count, [&](int64_t i) { return 1.0 / (3 + c.rank() + 0.1 * i); });
      c.all_reduce(v.buffer(), ReduceOp::kSum).wait();
      Values highest = v, lowest = v;
      c.all_reduce(highest.buffer(), ReduceOp::kMax).wait();
      c.all_reduce(lowest.buffer(), ReduceOp::kMin).wait();
      expect_values(
          highest, [&](int64_t i) { return lowest.get(i); }, "the same on all ranks");
      if (run == 0) {
        for (int64_t i = 0; i < count; ++i) sums.push_back(v.get(i));
      } else {
        expect_values(
            v, [&](int64_t i) { return sums[static_cast<size_t>(i)]; }, "second run");
      }
    }
  }
}

// A receive tests false until somebody sends, and then some time true; likewise a sum.
void tests_without_blocking(Communicator& c) {
  const int next = (c.rank() + 1) % c.size(), prev = (c.rank() + c.size() - 1) % c.size();
  for (const int64_t count : {int64_t{1}, int64_t{3000}, int64_t{200000}}) {
    Values in(DType::kF32, count), out = mine(DType::kF32, count, c.rank());
    Work received = c.recv(in.buffer(), prev, 1);
    EXPECT_FALSE(received.test());
    c.barrier();
    Work sent = c.send(out.buffer(), next, 1);
    while (!received.test() || !sent.test()) std::this_thread::yield();
    EXPECT_TRUE(received.test());  // again
    received.wait();
    sent.wait();
    expect_values(
        in, [&](int64_t i) { return value(prev, i); }, "tested");
    Work summed = c.all_reduce(out.buffer(), ReduceOp::kSum);
    while (!summed.test()) std::this_thread::yield();
    summed.wait();
    expect_values(
        out, [&](int64_t i) { return reduced(ReduceOp::kSum, c.size(), i); }, "tested sum");
  }
}

// Algorithms as programs, over the communicator's own messages; the ledger counts what they send.
void algorithms_over_messages(Communicator& c) {
  using namespace algorithms;
  const GroupRank at{c.size(), c.rank()};
  if (c.size() == 1) return;
  for (const int64_t count : {0, 1, 3, 17, 1001, 40000}) {
    const Range whole{0, count};
    for (const Program& program :
         {ring_all_reduce(at, whole), tree_all_reduce(at, whole), doubling_all_reduce(at, whole),
          halving_doubling_all_reduce(at, whole)}) {
      Values v = mine(DType::kF32, count, c.rank()), room(DType::kF32, program.scratch);
      const Messages::Memory memory{v.buffer(), v.buffer(), room.buffer()};
      Ledger ledger;
      c.meter(&ledger, "axis");
      Messages under_way(c, program, memory, 5,
                         [&](const Local& local) { work_locally(local, memory, ReduceOp::kSum); });
      while (under_way.advance()) {
      }
      c.meter(nullptr, "");
      expect_values(
          v, [&](int64_t i) { return reduced(ReduceOp::kSum, c.size(), i); }, "over messages");
      const WireTraffic planned = traffic(program, size_of(DType::kF32));
      EXPECT_EQ(ledger.axis("axis").bytes_sent, planned.sent);
      EXPECT_EQ(ledger.axis("axis").bytes_received, planned.received);
      EXPECT_EQ(ledger.axis("axis").messages, planned.messages);
    }
  }
}

void barriers(Communicator& c) {
  for (int i = 0; i < 20; ++i) c.barrier();
}

}  // namespace

void refuses_bad_input(Communicator& c) {
  Values v(DType::kF32, 8 * c.size()), other(DType::kF64, 8);
  const Buffer b = v.buffer();  // 8 elements a rank
  EXPECT_THROW(c.broadcast(b, c.size()), ConfigError);
  EXPECT_THROW(c.reduce(b, -1, ReduceOp::kSum), ConfigError);
  EXPECT_THROW(c.all_reduce({.data = nullptr, .count = 3}, ReduceOp::kSum), ConfigError);
  EXPECT_THROW(c.all_reduce({.data = b.data, .count = -1}, ReduceOp::kSum), ConfigError);
  EXPECT_THROW(c.all_reduce({.data = b.data, .count = 1, .place = Place::kMeta}, ReduceOp::kSum),
               ConfigError);
  EXPECT_THROW(c.all_gather(b, b.range(0, 7)), ConfigError);
  EXPECT_THROW(c.all_gather(b, other.buffer()), ConfigError);
  EXPECT_THROW(c.reduce_scatter(b.range(0, 7), b, ReduceOp::kSum), ConfigError);
  if (c.size() > 1) {
    EXPECT_THROW(c.all_gather(b, b.part((c.rank() + 1) % c.size(), c.size())), ConfigError);
    EXPECT_THROW(c.all_to_all(b.range(0, c.size() + 1), b.range(0, c.size() + 1)), ConfigError);
  }
  EXPECT_THROW(c.all_to_all(b, b, {.send = {1}, .recv = {}}), ConfigError);
  EXPECT_THROW(c.send(b, c.size(), 0), ConfigError);
  EXPECT_THROW(c.send(b, 0, -1), ConfigError);
  EXPECT_THROW(c.recv(b, -1, 0), ConfigError);
  EXPECT_THROW(c.send_recv(b.range(0, 4), 0, b.range(2, 4), 0, 0), ConfigError);
  Values w(DType::kF32, 10, [&](int64_t i) { return value(c.rank(), i); });
  c.all_reduce(w.buffer(), ReduceOp::kSum).wait();
  expect_values(
      w, [&](int64_t i) { return reduced(ReduceOp::kSum, c.size(), i); }, "afterwards");
}

const std::vector<Body>& bodies() {
  static const std::vector<Body> all = {
      {"Broadcast", broadcasts},
      {"Reduce", reduces},
      {"AllReduce", all_reduces},
      {"AllGather", all_gathers},
      {"ReduceScatter", reduce_scatters},
      {"AllToAll", all_to_alls},
      {"UnevenAllToAll", uneven_all_to_alls},
      {"MessagesMatchByTag", messages_match_by_tag},
      {"MessagesKeepTheirOrder", messages_keep_their_order},
      {"ShiftsAroundTheRing", shifts_around_the_ring},
      {"SplitsIntoGroups", splits_into_groups},
      {"OperationsOverlap", operations_overlap},
      {"DroppedWorkIsWaitedFor", dropped_work_is_waited_for},
      {"SumsRepeatBitByBit", sums_repeat_bit_by_bit},
      {"TestsWithoutBlocking", tests_without_blocking},
      {"AlgorithmsOverMessages", algorithms_over_messages},
      {"Barriers", barriers},
      {"RefusesBadInput", refuses_bad_input},
  };
  return all;
}

}  // namespace kuafu::conformance
