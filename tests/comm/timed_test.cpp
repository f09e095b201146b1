// SPDX-License-Identifier: Apache-2.0
#include "kuafu/comm/timed.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "kuafu/comm/worlds.h"

namespace kuafu {
namespace {

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

struct Stay {
  std::string axis;
  Verb verb;
  double start, end;
};

class Stays : public CallObserver {
 public:
  void note(const std::string& axis, Verb verb, double start, double end) override {
    all.push_back({axis, verb, start, end});
  }
  std::vector<Stay> all;
};

TEST(Timed, GroupsDoAndBookWhatTheyDidBefore) {
  for (const int n : {1, 2, 3, 5}) {
    std::vector<Ledger> plain(static_cast<size_t>(n)), seen(static_cast<size_t>(n));
    for (const bool is_timed : {false, true}) {
      run_on_threads(n, [&](Communicator& bare) {
        Stays stays;
        const auto wrapped = timed(bare, stays);
        Communicator& world = is_timed ? *wrapped : bare;
        Ledger& ledger = (is_timed ? seen : plain)[static_cast<size_t>(world.rank())];
        world.meter(&ledger, "world");
        const auto row = world.split([](int r) { return SplitKey{r % 2, -r}; });
        row->meter(&ledger, "row");
        std::vector<double> values(7, world.rank() + 1.0);
        const Buffer b{.data = values.data(), .count = 7, .dtype = DType::kF64};
        row->all_reduce(b, ReduceOp::kSum).wait();
        world.broadcast(b, n - 1).wait();
        world.barrier();
        double expected = 0;
        for (int r = (n - 1) % 2; r < n; r += 2) expected += r + 1.0;
        EXPECT_EQ(values, std::vector<double>(7, expected));
      });
    }
    EXPECT_EQ(plain[0].axes(), seen[0].axes());
    for (int r = 0; r < n; ++r) {
      EXPECT_EQ(plain[static_cast<size_t>(r)].axes(), seen[static_cast<size_t>(r)].axes());
    }
    EXPECT_EQ(seen[0].axes().size(), 2U);
  }
}

TEST(Timed, TellsEveryCallAndWaitInItsTime) {
  run_on_threads(2, [](Communicator& bare) {
    Stays stays;
    const auto world = timed(bare, stays);
    Ledger ledger;
    world->meter(&ledger, "pipeline");
    float value = 0;
    const Buffer b{.data = &value, .count = 1, .dtype = DType::kF32};
    const double start = seconds_now();
    constexpr auto kPause = std::chrono::milliseconds(30);
    if (world->rank() == 0) {
      std::this_thread::sleep_for(kPause);
      world->send(b, 1, 0).wait();
      return;
    }
    world->recv(b, 0, 0).wait();
    const double end = seconds_now();
    double total = 0, reached = start;
    for (const Stay& stay : stays.all) {
      EXPECT_EQ(stay.axis, "pipeline");
      EXPECT_EQ(stay.verb, Verb::kRecv);
      EXPECT_GE(stay.start, reached);
      EXPECT_GE(stay.end, stay.start);
      reached = stay.end;
      total += stay.end - stay.start;
    }
    EXPECT_LE(reached, end);
    EXPECT_GE(stays.all.size(), 1U);
    // The receiver was in there until the sender came.
    EXPECT_GE(total, 0.5 * std::chrono::duration<double>(kPause).count());
  });
}

}  // namespace
}  // namespace kuafu
