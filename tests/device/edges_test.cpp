// SPDX-License-Identifier: Apache-2.0
//
// Removing any one edge between the events of a program is seen. A program is a list of operations,
// each of which reads one slot and writes another, by one of three agents: the two queues and the
// rank itself, which also asks for the copies. An edge is what one agent must wait for of another;
// those that others imply are left out. To see that one is missing, some operation is held back for
// as long as any other agent can go on: no clock is asked. If edge i -> j is missing, nothing that j
// needs needs i, so j overtakes i where i is held. It may overtake what wrote for i too, and then i
// reads what it should: the last contents of the slots tell.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <random>
#include <thread>

#include "kuafu/device/transfer.h"

namespace kuafu::device {
namespace {

constexpr int kToDevice = 0, kToHost = 1, kRank = 2;  // agents
constexpr size_t kSlots = 6, kBytes = 256;

struct Operation {
  int agent = 0;
  size_t from = 0, to = 0;
  std::vector<size_t> needs = {};  ///< edges from earlier operations
};
using Program = std::vector<Operation>;

struct Edge {
  size_t of, on;  ///< operation, one of its `needs`
};

bool conflict(const Operation& a, const Operation& b) {
  return a.to == b.from || a.from == b.to || a.to == b.to;
}

/// What the queues and the rank's own order bring: the rank asks for later copies after it computed.
bool is_ordered(const Operation& a, const Operation& b) {
  return a.agent == b.agent || a.agent == kRank;
}

/// Every value that is written is read before the next one replaces it, so that no edge is idle.
Program random_program(uint64_t seed, size_t length) {
  std::mt19937_64 random(seed);
  Program program;
  std::array<bool, kSlots> is_read;
  is_read.fill(true);
  while (program.size() < length) {
    const Operation next{static_cast<int>(random() % 3), random() % kSlots, random() % kSlots};
    if (next.from == next.to || !is_read[next.to]) continue;
    auto after = is_read;
    after[next.from] = true;
    after[next.to] = false;
    if (std::count(after.begin(), after.end(), true) < 2) continue;
    is_read = after;
    program.push_back(next);
  }
  return program;
}

/// Fills in the edges that nothing else implies.
std::vector<Edge> add_edges(Program& program) {
  const size_t n = program.size();
  std::vector<std::vector<bool>> reaches(n, std::vector<bool>(n));
  std::vector<Edge> edges;
  for (size_t j = 0; j < n; ++j) {
    for (size_t i = j; i-- > 0;) {  // nearest first
      const bool is_implied = is_ordered(program[i], program[j]);
      if (reaches[i][j] || !(is_implied || conflict(program[i], program[j]))) continue;
      if (!is_implied) {
        program[j].needs.push_back(i);
        edges.push_back({j, i});
      }
      for (size_t k = 0; k <= i; ++k) reaches[k][j] = reaches[k][j] || k == i || reaches[k][i];
    }
  }
  return edges;
}

uint64_t stamped(uint64_t value, size_t operation) {
  return (value + operation + 1) * 0x9E3779B97F4A7C15 ^ (value >> 29);
}

/// The slots' memory, and what each operation wrote.
struct Slots {
  explicit Slots(size_t length) : wrote(length) {
    for (size_t s = 0; s < kSlots; ++s) put(s, 1000 + s);
  }
  uint64_t value(size_t s) const {
    uint64_t v;
    std::memcpy(&v, bytes[s].data(), sizeof v);
    return v;
  }
  void put(size_t s, uint64_t v) { std::memcpy(bytes[s].data(), &v, sizeof v); }
  /// After the copy: values are told apart by who moved them.
  void stamp(const Operation& o, size_t number) {
    wrote[number] = stamped(value(o.to), number);
    put(o.to, wrote[number]);
  }
  /// All that was written, and what the slots have at last.
  std::vector<uint64_t> outcome() const {
    std::vector<uint64_t> all = wrote;
    for (size_t s = 0; s < kSlots; ++s) all.push_back(value(s));
    return all;
  }
  std::array<std::array<std::byte, kBytes>, kSlots> bytes = {};
  std::vector<uint64_t> wrote;
};

std::vector<uint64_t> in_order(const Program& program) {
  Slots slots(program.size());
  for (size_t i = 0; i < program.size(); ++i) {
    slots.bytes[program[i].to] = slots.bytes[program[i].from];
    slots.stamp(program[i], i);
  }
  return slots.outcome();
}

/// Holds one operation back until nobody else can move. One operation runs at a time, so that a
/// wrong order is wrong values and never a race.
class Holder final : public CopyWatch {
 public:
  Holder(const Program& program, Slots& slots, size_t held, uint64_t seed)
      : program_(program), slots_(slots), held_(held), random_(seed), ended_(program.size()) {
    for (size_t i = 0; i < program.size(); ++i) {
      if (program[i].agent != kRank) of_[static_cast<size_t>(program[i].agent)].push_back(i);
    }
  }

  Ticket ticket_of(size_t operation) const {
    const auto agent = static_cast<size_t>(program_[operation].agent);
    const auto at = std::find(of_[agent].begin(), of_[agent].end(), operation);
    return {static_cast<Direction>(agent), at - of_[agent].begin() + 1};
  }

  void waits(const Ticket& ticket, const Ticket& on) override {
    blocks(static_cast<int>(ticket.queue), operation_of(on));
  }
  void begins(const Ticket& ticket) override { start(operation_of(ticket)); }
  void ends(const Ticket& ticket) override { stop(operation_of(ticket)); }

  void blocks(int agent, size_t on) {
    const std::lock_guard lock(mutex_);
    blocked_[static_cast<size_t>(agent)] = static_cast<int64_t>(on);
    changed_.notify_all();
  }
  void asked_for(size_t operation) {
    const std::lock_guard lock(mutex_);
    ++asked_[static_cast<size_t>(program_[operation].agent)];
  }
  void rank_is_through() {
    const std::lock_guard lock(mutex_);
    is_through_ = true;
    changed_.notify_all();
  }

  void start(size_t operation) {
    std::unique_lock lock(mutex_);
    const int agent = program_[operation].agent;
    blocked_[static_cast<size_t>(agent)] = -1;
    for (uint64_t i = random_() % 4; i > 0; --i) {  // a small delay, drawn
      lock.unlock();
      std::this_thread::yield();
      lock.lock();
    }
    changed_.wait(lock, [&] {
      if (is_running_) return false;
      return operation != held_ || !(can_move((agent + 1) % 3) || can_move((agent + 2) % 3));
    });
    is_running_ = true;
  }

  void stop(size_t operation) {
    const std::lock_guard lock(mutex_);
    slots_.stamp(program_[operation], operation);
    ended_[operation] = true;
    is_running_ = false;
    changed_.notify_all();
  }

 private:
  size_t operation_of(const Ticket& t) const {
    return of_[static_cast<size_t>(t.queue)][static_cast<size_t>(t.number - 1)];
  }

  bool can_move(int agent) const {
    const auto a = static_cast<size_t>(agent);
    if (blocked_[a] >= 0) return ended_[static_cast<size_t>(blocked_[a])];
    if (agent == kRank) return !is_through_;
    return std::any_of(of_[a].begin(), of_[a].begin() + asked_[a],
                       [&](size_t operation) { return !ended_[operation]; });
  }

  const Program& program_;
  Slots& slots_;
  const size_t held_;
  std::array<std::vector<size_t>, 2> of_;  // operations of the queues, in order
  std::mutex mutex_;                       // of all below
  std::condition_variable changed_;
  std::mt19937_64 random_;
  std::vector<bool> ended_;
  std::array<int64_t, 3> blocked_ = {-1, -1, -1};  // the operation that an agent waits for
  std::array<int64_t, 2> asked_ = {};
  bool is_running_ = false, is_through_ = false;
};

/// The program on real queues, one operation held: its outcome.
std::vector<uint64_t> run(const Program& program, size_t held, uint64_t seed) {
  Slots slots(program.size());
  Holder holder(program, slots, held, seed);
  const auto queues = make_copy_threads({.watch = &holder});
  std::vector<Ticket> all;
  for (size_t i = 0; i < program.size(); ++i) {
    const Operation& o = program[i];
    void* to = slots.bytes[o.to].data();
    const void* from = slots.bytes[o.from].data();
    if (o.agent == kRank) {
      for (const size_t on : o.needs) {
        holder.blocks(kRank, on);
        queues->wait(holder.ticket_of(on));
      }
      holder.start(i);
      std::memcpy(to, from, kBytes);
      holder.stop(i);
      continue;
    }
    Copy copy{to, from, kBytes};
    for (const size_t on : o.needs) copy.after.push_back(holder.ticket_of(on));
    holder.asked_for(i);
    all.push_back(queues->copy(static_cast<Direction>(o.agent), copy));
    EXPECT_EQ(all.back(), holder.ticket_of(i));
  }
  holder.rank_is_through();
  for (const Ticket& t : all) queues->wait(t);
  return slots.outcome();
}

/// Whether some operation held back shows that the program is wrong; blind to what is wrong with it.
bool is_caught(const Program& program, const std::vector<uint64_t>& right, uint64_t seed) {
  std::vector<size_t> order(program.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::mt19937_64 random(seed);
  std::shuffle(order.begin(), order.end(), random);
  return std::any_of(order.begin(), order.end(),
                     [&](size_t held) { return run(program, held, random()) != right; });
}

TEST(Edges, RemovingAnyOneIsCaughtEveryTime) {
  size_t removed = 0;
  std::array<int, 2> by_agent = {};
  for (uint64_t seed = 1; seed <= 12; ++seed) {
    Program program = random_program(seed, 14);
    const std::vector<Edge> edges = add_edges(program);
    const std::vector<uint64_t> right = in_order(program);
    ASSERT_FALSE(is_caught(program, right, seed)) << "a right program, seed " << seed;
    for (const Edge& edge : edges) {
      Program mutant = program;
      std::erase(mutant[edge.of].needs, edge.on);
      EXPECT_TRUE(is_caught(mutant, right, seed + 100 * ++removed))
          << "seed " << seed << ": " << edge.of << " need not wait for " << edge.on;
      ++by_agent[program[edge.of].agent == kRank ? 1 : 0];
    }
  }
  std::printf("%zu edges removed: %d between queues, %d from a queue to the rank\n", removed,
              by_agent[0], by_agent[1]);
  EXPECT_GT(by_agent[0], 25);
  EXPECT_GT(by_agent[1], 25);
}

}  // namespace
}  // namespace kuafu::device
