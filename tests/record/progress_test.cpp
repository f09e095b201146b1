// SPDX-License-Identifier: Apache-2.0
#include "kuafu/record/progress.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <sstream>

namespace kuafu {
namespace {

using namespace std::chrono_literals;

/// A sweep of `total` cases on a clock that the test moves.
struct Sweep {
  explicit Sweep(int64_t total, bool is_terminal, int64_t finished = 0, int64_t repeats = 0) {
    Progress::Options options;
    options.total = total;
    options.finished = finished;
    options.repeats = repeats;
    options.is_terminal = is_terminal;
    options.width = 80;
    options.now = [this] { return now; };
    progress.emplace(out, options);
  }
  int64_t redraws() const {
    const std::string printed = out.str();
    return std::count(printed.begin(), printed.end(), '\r');
  }
  Progress::Clock::time_point now{1h};
  std::ostringstream out;
  std::optional<Progress> progress;
};

TEST(Progress, EstimatesFromTheCasesFinishedNow) {
  Sweep sweep(10, false, 4);
  EXPECT_LT(sweep.progress->remaining_s(), 0);
  sweep.progress->start("a");
  sweep.now += 3s;
  sweep.progress->finish("ok");
  EXPECT_DOUBLE_EQ(sweep.progress->remaining_s(), 15);  // five of ten are left, 3 s each
}

TEST(Progress, EstimatesRepeatsFromRepeatsOnceThereAreAny) {
  Sweep sweep(6, false, 0, 4);
  const auto run = [&](std::chrono::seconds took, Progress::Kind kind) {
    sweep.progress->start("a", kind);
    sweep.now += took;
    sweep.progress->finish("ok");
  };
  run(10s, Progress::Kind::kFirst);
  EXPECT_DOUBLE_EQ(sweep.progress->remaining_s(), 50);  // one first run and four repeats, like it
  run(20s, Progress::Kind::kFirst);
  EXPECT_DOUBLE_EQ(sweep.progress->remaining_s(), 60);
  run(2s, Progress::Kind::kRepeat);
  EXPECT_DOUBLE_EQ(sweep.progress->remaining_s(), 6);
  sweep.progress->drop_repeats(2);
  EXPECT_DOUBLE_EQ(sweep.progress->remaining_s(), 2);
  run(2s, Progress::Kind::kRepeat);
  EXPECT_NE(sweep.out.str().find("4/4  ok"), std::string::npos) << sweep.out.str();
}

TEST(Progress, OfAnUnknownNumberCountsWhatIsDone) {
  for (const bool is_terminal : {false, true}) {
    Sweep sweep(0, is_terminal);
    for (int i = 0; i < 30; ++i) {  // a bar has 24 letters
      sweep.progress->start("plan");
      sweep.now += 2s;
      sweep.progress->finish("equal");
    }
    const std::string printed = sweep.out.str();
    EXPECT_NE(printed.find(is_terminal ? "30 done  plan" : "30  equal  2"), std::string::npos)
        << printed;
    EXPECT_EQ(printed.find("/0"), std::string::npos) << printed;
    EXPECT_LT(sweep.progress->remaining_s(), 0);
  }
}

TEST(Progress, PrintsAPlainLineACaseInALog) {
  Sweep sweep(2, false);
  sweep.progress->start("first");
  for (int i = 0; i < 100; ++i) sweep.progress->tick();
  sweep.now += 2s;
  sweep.progress->finish("ok");
  sweep.progress->start("second");
  sweep.now += 2s;
  sweep.progress->finish("refused");
  EXPECT_EQ(sweep.out.str(), "1/2  ok  2 s  first  (2 s left)\n2/2  refused  2 s  second\n");
}

TEST(Progress, RedrawsAtMostTenTimesASecond) {
  Sweep sweep(5, true);
  sweep.progress->start("case");
  const int64_t before = sweep.redraws();
  for (int i = 0; i < 1000; ++i) {
    sweep.now += 1ms;
    sweep.progress->tick();
  }
  EXPECT_EQ(sweep.redraws() - before, 10);
}

TEST(Progress, NeverExceedsTheTerminal) {
  Sweep sweep(5, true);
  sweep.progress->start(std::string(500, 'x'));
  const std::string printed = sweep.out.str(), clear = "\033[K";
  const std::string drawn = printed.substr(printed.rfind(clear) + clear.size());
  EXPECT_LE(drawn.size(), 80U);
}

TEST(Progress, KeepsNotesAboveTheBar) {
  Sweep sweep(5, true);
  sweep.progress->start("case");
  sweep.progress->note("a note");
  EXPECT_NE(sweep.out.str().find("\r\033[Ka note\n"), std::string::npos);
}

}  // namespace
}  // namespace kuafu
