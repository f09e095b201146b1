// SPDX-License-Identifier: Apache-2.0
// Checks that end in any order are taken in the order of the steps.
#include "kuafu/engine/proof/check_queue.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "kuafu/base/plugin_error.h"

namespace kuafu {
namespace {

using std::chrono::milliseconds;

Proof equal_so_far() {
  Proof p;
  p.verdict = "equal";
  return p;
}

/// Ends after a while that is shorter for later steps.
CheckQueue::Check compared(int64_t step, double error) {
  return [=](Proof& part) {
    std::this_thread::sleep_for(milliseconds(5 * (8 - step)));
    part.loss.add(error, 1, text("step ", step));
    part.steps.push_back(step);
  };
}

class CheckQueues : public testing::TestWithParam<int64_t> {};

TEST_P(CheckQueues, TakeStepsInTheirOrder) {
  CheckQueue queue(GetParam());
  Proof proof = equal_so_far();
  for (int64_t step = 0; step < 8; ++step) queue.add(proof, compared(step, 0.5), {}, true);
  queue.finish();
  EXPECT_EQ(proof.steps, (std::vector<int64_t>{0, 1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(proof.loss.where, "step 0") << "the first of equal errors";
  EXPECT_EQ(proof.verdict, "equal");
}

TEST_P(CheckQueues, EndWithTheFirstStepThatCannotBeCompared) {
  CheckQueue queue(GetParam());
  Proof proof = equal_so_far();
  queue.add(proof, compared(0, 0.5), {}, true);
  queue.add(
      proof, [](Proof&) { throw Error("no reference"); }, {}, true);
  queue.add(proof, compared(2, 7), {}, true);
  queue.add(proof, {}, {}, true);
  queue.finish();
  EXPECT_EQ(proof.verdict, "not_run");
  EXPECT_EQ(proof.reason, "no reference");
  EXPECT_EQ(proof.steps, std::vector<int64_t>{0});
  EXPECT_TRUE(proof.holds()) << "what came after the end is no measure";
}

TEST_P(CheckQueues, KeepTheFirstReason) {
  CheckQueue queue(GetParam());
  Proof proof = equal_so_far();
  queue.add(proof, compared(0, 0.5), {"other bits in step 0", "on rank 1 too"}, true);
  queue.add(proof, compared(1, 0.5), {"other bits in step 1"}, true);
  queue.add(
      proof, [](Proof& part) { part.give_up("diverged"); }, {}, true);
  queue.finish();
  EXPECT_EQ(proof.verdict, "different");
  EXPECT_EQ(proof.reason, "other bits in step 0");
}

TEST_P(CheckQueues, RefuteWhatEndedToo) {
  CheckQueue queue(GetParam());
  Proof proof = equal_so_far();
  proof.give_up("diverged");
  queue.add(proof, compared(0, 0.5), {"other bits"}, true);
  queue.finish();
  EXPECT_EQ(proof.verdict, "different");
  EXPECT_TRUE(proof.steps.empty());
}

TEST_P(CheckQueues, TellLaterStepsOfTheFirstThatIsDifferent) {
  CheckQueue queue(GetParam());
  Proof proof = equal_so_far();
  const auto excused_where_equal = [](int64_t step) {
    return [step](Proof& part) {
      part.loss.add(part.verdict == "equal" ? 0.5 : 2.0 + static_cast<double>(step), 1,
                    text("step ", step));
      part.steps.push_back(step);
    };
  };
  queue.add(proof, compared(0, 2), {}, true);
  queue.add(proof, excused_where_equal(1), {"other bits in step 1"}, true);
  queue.add(proof, excused_where_equal(2), {}, true);
  queue.finish();
  proof.judge();
  EXPECT_EQ(proof.verdict, "different");
  EXPECT_EQ(proof.reason, "other bits in step 1");
  EXPECT_EQ(proof.loss.where, "step 2");
  EXPECT_EQ(proof.loss.error, 4);
  EXPECT_EQ(proof.steps, (std::vector<int64_t>{0, 1, 2}));
}

TEST_P(CheckQueues, KeepAReasonOfALaterStep) {
  CheckQueue queue(GetParam());
  Proof proof = equal_so_far();
  queue.add(proof, compared(0, 2), {}, true);
  queue.add(
      proof, [](Proof& part) { part.refute("no rank holds w"); }, {}, true);
  queue.finish();
  EXPECT_EQ(proof.verdict, "different");
  EXPECT_EQ(proof.reason, "no rank holds w");
}

TEST_P(CheckQueues, WaitNoLongerThanAsked) {
  CheckQueue queue(GetParam());
  Proof proof = equal_so_far();
  std::atomic<bool> may_end = GetParam() == 1;
  for (int64_t i = 0; i < GetParam(); ++i) {
    queue.add(
        proof,
        [&](Proof&) {
          while (!may_end) std::this_thread::yield();
        },
        {}, true);
  }
  EXPECT_EQ(queue.has_room(std::chrono::seconds(0)), GetParam() == 1);
  EXPECT_EQ(queue.is_finished(std::chrono::seconds(0)), GetParam() == 1);
  may_end = true;
  EXPECT_TRUE(queue.has_room(std::chrono::seconds(60)));
  EXPECT_TRUE(queue.is_finished(std::chrono::seconds(60)));
}

TEST_P(CheckQueues, TakeErrorsOfPluginsForAReason) {
  CheckQueue queue(GetParam());
  Proof proof = equal_so_far();
  queue.add(
      proof, [](Proof&) { throw PluginError("its formula"); }, {}, true);
  queue.finish();
  EXPECT_EQ(proof.verdict, "not_run");
  EXPECT_EQ(proof.reason, "its formula");
}

TEST_P(CheckQueues, RunNoMoreAtOnceThanAllowed) {
  std::atomic<int> now = 0, most = 0;
  const auto check = [&](Proof&) {
    const int running = ++now;
    for (int seen = most; running > seen && !most.compare_exchange_weak(seen, running);) {
    }
    std::this_thread::sleep_for(milliseconds(10));
    --now;
  };
  Proof proof = equal_so_far();
  CheckQueue queue(GetParam());
  for (int i = 0; i < 9; ++i) queue.add(proof, check, {}, i % 3 != 0);
  queue.finish();
  EXPECT_LE(most, static_cast<int>(GetParam()));
}

INSTANTIATE_TEST_SUITE_P(Threads, CheckQueues, testing::Values(1, 2, 5));

}  // namespace
}  // namespace kuafu
