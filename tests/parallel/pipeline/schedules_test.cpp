// SPDX-License-Identifier: Apache-2.0
#include "kuafu/parallel/pipeline/schedules.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <stdexcept>

#include "kuafu/base/errors.h"
#include "kuafu/parallel/pipeline/analysis.h"
#include "kuafu/parallel/pipeline/choose.h"

namespace kuafu::pipeline {
namespace {

struct Row {
  const char* name;
  Timetable (*make)(PipeShape);
  int chunks;
  double (*bubble)(double p, double m);  // at F = I = W and m >= p, m a multiple of p
  int (*alive)(PipeShape s, int rank);   // upper bound of stage inputs kept
};

const std::vector<Row> kRows = {
    {"gpipe", gpipe, 1, [](double p, double m) { return (p - 1) / m; },
     [](PipeShape s, int) { return s.micro_batches; }},
    {"1f1b", one_f_one_b, 1, [](double p, double m) { return (p - 1) / m; },
     [](PipeShape s, int r) { return s.ranks - r; }},
    {"zero_bubble", zero_bubble_h1, 1, [](double p, double m) { return (p - 1) / (3 * m); },
     [](PipeShape s, int) { return s.ranks; }},
    {"interleaved 1", interleaved, 1, [](double p, double m) { return (p - 1) / m; },
     [](PipeShape s, int r) { return 2 * (s.ranks - r) - 1; }},
    {"interleaved 2", interleaved, 2, [](double p, double m) { return (p - 1) / (2 * m); },
     [](PipeShape s, int r) { return s.ranks + 2 * (s.ranks - r) - 1; }},
    {"interleaved 3", interleaved, 3, [](double p, double m) { return (p - 1) / (3 * m); },
     [](PipeShape s, int r) { return 2 * s.ranks + 2 * (s.ranks - r) - 1; }},
    {"zbv", zbv, 2, nullptr, [](PipeShape s, int) { return 2 * s.ranks; }},
};

TEST(Schedules, BubbleAndMemoryEqualTheFormulas) {
  for (const Row& row : kRows) {
    for (const int p : {1, 2, 3, 4, 5, 8}) {
      for (const int m : {p, 2 * p, 4 * p}) {
        const PipeShape s{p, m, row.chunks};
        const Timetable t = row.make(s);
        SCOPED_TRACE(text(row.name, " p ", p, " m ", m));
        ASSERT_NO_THROW(validate(t, s));
        const Estimate e = estimate(t, {});
        if (row.bubble != nullptr) {
          EXPECT_NEAR(e.bubble(), row.bubble(p, m), 1e-12);
        }
        for (int r = 0; r < p; ++r) {
          EXPECT_LE(e.peak_alive[static_cast<size_t>(r)], row.alive(s, r)) << "rank " << r;
        }
      }
    }
  }
}

TEST(Schedules, EveryShapeIsValidFewMicroBatchesToo) {
  for (const Row& row : kRows) {
    for (int p = 1; p <= 6; ++p) {
      for (int m = 1; m <= 13; ++m) {
        const PipeShape s{p, m, row.chunks};
        EXPECT_NO_THROW(validate(row.make(s), s)) << row.name << " p " << p << " m " << m;
        const Timetable lowered = lower(row.make(s));
        EXPECT_NO_THROW(validate(lowered, s)) << row.name << " p " << p << " m " << m;
      }
    }
  }
}

// Any number of chunks and micro-batches: never more alive than the formula for multiples of p, and
// a short first group costs no more than its gaps on the ring of each chunk but one.
TEST(Schedules, InterleavedKeepsItsMemoryAndLengthForEveryShape) {
  for (int v = 1; v <= 6; ++v) {
    for (int p = 1; p <= 8; ++p) {
      for (int m = 1; m <= 4 * p + 2; ++m) {
        SCOPED_TRACE(text("chunks ", v, " p ", p, " m ", m));
        const PipeShape s{p, m, v};
        const Timetable t = interleaved(s);
        ASSERT_NO_THROW(validate(t, s));
        const Estimate e = estimate(t, {});
        for (int r = 0; r < p; ++r) {
          EXPECT_LE(e.peak_alive[static_cast<size_t>(r)], std::min(v * m, v * p + p - 1 - 2 * r));
        }
        const int short_group = m % p;
        if (m < p) {
          EXPECT_EQ(e.length, 3 * (v * p + m - 1));
        } else if (short_group == 0) {
          EXPECT_EQ(e.length, 3 * (v * m + p - 1));
          EXPECT_EQ(e.peak_alive[0], std::min(v * m, v * p + p - 1));
        } else {
          const int gaps = 2 * (v - 1) * (p - short_group);
          EXPECT_GE(e.length, 3 * (v * m + p - 1));
          EXPECT_LE(e.length, 3 * (v * m + p - 1) + gaps);
        }
      }
    }
  }
}

// From the first backward on, one forward and one backward in turn while forwards are left.
TEST(Schedules, InterleavedTakesTurnsOnEveryRankWithWholeGroups) {
  for (const int v : {2, 4}) {
    const PipeShape s{4, 12, v};
    for (const auto& row : interleaved(s)) {
      const auto first = std::find_if(row.begin(), row.end(),
                                      [](const Action& a) { return a.op == Op::kBackward; });
      const auto last = std::find_if(row.rbegin(), row.rend(), [](const Action& a) {
                          return a.op == Op::kForward;
                        }).base();
      ASSERT_LT(first, last);  // not all forwards first
      for (auto a = first; a != last; ++a) {
        EXPECT_NE(a->op, (a - 1)->op) << to_string(*a);
      }
    }
  }
}

TEST(Schedules, TheVLeavesLessThanAQuarterOfTheBubble) {
  for (const int p : {2, 3, 4, 6, 8}) {
    for (const int m : {p, 2 * p, 4 * p, 8 * p}) {
      const double bubble = estimate(zbv({p, m, 2}), {}).bubble();
      EXPECT_LE(bubble, (p - 1) / (4.0 * m) + 1e-12) << "p " << p << " m " << m;
    }
  }
}

TEST(Schedules, TheVPutsTheLossBesideTheTokens) {
  const std::vector<int> ranks = ranks_of_stages(zbv({4, 8, 2}), 8);
  EXPECT_EQ(ranks, (std::vector<int>{0, 1, 2, 3, 3, 2, 1, 0}));
}

TEST(Schedules, WeightGradientsComeLastAndOnce) {
  for (const Timetable& t : {zero_bubble_h1({4, 7, 1}), zbv({4, 7, 2})}) {
    for (const auto& row : t) {
      EXPECT_TRUE(std::none_of(row.begin(), row.end(),
                               [](const Action& a) { return a.op == Op::kBackward; }));
    }
  }
}

TEST(Schedules, RefuseOtherNumbersOfChunks) {
  EXPECT_THROW(gpipe({2, 4, 2}), Refused);
  EXPECT_THROW(one_f_one_b({2, 4, 3}), Refused);
  EXPECT_THROW(zbv({2, 4, 1}), Refused);
  EXPECT_THROW(zero_bubble_h1({2, 4, 2}), Refused);
  EXPECT_THROW(gpipe({0, 4, 1}), ConfigError);
  EXPECT_THROW(gpipe({2, 0, 1}), ConfigError);
}

TEST(Schedules, AreRegisteredByName) {
  Registry<Schedule> schedules("schedule");
  register_schedules(schedules);
  for (const auto& entry : schedules.entries()) {
    const int chunks = entry.make.chunks == 0 ? 3 : entry.make.chunks;
    const PipeShape s{3, 6, chunks};
    EXPECT_NO_THROW(validate(entry.make.make(s), s)) << entry.name;
  }
  EXPECT_GE(schedules.entries().size(), 5u);
}

TEST(Schedules, OfAPluginAreToldByName) {
  Registry<Schedule> known("schedule");
  register_schedules(known);
  Schedule sends = known.find("gpipe");
  sends.make = [](PipeShape s) {
    Timetable t = gpipe(s);
    t[0].push_back({Op::kSendForward, 0, 0});
    return t;
  };
  known.add("sends", "of a test", sends);
  const auto words_of = [&](const char* name) -> std::string {
    try {
      make_timetable(name, {2, 4, 1}, known);
    } catch (const ConfigError& e) {
      return e.what();
    }
    return "";
  };
  EXPECT_EQ(words_of("gpipe"), "");
  const std::string of_sends = words_of("sends");
  EXPECT_TRUE(of_sends.starts_with("schedule \"sends\", for 2 ranks")) << of_sends;
  EXPECT_NE(of_sends.find("messages follow from the actions"), std::string::npos) << of_sends;
}

}  // namespace
}  // namespace kuafu::pipeline
