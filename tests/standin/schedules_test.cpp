// SPDX-License-Identifier: Apache-2.0
//
// The messages of every pipeline schedule arrive and never get stuck, also where sends wait for
// their receivers.

#include <deque>
#include <map>
#include <tuple>

#include "kuafu/parallel/pipeline/analysis.h"
#include "kuafu/parallel/pipeline/play.h"
#include "kuafu/parallel/pipeline/schedules.h"
#include "tests/standin/backends.h"

namespace kuafu::conformance {
namespace {

using pipeline::Action;
using pipeline::Op;
using pipeline::PipeShape;
using pipeline::Timetable;

constexpr int64_t kCount = 300;
constexpr size_t kSendsUnderWay = 2;  // of one kind, as the engine

bool is_send(Op op) { return op == Op::kSendForward || op == Op::kSendBackward; }

bool is_of_gradients(Op op) { return op == Op::kSendBackward || op == Op::kRecvBackward; }

/// What travels: its sender's stage, the direction and the micro-batch.
double content(int stage, bool is_gradient, int micro_batch, int64_t i) {
  return 1000 * stage + 500 * (is_gradient ? 1 : 0) + 8 * micro_batch + static_cast<double>(i % 8);
}

/// Works down the row of one rank, on the host as the engine does: a receive is waited for before
/// the action that needs it, a send when too many are under way.
class Walk {
 public:
  Walk(Communicator& world, const Timetable& table, const std::vector<int>& rank_of_stage)
      : world_(world), row_(table[static_cast<size_t>(world.rank())]), ranks_(rank_of_stage) {}

  void run() {
    // Nothing is copied to or from the device on the way, for that would wait for it.
    for (const Action& a : row_) {
      if (!pipeline::is_message(a.op)) continue;
      const bool is_gradient = is_of_gradients(a.op);
      const auto f = [&](int64_t i) { return content(a.stage, is_gradient, a.micro_batch, i); };
      Values& v = values_.emplace_back(is_send(a.op) ? Values(DType::kF32, kCount, f)
                                                     : Values(DType::kF32, kCount));
      buffers_.push_back(v.buffer());
    }
    size_t next = 0;
    for (const Action& a : row_) {
      if (!pipeline::is_message(a.op)) {
        need(a);
      } else if (is_send(a.op)) {
        send(a, buffers_[next++]);
      } else {
        receive(a, buffers_[next++]);
      }
    }
    for (auto& [kind, works] : sends_) {
      for (Work& w : works) w.wait();
    }
    check();
  }

 private:
  // Stage of the other end, and a tag for its kind, as the engine's.
  int other(const Action& a) const {
    return a.op == Op::kSendForward || a.op == Op::kRecvBackward ? a.stage + 1 : a.stage - 1;
  }
  int rank_of(int stage) const { return ranks_[static_cast<size_t>(stage)]; }
  static int tag(int sender, Op op) { return 2 * sender + (is_of_gradients(op) ? 1 : 0); }

  void send(const Action& a, const Buffer& b) {
    auto& before = sends_[{a.stage, is_of_gradients(a.op)}];
    while (before.size() >= kSendsUnderWay) {
      before.front().wait();
      before.pop_front();
    }
    before.push_back(world_.send(b, rank_of(other(a)), tag(a.stage, a.op)));
  }

  void receive(const Action& a, const Buffer& b) {
    receives_[{a.stage, is_of_gradients(a.op), a.micro_batch}] =
        world_.recv(b, rank_of(other(a)), tag(other(a), a.op));
  }

  void need(const Action& a) {
    const auto found = receives_.find({a.stage, a.op != Op::kForward, a.micro_batch});
    if (a.op == Op::kWeightGrad || found == receives_.end()) return;
    found->second.wait();
    receives_.erase(found);
  }

  void check() {
    EXPECT_TRUE(receives_.empty());
    auto v = values_.begin();
    for (const Action& a : row_) {
      if (!pipeline::is_message(a.op)) continue;
      const Values& got = *v++;
      if (is_send(a.op)) continue;
      expect_values(
          got,
          [&](int64_t i) { return content(other(a), is_of_gradients(a.op), a.micro_batch, i); },
          to_string(a));
    }
  }

  Communicator& world_;
  const pipeline::Row& row_;
  const std::vector<int>& ranks_;
  std::deque<Values> values_;  // in row order, as the buffers
  std::vector<Buffer> buffers_;
  std::map<std::pair<int, bool>, std::deque<Work>> sends_;
  std::map<std::tuple<int, bool, int>, Work> receives_;
};

struct Case {
  const char* schedule;
  int chunks;
};

class SchedulesOnDevices : public testing::TestWithParam<Case> {
 protected:
  // On every shape, with pauses of its own.
  void walk(const std::function<void(int ranks, const std::function<void(Communicator&)>&)>& run) {
    uint64_t seed = 0;
    for (const int p : {2, 3, 4}) {
      for (const int m : {1, 4, 8}) {
        const PipeShape shape{p, m, GetParam().chunks};
        SCOPED_TRACE(text(GetParam().schedule, " p ", p, " m ", m));
        const auto make = pipeline::builtin_schedules().find(GetParam().schedule).make;
        const Timetable table = pipeline::lower(make(shape));
        const auto ranks = pipeline::ranks_of_stages(table, shape.stages());
        on_fresh_machine(p, ++seed, [&] {
          run(p, on_a_stream([&](Communicator& c) { Walk(c, table, ranks).run(); }));
        });
      }
    }
  }
};

TEST_P(SchedulesOnDevices, PassTheirMessagesOnNcclRanks) {
  walk([](int n, const auto& body) {
    run_on_nccl_threads(n, body, {.timeout = std::chrono::milliseconds(10'000)});
  });
}

TEST_P(SchedulesOnDevices, PassTheirMessagesOnOneCard) {
  walk([](int n, const auto& body) {
    run_on_threads(n, body, {.timeout = std::chrono::milliseconds(10'000)});
  });
}

INSTANTIATE_TEST_SUITE_P(All, SchedulesOnDevices,
                         testing::Values(Case{"gpipe", 1}, Case{"1f1b", 1}, Case{"interleaved", 2},
                                         Case{"interleaved", 3}, Case{"zero_bubble", 1},
                                         Case{"zbv", 2}),
                         [](const auto& info) {
                           return text("s_", info.param.schedule, "_", info.param.chunks);
                         });

}  // namespace
}  // namespace kuafu::conformance
