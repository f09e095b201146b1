// SPDX-License-Identifier: Apache-2.0
#include "kuafu/comm/algorithms/algorithms.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <deque>
#include <map>
#include <numeric>
#include <random>
#include <tuple>

#include "kuafu/comm/algorithms/execution.h"
#include "tests/comm/values.h"

namespace kuafu::algorithms {
namespace {

using conformance::reduced;
using conformance::value;
using conformance::Values;

/// Messages between ranks of one process, delivered when the receiver asks; counts what passes.
class Post {
 public:
  explicit Post(int n) : sent(static_cast<size_t>(n)), received(sent), messages(sent) {}
  std::map<std::tuple<int, int, int>, std::deque<std::vector<std::byte>>> boxes;  // from, to, tag
  std::vector<int64_t> sent, received, messages;
};

class MemoryWire : public Wire {
 public:
  MemoryWire(Post& post, int rank) : post_(post), rank_(rank) {}
  int send(const void* data, int64_t bytes, int to, int tag) override {
    const auto* first = static_cast<const std::byte*>(data);
    post_.boxes[{rank_, to, tag}].emplace_back(first, first + bytes);
    const auto me = static_cast<size_t>(rank_);
    post_.sent[me] += bytes;
    post_.messages[me] += bytes > 0 ? 1 : 0;
    return -1;
  }
  int receive(void* data, int64_t bytes, int from, int tag) override {
    expected_.push_back({data, bytes, from, tag});
    return static_cast<int>(expected_.size()) - 1;
  }
  bool test(const std::vector<int>& handles) override {
    return std::all_of(handles.begin(), handles.end(), [this](int h) { return is_through(h); });
  }

 private:
  bool is_through(int handle) {
    if (handle < 0) return true;
    // Receives of one sender and tag are filled in the order they were posted.
    for (int i = 0; i <= handle; ++i) {
      Expected& e = expected_[static_cast<size_t>(i)];
      auto& box = post_.boxes[{e.from, rank_, e.tag}];
      if (e.is_filled || box.empty()) continue;
      EXPECT_EQ(static_cast<int64_t>(box.front().size()), e.bytes);
      if (e.bytes > 0) std::memcpy(e.data, box.front().data(), static_cast<size_t>(e.bytes));
      box.pop_front();
      e.is_filled = true;
      post_.received[static_cast<size_t>(rank_)] += e.bytes;
    }
    return expected_[static_cast<size_t>(handle)].is_filled;
  }

  struct Expected {
    void* data;
    int64_t bytes;
    int from, tag;
    bool is_filled = false;
  };
  Post& post_;
  int rank_;
  std::vector<Expected> expected_;
};

/// Advances all ranks in a seeded random order until all are done; returns each rank's traffic,
/// which the ledger entry, the plan and the wire must agree on.
std::vector<WireTraffic> run(const std::vector<Call>& calls,
                             const std::function<Lanes(GroupRank)>& plan) {
  const int n = static_cast<int>(calls.size());
  Post post(n);
  std::vector<int> members(static_cast<size_t>(n));
  std::iota(members.begin(), members.end(), 0);
  std::deque<MemoryWire> wires;
  std::deque<ScratchPool> pools;
  std::deque<Execution> executions;
  std::vector<AxisLedger> entries(static_cast<size_t>(n));
  for (int r = 0; r < n; ++r) {
    wires.emplace_back(post, r);
    const auto me = static_cast<size_t>(r);
    executions.emplace_back(
        calls[me], plan({n, r}),
        Execution::Setting{wires.back(), pools.emplace_back(), members, &entries[me]}, 0);
  }
  std::mt19937 random(7);
  std::vector<bool> is_done(static_cast<size_t>(n), false);
  for (int turn = 0; std::find(is_done.begin(), is_done.end(), false) != is_done.end(); ++turn) {
    if (turn > 1'000'000) {
      ADD_FAILURE() << "the algorithm does not end";
      return {};
    }
    const size_t r = random() % static_cast<size_t>(n);
    is_done[r] = executions[r].advance();
  }
  std::vector<WireTraffic> traffics;
  for (int r = 0; r < n; ++r) {
    const auto me = static_cast<size_t>(r);
    const WireTraffic planned = traffic(plan({n, r}), size_of(calls[me].dtype()));
    EXPECT_EQ(planned.sent, post.sent[me]);
    EXPECT_EQ(planned.received, post.received[me]);
    EXPECT_EQ(planned.messages, post.messages[me]);
    EXPECT_EQ(planned.sent, entries[me].bytes_sent);
    EXPECT_EQ(planned.received, entries[me].bytes_received);
    EXPECT_EQ(planned.messages, entries[me].messages);
    EXPECT_TRUE(std::equal(planned.wire_peers.begin(), planned.wire_peers.end(),
                           entries[me].wire_peers.begin(), entries[me].wire_peers.end()));
    traffics.push_back(planned);
  }
  for (const auto& [key, box] : post.boxes) EXPECT_TRUE(box.empty()) << "a message nobody received";
  return traffics;
}

const std::vector<int> kRanks = {2, 3, 4, 5, 6, 7, 8, 13};
const std::vector<int64_t> kCounts = {0, 1, 3, 17, 240, 1001};

using AllReduce = std::function<Lanes(GroupRank, int64_t count)>;

/// Runs an all-reduce of f32 and checks its result; returns the traffic.
std::vector<WireTraffic> run_all_reduce(int n, int64_t count, const AllReduce& algorithm) {
  std::vector<Values> data;
  std::vector<Call> calls;
  for (int r = 0; r < n; ++r) {
    data.emplace_back(DType::kF32, count, [r](int64_t i) { return value(r, i); });
  }
  for (Values& v : data) {
    calls.push_back({.verb = Verb::kAllReduce, .out = v.buffer(), .in = v.buffer()});
  }
  const auto traffics = run(calls, [&](GroupRank at) { return algorithm(at, count); });
  for (const Values& v : data) {
    expect_values(
        v, [n](int64_t i) { return reduced(ReduceOp::kSum, n, i); },
        text("all_reduce of ", count, " on ", n));
  }
  return traffics;
}

Lanes one(Program program) {
  return {1, [program](int64_t) { return program; }};
}

TEST(RingAllReduce, SendsWhatTheConventionSays) {
  for (const int n : kRanks) {
    for (const int64_t count : kCounts) {
      const auto traffics = run_all_reduce(n, count, [](GroupRank s, int64_t c) {
        return one(ring_all_reduce(s, {0, c}));
      });
      for (int r = 0; r < n; ++r) {
        const Buffer b{.count = count};
        EXPECT_EQ(traffics[static_cast<size_t>(r)],
                  convention({.verb = Verb::kAllReduce, .out = b, .in = b}, n, r));
      }
    }
  }
}

TEST(RingAllReduce, LanesChangeMessagesButNotBytes) {
  for (const int n : kRanks) {
    for (const int64_t lanes : {2, 5, 9}) {
      const int64_t count = n * lanes * 3;
      const auto traffics = run_all_reduce(n, count, [lanes](GroupRank s, int64_t c) {
        return Lanes{lanes, [=](int64_t k) { return ring_all_reduce(s, {0, c}, {k, lanes}); }};
      });
      for (const WireTraffic& t : traffics) {
        EXPECT_EQ(t.received, 2 * (n - 1) * count * 4 / n);
        EXPECT_EQ(t.messages, 2 * (n - 1) * lanes);
      }
    }
  }
}

TEST(DoublingAllReduce, MeetsItsClosedForm) {
  for (const int n : kRanks) {
    for (const int64_t count : kCounts) {
      const auto traffics = run_all_reduce(n, count, [](GroupRank s, int64_t c) {
        return one(doubling_all_reduce(s, {0, c}));
      });
      const int m = static_cast<int>(std::bit_floor(static_cast<unsigned>(n)));
      const int rounds = std::countr_zero(static_cast<unsigned>(m)), folded = 2 * (n - m);
      for (int r = 0; r < n; ++r) {
        const int messages = r >= folded ? rounds : r % 2 == 1 ? rounds + 1 : 1;
        const WireTraffic& t = traffics[static_cast<size_t>(r)];
        EXPECT_EQ(t.received, messages * count * 4);
        EXPECT_EQ(t.sent, messages * count * 4);
        EXPECT_EQ(t.messages, count == 0 ? 0 : messages);
      }
    }
  }
}

TEST(HalvingDoublingAllReduce, MeetsItsClosedForm) {
  for (const int n : kRanks) {
    const int m = static_cast<int>(std::bit_floor(static_cast<unsigned>(n)));
    const int rounds = std::countr_zero(static_cast<unsigned>(m)), folded = 2 * (n - m);
    for (const int64_t count :
         {int64_t{0}, int64_t{1}, int64_t{17}, int64_t{240}, 64 * int64_t{m}}) {
      const auto traffics = run_all_reduce(n, count, [](GroupRank s, int64_t c) {
        return one(halving_doubling_all_reduce(s, {0, c}));
      });
      if (count % m != 0 || count == 0) continue;
      for (int r = 0; r < n; ++r) {
        const int64_t exchanged = 2 * (m - 1) * count * 4 / m, whole = count * 4;
        const WireTraffic& t = traffics[static_cast<size_t>(r)];
        const int64_t expected = r >= folded ? exchanged : r % 2 == 1 ? exchanged + whole : whole;
        EXPECT_EQ(t.received, expected);
        EXPECT_EQ(t.sent, expected);
        EXPECT_EQ(t.messages, r >= folded ? 2 * rounds : r % 2 == 1 ? 2 * rounds + 1 : 1);
      }
    }
  }
}

TEST(TreeAllReduce, MeetsItsClosedForm) {
  for (const int n : kRanks) {
    for (const int64_t count : kCounts) {
      const auto traffics = run_all_reduce(n, count, [](GroupRank s, int64_t c) {
        return one(tree_all_reduce(s, {0, c}));
      });
      int64_t messages = 0, bytes = 0;
      for (const WireTraffic& t : traffics) {
        messages += t.messages;
        bytes += t.received;
      }
      EXPECT_EQ(messages, count == 0 ? 0 : 2 * (n - 1));
      EXPECT_EQ(bytes, 2 * (n - 1) * count * 4);
      EXPECT_EQ(traffics[0].wire_peers.size(),
                count == 0 ? 0 : static_cast<size_t>(std::bit_width(static_cast<unsigned>(n - 1))));
    }
  }
}

// Where sums go on by a round at a time, what is sent in a round is waited for in the round of the
// same number: otherwise a rank would wait for one that is not that far.
TEST(RoundsOfSums, AreThoseInWhichTheOtherSideReceives) {
  using Meeting = std::tuple<size_t, int, int, int64_t>;  // round, from, to, elements
  const Range whole{0, 1001};
  for (const auto& program : std::vector<std::function<Program(GroupRank)>>{
           [&](GroupRank me) { return ring_all_reduce(me, whole); },
           [&](GroupRank me) { return ring_sum_parts(me, whole); },
           [&](GroupRank me) { return ring_share_parts(me, whole); },
           [&](GroupRank me) { return tree_all_reduce(me, whole); }}) {
    for (int n = 2; n <= 33; ++n) {
      std::vector<Meeting> sent, received;
      for (int r = 0; r < n; ++r) {
        const std::vector<Round> rounds = program({n, r}).rounds;
        for (size_t i = 0; i < rounds.size(); ++i) {
          for (const Transfer& t : rounds[i].sends) {
            sent.emplace_back(i, r, t.peer, t.span.range.count);
          }
          for (const Transfer& t : rounds[i].receives) {
            received.emplace_back(i, t.peer, r, t.span.range.count);
          }
        }
      }
      std::sort(sent.begin(), sent.end());
      std::sort(received.begin(), received.end());
      EXPECT_EQ(sent, received) << n << " ranks";
    }
  }
}

/// Broadcast or reduce of i64 from or to every root.
void run_rooted(
    Verb verb, const std::function<Program(GroupRank, int root, Range)>& algorithm,
    const std::function<void(const WireTraffic&, int n, int place, int64_t bytes)>& check) {
  for (const int n : kRanks) {
    for (const int64_t count : kCounts) {
      for (int root = 0; root < n; ++root) {
        std::vector<Values> data;
        std::vector<Call> calls;
        for (int r = 0; r < n; ++r) {
          data.emplace_back(DType::kI64, count, [r](int64_t i) { return value(r, i); });
        }
        for (Values& v : data) {
          calls.push_back({.verb = verb, .out = v.buffer(), .in = v.buffer(), .root = root});
        }
        const auto traffics = run(calls, [&](GroupRank s) {
          return one(algorithm(s, root, {0, count}));
        });
        for (int r = 0; r < n; ++r) {
          if (count > 0) {
            check(traffics[static_cast<size_t>(r)], n, (r - root + n) % n, count * 8);
          }
          if (verb == Verb::kReduce && r != root) continue;
          expect_values(
              data[static_cast<size_t>(r)],
              [&](int64_t i) {
                return verb == Verb::kReduce ? reduced(ReduceOp::kSum, n, i) : value(root, i);
              },
              text(to_string(verb), " on ", n));
        }
      }
    }
  }
}

int num_children(int place, int n) {
  int children = 0;
  for (int bit = 1; bit < n && (place & bit) == 0; bit *= 2) children += place + bit < n ? 1 : 0;
  return children;
}

TEST(TreeBroadcast, MeetsItsClosedForm) {
  run_rooted(Verb::kBroadcast, tree_broadcast,
             [](const WireTraffic& t, int n, int place, int64_t bytes) {
               EXPECT_EQ(t.received, place == 0 ? 0 : bytes);
               EXPECT_EQ(t.messages, num_children(place, n));
               EXPECT_EQ(t.sent, num_children(place, n) * bytes);
             });
}

TEST(TreeReduce, MeetsItsClosedForm) {
  run_rooted(Verb::kReduce, tree_reduce, [](const WireTraffic& t, int n, int place, int64_t bytes) {
    EXPECT_EQ(t.sent, place == 0 ? 0 : bytes);
    EXPECT_EQ(t.messages, place == 0 ? 0 : 1);
    EXPECT_EQ(t.received, num_children(place, n) * bytes);
  });
}

TEST(ChainBroadcast, MeetsItsClosedForm) {
  for (const int64_t segments : {1, 3, 8}) {
    run_rooted(
        Verb::kBroadcast,
        [=](GroupRank s, int root, Range whole) {
          return chain_broadcast(s, root, whole, segments);
        },
        [=](const WireTraffic& t, int n, int place, int64_t bytes) {
          EXPECT_EQ(t.received, place == 0 ? 0 : bytes);
          EXPECT_EQ(t.sent, place == n - 1 ? 0 : bytes);
          EXPECT_EQ(t.messages, place == n - 1 ? 0 : std::min(segments, bytes / 8));
        });
  }
}

TEST(ChainReduce, MeetsItsClosedForm) {
  for (const int64_t segments : {1, 3, 8}) {
    run_rooted(
        Verb::kReduce,
        [=](GroupRank s, int root, Range whole) { return chain_reduce(s, root, whole, segments); },
        [=](const WireTraffic& t, int, int place, int64_t bytes) {
          EXPECT_EQ(t.received, place == 1 ? 0 : bytes);
          EXPECT_EQ(t.sent, place == 0 ? 0 : bytes);
          EXPECT_EQ(t.messages, place == 0 ? 0 : std::min(segments, bytes / 8));
        });
  }
}

/// all_gather or reduce_scatter of f32 with the caller's part apart or in place.
void run_parts(Verb verb, const std::function<Lanes(GroupRank, int64_t part)>& plan) {
  for (const int n : kRanks) {
    for (const int64_t part : {0, 1, 5, 100}) {
      for (const bool is_in_place : {false, true}) {
        const bool gathers = verb == Verb::kAllGather;
        std::vector<Values> wholes, parts;
        std::vector<Call> calls;
        for (int r = 0; r < n; ++r) {
          wholes.emplace_back(DType::kF32, part * n, [=](int64_t i) {
            return value(r, gathers ? i % std::max<int64_t>(1, part) : i);
          });
          parts.emplace_back(DType::kF32, part, [r](int64_t i) { return value(r, i); });
        }
        for (int r = 0; r < n; ++r) {
          const auto me = static_cast<size_t>(r);
          const Buffer whole = wholes[me].buffer();
          const Buffer mine = is_in_place ? whole.part(r, n) : parts[me].buffer();
          calls.push_back(
              {.verb = verb, .out = gathers ? whole : mine, .in = gathers ? mine : whole});
        }
        const auto traffics = run(calls, [&](GroupRank s) { return plan(s, part); });
        for (int r = 0; r < n; ++r) {
          const auto me = static_cast<size_t>(r);
          EXPECT_EQ(traffics[me].received, (n - 1) * part * 4);
          EXPECT_EQ(traffics[me].sent, (n - 1) * part * 4);
          if (gathers) {
            expect_values(
                wholes[me], [=](int64_t i) { return value(i / part, i % part); }, "gathered");
            continue;
          }
          if (part > 0 && is_in_place) {
            std::memcpy(parts[me].buffer().data, calls[me].out.data, static_cast<size_t>(part) * 4);
          }
          expect_values(
              parts[me], [=](int64_t i) { return reduced(ReduceOp::kSum, n, r * part + i); },
              "scattered");
        }
      }
    }
  }
}

TEST(RingAllGather, MeetsItsClosedForm) {
  run_parts(Verb::kAllGather, [](GroupRank s, int64_t part) {
    return Lanes{3, [=](int64_t k) { return ring_all_gather(s, part, {k, 3}); }};
  });
}

TEST(DirectAllGather, MeetsItsClosedForm) {
  run_parts(Verb::kAllGather,
            [](GroupRank s, int64_t part) { return one(direct_all_gather(s, part)); });
}

TEST(RingReduceScatter, MeetsItsClosedForm) {
  run_parts(Verb::kReduceScatter, [](GroupRank s, int64_t part) {
    return Lanes{3, [=](int64_t k) { return ring_reduce_scatter(s, part, {k, 3}); }};
  });
}

TEST(DirectReduceScatter, MeetsItsClosedForm) {
  run_parts(Verb::kReduceScatter,
            [](GroupRank s, int64_t part) { return one(direct_reduce_scatter(s, part)); });
}

TEST(PairwiseAllToAll, SendsAllButItsOwnPart) {
  for (const int n : kRanks) {
    const auto length = [](int from, int to) { return static_cast<int64_t>((from + 2 * to) % 4); };
    std::vector<Values> ins, outs;
    std::vector<Call> calls;
    for (int r = 0; r < n; ++r) {
      Call call{.verb = Verb::kAllToAll};
      for (int i = 0; i < n; ++i) {
        call.splits.send.push_back(length(r, i));
        call.splits.recv.push_back(length(i, r));
      }
      const auto total = [](const auto& v) {
        return std::accumulate(v.begin(), v.end(), int64_t{0});
      };
      ins.emplace_back(DType::kI32, total(call.splits.send),
                       [r](int64_t i) { return value(r, i); });
      outs.emplace_back(DType::kI32, total(call.splits.recv));
      calls.push_back(call);
    }
    for (int r = 0; r < n; ++r) {
      const auto me = static_cast<size_t>(r);
      calls[me].in = ins[me].buffer();
      calls[me].out = outs[me].buffer();
    }
    const auto traffics = run(calls, [&](GroupRank s) {
      return one(pairwise_all_to_all(s, calls[static_cast<size_t>(s.rank)].splits));
    });
    for (int r = 0; r < n; ++r) {
      EXPECT_EQ(traffics[static_cast<size_t>(r)], convention(calls[static_cast<size_t>(r)], n, r));
      int64_t at = 0;
      for (int from = 0; from < n; ++from) {
        int64_t offset = 0;
        for (int to = 0; to < r; ++to) offset += length(from, to);
        for (int64_t i = 0; i < length(from, r); ++i) {
          EXPECT_EQ(outs[static_cast<size_t>(r)].get(at++), value(from, offset + i));
        }
      }
    }
  }
}

TEST(DisseminationBarrier, SendsNoBytesAndEndsOnlyWhenAllHaveCome) {
  for (const int n : kRanks) {
    const std::vector<Call> calls(static_cast<size_t>(n));
    for (const WireTraffic& t :
         run(calls, [](GroupRank s) { return one(dissemination_barrier(s)); })) {
      EXPECT_EQ(t, WireTraffic{});
    }
    // Rank 0 stays away: nobody may pass.
    Post post(n);
    std::vector<int> members(static_cast<size_t>(n), 0);
    ScratchPool pool;
    std::deque<MemoryWire> wires;
    std::deque<Execution> executions;
    for (int r = 1; r < n; ++r) {
      wires.emplace_back(post, r);
      executions.emplace_back(Call{}, one(dissemination_barrier({n, r})),
                              Execution::Setting{wires.back(), pool, members}, 0);
    }
    for (int turn = 0; turn < 50; ++turn) {
      for (Execution& e : executions) EXPECT_FALSE(e.advance());
    }
  }
}

}  // namespace
}  // namespace kuafu::algorithms
