// SPDX-License-Identifier: Apache-2.0
#include "kuafu/simulate/replay.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <map>
#include <optional>
#include <tuple>

#include "kuafu/base/errors.h"

namespace kuafu {
namespace {

using Kind = TraceEvent::Kind;

bool is_point_to_point(Verb v) {
  return v == Verb::kSend || v == Verb::kRecv || v == Verb::kSendRecv;
}

/// One collective of one group, or one message: known to all its participants by its index.
struct Meeting {
  TraceEvent call;
  int first_rank = 0;
  size_t arrived = 0;
  int64_t latest_ps = 0;
  std::optional<int64_t> end_ps;
  std::vector<int> blocked;  // ranks that wait for the end
};

/// A rank's way through its trace. A call may be made of two meetings (send_recv).
struct Walker {
  size_t next = 0;
  int64_t clock_ps = 0;
  std::map<int64_t, std::vector<size_t>> open;  // call number -> meetings
};

class Replay {
 public:
  Replay(const SimulatedWorld& world, const CostModel& links, const ComputeModel& compute)
      : world_(world),
        links_(links),
        compute_(compute),
        walkers_(static_cast<size_t>(world.size())) {
    timeline_.ranks.resize(walkers_.size());
  }

  Timeline run() {
    for (int r = 0; r < world_.size(); ++r) runnable_.push_back(r);
    while (!runnable_.empty()) {
      const int r = runnable_.front();
      runnable_.pop_front();
      advance(r);
    }
    for (int r = 0; r < world_.size(); ++r) {
      if (walker(r).next < world_.trace(r).size()) report_deadlock();
    }
    return timeline_;
  }

 private:
  Walker& walker(int rank) { return walkers_[static_cast<size_t>(rank)]; }

  /// Runs a rank until it ends or waits for a meeting whose end is not known yet.
  void advance(int rank) {
    Walker& w = walker(rank);
    RankTime& time = timeline_.ranks[static_cast<size_t>(rank)];
    const std::vector<TraceEvent>& trace = world_.trace(rank);
    for (; w.next < trace.size(); ++w.next) {
      const TraceEvent& e = trace[w.next];
      if (e.kind == Kind::kCompute) {
        const int64_t cost = compute_.price_ps(e.flops, e.bytes_moved);
        w.clock_ps += cost;
        time.compute_ps += cost;
      } else if (e.kind == Kind::kIssue) {
        issue(rank, e);
      } else if (!finish(rank, e)) {
        return;
      }
    }
    time.finish_ps = w.clock_ps;
  }

  bool finish(int rank, const TraceEvent& e) {
    Walker& w = walker(rank);
    int64_t end = w.clock_ps;
    for (const size_t m : w.open.at(e.sequence)) {
      if (!meetings_[m].end_ps) {
        meetings_[m].blocked.push_back(rank);
        return false;
      }
      end = std::max(end, *meetings_[m].end_ps);
    }
    timeline_.ranks[static_cast<size_t>(rank)].exposed_ps += end - w.clock_ps;
    w.clock_ps = end;
    w.open.erase(e.sequence);
    return true;
  }

  void issue(int rank, const TraceEvent& e) {
    const std::vector<int>& members = world_.groups()[static_cast<size_t>(e.group)];
    auto& open = walker(rank).open[e.sequence];
    if (!is_point_to_point(e.verb)) {
      open.push_back(join_collective(rank, e, members.size()));
      return;
    }
    const auto index = std::find(members.begin(), members.end(), rank) - members.begin();
    const auto me = static_cast<int>(index);
    if (e.verb != Verb::kRecv) open.push_back(join_message(rank, e, me, e.peer, true));
    if (e.verb == Verb::kRecv) open.push_back(join_message(rank, e, e.peer, me, false));
    if (e.verb == Verb::kSendRecv) open.push_back(join_message(rank, e, e.from, me, false));
  }

  size_t join_collective(int rank, const TraceEvent& e, size_t size) {
    const int64_t number = collectives_done_[{e.group, rank}]++;
    const auto [at, is_new] = collectives_.try_emplace({e.group, number}, meetings_.size());
    if (is_new) meetings_.push_back({e, rank, 0, 0, {}, {}});
    const Meeting& m = meetings_[at->second];
    if (m.call.verb != e.verb || m.call.bytes != e.bytes || m.call.peer != e.peer) {
      throw CollectiveMismatch(text("collective ", number, " of group ", e.group, ": rank ",
                                    m.first_rank, " calls ", to_string(m.call.verb), " of ",
                                    m.call.bytes, " bytes, rank ", rank, " ", to_string(e.verb),
                                    " of ", e.bytes, " bytes"));
    }
    arrive(at->second, rank, size);
    return at->second;
  }

  /// Messages between two ranks with one tag meet in the order they were issued.
  size_t join_message(int rank, const TraceEvent& e, int from, int to, bool is_sender) {
    const auto key = std::make_tuple(e.group, from, to, e.tag);
    std::deque<size_t>& mine = is_sender ? sends_[key] : receives_[key];
    std::deque<size_t>& theirs = is_sender ? receives_[key] : sends_[key];
    size_t m = meetings_.size();
    if (theirs.empty()) {
      meetings_.push_back({e, rank, 0, 0, {}, {}});
      mine.push_back(m);
    } else {
      m = theirs.front();
      theirs.pop_front();
    }
    arrive(m, rank, 2);
    return m;
  }

  void arrive(size_t index, int rank, size_t expected) {
    Meeting& m = meetings_[index];
    m.latest_ps = std::max(m.latest_ps, walker(rank).clock_ps);
    if (++m.arrived < expected) return;
    const std::vector<int>& members = world_.groups()[static_cast<size_t>(m.call.group)];
    int64_t start = m.latest_ps;
    if (is_point_to_point(m.call.verb)) {
      const Link& link = links_.link(m.first_rank, rank);
      m.end_ps = start + price_ps(Verb::kSend, m.call.bytes, 2, link);
    } else {
      int64_t& busy_until = busy_until_[m.call.group];
      start = std::max(start, busy_until);
      m.end_ps = start + price_ps(m.call.verb, m.call.bytes, static_cast<int>(members.size()),
                                  links_.link(members));
      busy_until = *m.end_ps;
    }
    for (const int blocked : m.blocked) runnable_.push_back(blocked);
    m.blocked.clear();
  }

  [[noreturn]] void report_deadlock() {
    std::string table;
    int shown = 0;
    for (int r = 0; r < world_.size(); ++r) {
      const Walker& w = walker(r);
      if (w.next >= world_.trace(r).size() || ++shown > 16) continue;
      const TraceEvent& e = world_.trace(r)[w.next];
      table += text("\n  rank ", r, " waits in ", to_string(e.verb), " of ", e.bytes,
                    " bytes, call ", e.sequence, ", group ", e.group);
    }
    throw RankLost("the simulated program cannot end:" + table);
  }

  const SimulatedWorld& world_;
  const CostModel& links_;
  const ComputeModel& compute_;
  std::vector<Walker> walkers_;
  std::deque<int> runnable_;
  std::vector<Meeting> meetings_;
  std::map<std::pair<int, int>, int64_t> collectives_done_;  // (group, rank)
  std::map<std::pair<int, int64_t>, size_t> collectives_;    // (group, number) -> meeting
  std::map<std::tuple<int, int, int, int>, std::deque<size_t>> sends_, receives_;
  std::map<int, int64_t> busy_until_;  // by group
  Timeline timeline_;
};

int64_t picoseconds(double seconds) { return static_cast<int64_t>(std::llround(seconds * 1e12)); }

}  // namespace

int64_t Timeline::makespan_ps() const {
  int64_t latest = 0;
  for (const RankTime& r : ranks) latest = std::max(latest, r.finish_ps);
  return latest;
}

int64_t ComputeModel::price_ps(int64_t flops, int64_t bytes) const {
  return picoseconds(static_cast<double>(flops) / flops_per_second +
                     static_cast<double>(bytes) / bytes_per_second);
}

CostModel link_prices(const ClusterPlan& c) {
  const auto link = [](double latency_us, double bandwidth_gbs) {
    return Link{.latency_ps = picoseconds(latency_us * 1e-6),
                .bytes_per_second = static_cast<int64_t>(bandwidth_gbs * 1e9)};
  };
  return {.intra_node = link(c.intra_latency_us, c.intra_bandwidth_gbs),
          .inter_node = link(c.inter_latency_us, c.inter_bandwidth_gbs),
          .ranks_per_node = static_cast<int>(c.ranks_per_node)};
}

ComputeModel compute_prices(const ClusterPlan& c) {
  return {.flops_per_second = c.compute_gflops * 1e9, .bytes_per_second = c.memory_gbs * 1e9};
}

Timeline replay(const SimulatedWorld& world, const CostModel& links, const ComputeModel& compute) {
  return Replay(world, links, compute).run();
}

Timeline replay(const SimulatedWorld& world, const ClusterPlan& cluster) {
  return replay(world, link_prices(cluster), compute_prices(cluster));
}

}  // namespace kuafu
