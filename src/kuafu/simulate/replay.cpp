// SPDX-License-Identifier: Apache-2.0
#include "kuafu/simulate/replay.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <deque>
#include <functional>
#include <map>
#include <queue>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "kuafu/simulate/priced_events.h"

namespace kuafu {

namespace {

constexpr int64_t kUnknown = -1;

/// Queues of copies by what they share: to the device, to the host, the disk.
constexpr size_t kNumLinks = 3;
size_t link_of(TraceQueue queue) {
  return queue == TraceQueue::kToDevice ? 0 : queue == TraceQueue::kToHost ? 1 : 2;
}

bool is_message(Verb verb) {
  return verb == Verb::kSend || verb == Verb::kRecv || verb == Verb::kSendRecv;
}

/// A collective that some members have issued.
struct Meeting {
  Verb verb = Verb::kBarrier;
  int64_t bytes = 0;                           // the most of any member: all_to_all may be uneven
  int64_t latest = 0;                          // issue
  std::vector<std::pair<int, int64_t>> calls;  // world rank, number of its call
};

struct RankState {
  std::vector<PricedEvent> events;
  size_t next_event = 0;
  int64_t clock = 0;
  int64_t port_free = 0;
  bool is_blocked = false;
  RankTime time;
  std::vector<int64_t> ends;    // by call: its end; kUnknown while open
  std::vector<int64_t> begins;  // by call: when its transfer began
  std::vector<int64_t> copies;  // by copy: its end
  std::array<int64_t, kNumLinks> link_free = {};
  std::unordered_map<int64_t, int64_t> positions;  // by group: collectives issued so far
};

class Replay {
 public:
  Replay(const std::vector<Trace>& traces, const CostModel& prices, const ComputeModel& compute,
         const ReplayObserver& observer)
      : prices_(prices), compute_(compute), observer_(observer), ranks_(traces.size()) {
    for (size_t r = 0; r < traces.size(); ++r) {
      ranks_[r].events = priced_events(traces[r]);
      for (const TraceGroup& group : traces[r].groups) groups_[group.number] = &group.members;
    }
  }

  /// Always the rank with the earliest clock goes on: calls are met in the order of their times.
  PricedTimes run() {
    for (int r = 0; r < size(); ++r) ready_.push({0, r});
    while (!ready_.empty()) {
      const int r = ready_.top().second;
      ready_.pop();
      step(r);
    }
    PricedTimes times;
    for (int r = 0; r < size(); ++r) {
      RankState& rank = state(r);
      if (rank.next_event < rank.events.size()) throw RankLost(table());
      rank.time.finish_ps = rank.clock;
      times.ranks.push_back(rank.time);
    }
    return times;
  }

 private:
  /// When a message left and when it arrived.
  struct Flight {
    int64_t begin, end;
  };
  using MessageKey =
      std::tuple<int64_t, int, int, int>;  // group, sender, receiver (world ranks), tag

  int size() const { return static_cast<int>(ranks_.size()); }
  RankState& state(int r) { return ranks_[static_cast<size_t>(r)]; }

  const std::vector<int>& members(const PricedEvent& event) const {
    return *groups_.at(event.group);
  }

  void step(int r) {
    RankState& rank = state(r);
    if (rank.next_event == rank.events.size()) return;
    const PricedEvent& event = rank.events[rank.next_event];
    switch (event.kind) {
      case PricedEvent::Kind::kCompute: {
        const int64_t ps = work_ps(event);
        tell({.rank = r, .start_ps = rank.clock, .end_ps = rank.clock + ps});
        rank.clock += ps;
        rank.time.busy_ps += ps;
        break;
      }
      case PricedEvent::Kind::kIssue:
        issue(r, event);
        break;
      case PricedEvent::Kind::kWait: {
        const int64_t end = rank.ends[static_cast<size_t>(event.sequence)];
        rank.is_blocked = end == kUnknown;
        if (rank.is_blocked) return;  // finish() puts it back
        tell_wait(r, event, end);
        rank.time.exposed_ps += std::max<int64_t>(0, end - rank.clock);
        rank.clock = std::max(rank.clock, end);
        break;
      }
      case PricedEvent::Kind::kCopy:
        copy(r, event);
        break;
      case PricedEvent::Kind::kArrival: {
        const int64_t end =
            std::max(rank.clock, rank.copies.at(static_cast<size_t>(event.sequence)));
        tell({.rank = r,
              .kind = ReplaySpan::Kind::kStall,
              .start_ps = rank.clock,
              .end_ps = end,
              .name = event.name});
        rank.time.stall_ps += end - rank.clock;
        rank.clock = end;
        break;
      }
      case PricedEvent::Kind::kMark:
        tell({.rank = r,
              .kind = ReplaySpan::Kind::kMark,
              .start_ps = rank.clock,
              .end_ps = rank.clock,
              .name = event.name});
        break;
    }
    ++rank.next_event;
    ready_.push({rank.clock, r});
  }

  void tell(const ReplaySpan& span) const {
    const bool is_seen = span.end_ps > span.start_ps || span.kind == ReplaySpan::Kind::kMark;
    if (observer_ && is_seen) observer_(span);
  }

  /// A wait until `end`: first for the transfer to begin, then for it to be through.
  void tell_wait(int r, const PricedEvent& event, int64_t end) {
    if (!observer_) return;
    const RankState& rank = state(r);
    const int64_t begin = rank.begins[static_cast<size_t>(event.sequence)];
    const int64_t between = std::clamp(begin, rank.clock, std::max(rank.clock, end));
    tell({r, ReplaySpan::Kind::kWait, rank.clock, between, event.verb, event.entry});
    tell({r, ReplaySpan::Kind::kTransfer, between, end, event.verb, event.entry});
  }

  int64_t work_ps(const PricedEvent& event) const {
    const double arithmetic = static_cast<double>(event.flops) / compute_.flops_per_second;
    const double memory =
        static_cast<double>(event.bytes_moved) / compute_.bytes_per_second +
        static_cast<double>(event.host_bytes_moved) / compute_.host_memory_bytes_per_second;
    return std::llround(std::max(arithmetic, memory) * 1e12);
  }

  void copy(int r, const PricedEvent& event) {
    RankState& rank = state(r);
    KUAFU_CHECK(event.sequence == static_cast<int64_t>(rank.copies.size()), "copy ", event.sequence,
                " of rank ", r, " comes after ", rank.copies.size(), " copies");
    const size_t link = link_of(event.queue);
    const double rate = link == 2 ? compute_.disk_bytes_per_second : compute_.host_bytes_per_second;
    const int64_t start = std::max(rank.clock, rank.link_free[link]);
    const int64_t end = start + std::llround(static_cast<double>(event.bytes) / rate * 1e12);
    rank.link_free[link] = end;
    rank.copies.push_back(end);
    tell({.rank = r,
          .kind = ReplaySpan::Kind::kCopy,
          .start_ps = start,
          .end_ps = end,
          .name = event.name,
          .queue = event.queue});
  }

  void issue(int r, const PricedEvent& event) {
    RankState& rank = state(r);
    KUAFU_CHECK(event.sequence == static_cast<int64_t>(rank.ends.size()), "call ", event.sequence,
                " of rank ", r, " comes after ", rank.ends.size(), " calls");
    rank.ends.push_back(kUnknown);
    rank.begins.push_back(rank.clock);
    if (is_message(event.verb)) return issue_message(r, event);
    const std::vector<int>& group = members(event);
    if (group.size() == 1) return finish(r, event.sequence, rank.clock, rank.clock);
    const int64_t position = rank.positions[event.group]++;
    const auto [at, is_first] = meetings_.try_emplace({event.group, position});
    Meeting& meeting = at->second;
    if (is_first) meeting.verb = event.verb;
    if (meeting.verb != event.verb) {
      throw CollectiveMismatch(text(
          "call ", position, " of group ", event.group, ": rank ", meeting.calls.front().first,
          " called ", to_string(meeting.verb), ", rank ", r, " called ", to_string(event.verb)));
    }
    meeting.bytes = std::max(meeting.bytes, event.bytes);
    meeting.latest = std::max(meeting.latest, rank.clock);
    meeting.calls.emplace_back(r, event.sequence);
    if (meeting.calls.size() < group.size()) return;
    hold(meeting, group);
    meetings_.erase(at);
  }

  void hold(const Meeting& meeting, const std::vector<int>& group) {
    int64_t start = meeting.latest;
    for (const int r : group) start = std::max(start, state(r).port_free);
    const int64_t end = start + price_ps(meeting.verb, meeting.bytes,
                                         static_cast<int>(group.size()), prices_.link(group));
    for (const auto& [r, sequence] : meeting.calls) {
      state(r).port_free = end;
      finish(r, sequence, end, start);
    }
  }

  void issue_message(int r, const PricedEvent& event) {
    const std::vector<int>& group = members(event);
    RankState& rank = state(r);
    int64_t sent = rank.clock, begun = rank.clock;
    if (event.verb != Verb::kRecv) {
      const int to = group[static_cast<size_t>(event.peer)];
      const Link& link = prices_.link(r, to);
      const int64_t start = std::max(rank.clock, rank.port_free);
      sent = start + (to == r ? 0 : transfer_ps(link, event.bytes));
      rank.port_free = sent;
      begun = start;
      deliver({event.group, r, to, event.tag}, {start, sent + (to == r ? 0 : link.latency_ps)});
    }
    if (event.verb == Verb::kSend) return finish(r, event.sequence, sent, begun);
    const int from =
        group[static_cast<size_t>(event.verb == Verb::kRecv ? event.peer : event.from)];
    const MessageKey key{event.group, from, r, event.tag};
    auto& box = arrived_[key];
    if (box.empty()) {
      expected_[key].push_back({r, event.sequence, sent});
      return;
    }
    finish(r, event.sequence, std::max(sent, box.front().end), box.front().begin);
    box.pop_front();
  }

  // Messages of one key meet their receives in order.
  void deliver(const MessageKey& key, const Flight& flight) {
    auto& waiting = expected_[key];
    if (waiting.empty()) {
      arrived_[key].push_back(flight);
      return;
    }
    const Expected first = waiting.front();
    waiting.pop_front();
    finish(first.rank, first.sequence, std::max(first.not_before, flight.end), flight.begin);
  }

  void finish(int r, int64_t sequence, int64_t end, int64_t begin) {
    RankState& rank = state(r);
    rank.ends[static_cast<size_t>(sequence)] = end;
    rank.begins[static_cast<size_t>(sequence)] = begin;
    if (!rank.is_blocked) return;
    if (rank.events[rank.next_event].sequence != sequence) return;
    rank.is_blocked = false;
    ready_.push({std::max(rank.clock, end), r});
  }

  std::string table() const {
    constexpr int kMostLines = 32;
    std::string lines = "the recorded program cannot end:";
    int num_lines = 0;
    for (int r = 0; r < size(); ++r) {
      const RankState& rank = ranks_[static_cast<size_t>(r)];
      if (!rank.is_blocked || num_lines++ >= kMostLines) continue;
      lines += text("\n  rank ", r, ": waits for ", wait_of(r));
    }
    if (num_lines > kMostLines) lines += text("\n  and ", num_lines - kMostLines, " more");
    return lines;
  }

  std::string wait_of(int r) const {
    const RankState& rank = ranks_[static_cast<size_t>(r)];
    const int64_t sequence = rank.events[rank.next_event].sequence;
    for (const auto& [key, meeting] : meetings_) {
      const auto& calls = meeting.calls;
      if (std::find(calls.begin(), calls.end(), std::pair(r, sequence)) == calls.end()) continue;
      std::string missing;
      for (const int member : *groups_.at(key.first)) {
        const bool came = std::any_of(calls.begin(), calls.end(),
                                      [member](const auto& c) { return c.first == member; });
        if (!came) missing += text(missing.empty() ? "" : ", ", member);
      }
      return text(to_string(meeting.verb), ", call ", key.second, " of group ", key.first,
                  ", which these ranks have not made: ", missing);
    }
    for (const auto& [key, waiting] : expected_) {
      for (const Expected& e : waiting) {
        if (e.rank != r || e.sequence != sequence) continue;
        return text("a message of rank ", std::get<1>(key), " with tag ", std::get<3>(key),
                    " in group ", std::get<0>(key));
      }
    }
    return text("its call ", sequence);
  }

  struct Expected {
    int rank;
    int64_t sequence;
    int64_t not_before;
  };

  const CostModel& prices_;
  const ComputeModel& compute_;
  const ReplayObserver& observer_;
  std::vector<RankState> ranks_;
  std::priority_queue<std::pair<int64_t, int>, std::vector<std::pair<int64_t, int>>, std::greater<>>
      ready_;
  std::map<int64_t, const std::vector<int>*> groups_;        // members by number
  std::map<std::pair<int64_t, int64_t>, Meeting> meetings_;  // by group and position in it
  std::map<MessageKey, std::deque<Flight>> arrived_;
  std::map<MessageKey, std::deque<Expected>> expected_;
};

}  // namespace

PricedTimes replay(const std::vector<Trace>& traces, const CostModel& prices,
                   const ComputeModel& compute, const ReplayObserver& observer) {
  KUAFU_REQUIRE(prices.ranks_per_node > 0, "a cluster with ", prices.ranks_per_node,
                " ranks a node; one or more is right");
  KUAFU_REQUIRE(compute.flops_per_second > 0 && compute.bytes_per_second > 0,
                "a cluster that computes ", compute.flops_per_second, " FLOP/s and moves ",
                compute.bytes_per_second, " bytes/s; both must be positive");
  KUAFU_REQUIRE(compute.host_bytes_per_second > 0 && compute.disk_bytes_per_second > 0,
                "a cluster that copies ", compute.host_bytes_per_second,
                " bytes/s between device and host and ", compute.disk_bytes_per_second,
                " bytes/s on a disk; both must be positive");
  return Replay(traces, prices, compute, observer).run();
}

PricedTimes replay(const std::vector<Trace>& traces, const ClusterPlan& cluster,
                   const ReplayObserver& observer) {
  return replay(traces, cost_model(cluster), compute_model(cluster), observer);
}

}  // namespace kuafu
