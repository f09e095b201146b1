// SPDX-License-Identifier: Apache-2.0
#include "kuafu/parallel/pipeline/analysis.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <random>

#include "kuafu/base/errors.h"
#include "kuafu/parallel/pipeline/play.h"
#include "kuafu/parallel/pipeline/schedules.h"
#include "tests/support/random_schedule.h"

namespace kuafu::pipeline {
namespace {

using tests::random_schedule;

std::string message_of(const Timetable& t, PipeShape s, int max_alive = 0) {
  try {
    validate(t, s, max_alive);
  } catch (const ConfigError& e) {
    return e.what();
  }
  return {};
}

TEST(Timetable, CsvReadsBack) {
  for (const Timetable& t : {gpipe({3, 5, 1}), zbv({2, 3, 2}), lower(interleaved({2, 4, 2}))}) {
    EXPECT_EQ(parse_csv(to_csv(t), "x.csv"), t);
  }
  EXPECT_EQ(parse_csv("# by hand\n\n 0F0 , 0B0 \n", "x"), parse_csv("0F0,0B0", "x"));
  // As spreadsheets write it: a byte order mark, lines that end in CR and LF.
  EXPECT_EQ(parse_csv("0F0,0B0 # both, 1F0\n", "x"), parse_csv("0F0,0B0", "x"));
  EXPECT_EQ(parse_csv("\xef\xbb\xbf# by hand\r\n0F0,0B0\r\n", "x"), parse_csv("0F0,0B0", "x"));
}

TEST(Timetable, BadCsvNamesFileAndLine) {
  for (const char* csv : {"0F0\n0X0\n", "0F0\nF0\n", "0F0\n0F\n", "0F0\n0F0,\n", "0F0\n-1F0\n"}) {
    try {
      parse_csv(csv, "hand.csv");
      FAIL() << csv;
    } catch (const ConfigError& e) {
      EXPECT_EQ(std::string(e.what()).rfind("hand.csv:2: ", 0), 0u) << e.what();
      EXPECT_NE(std::string(e.what()).find("2F0"), std::string::npos) << e.what();
    }
  }
  EXPECT_THROW(parse_csv("# nothing\n", "x"), ConfigError);
  try {
    parse_csv("# by hand\n0F0,0B0\r1F0,1B0\r", "x");
    FAIL() << "a row or two?";
  } catch (const ConfigError& e) {
    EXPECT_EQ(std::string(e.what()).rfind("x:2: a carriage return", 0), 0u) << e.what();
  }
}

TEST(Validate, NamesTheCulprit) {
  const PipeShape s{2, 2, 1};
  Timetable missing = one_f_one_b(s);
  missing[1].pop_back();
  EXPECT_NE(message_of(missing, s).find("1B1 is missing"), std::string::npos);
  Timetable twice = one_f_one_b(s);
  twice[0].push_back(twice[0].front());
  EXPECT_NE(message_of(twice, s).find(">0F0<"), std::string::npos);
  const Timetable circle = parse_csv("0F0,0B0,0F1,0B1\n1F1,1B1,1F0,1B0\n", "x");
  const std::string stuck = message_of(circle, s);
  EXPECT_NE(stuck.find("deadlock"), std::string::npos);
  EXPECT_NE(stuck.find(">0B0<"), std::string::npos);
  EXPECT_NE(stuck.find(">1F1<"), std::string::npos);
  const Timetable wanders = parse_csv("0F0,1F0,0B0,1B0\n1F1,0F1,1B1,0B1\n", "x");
  EXPECT_NE(message_of(wanders, s).find("on rank 0 and on rank 1"), std::string::npos);
  EXPECT_NE(message_of(gpipe({2, 6, 1}), {2, 6, 1}, 4).find("keeps 6 stage inputs"),
            std::string::npos);
}

TEST(Validate, ShowsOnlyWhatIsNearTheCulprit) {
  const PipeShape s{4, 130, 1};
  Timetable missing = one_f_one_b(s), swapped = one_f_one_b(s), twice = one_f_one_b(s);
  std::erase(missing[2], Action{Op::kBackward, 2, 77});
  const auto at = std::find(swapped[3].begin(), swapped[3].end(), Action{Op::kBackward, 3, 64});
  std::iter_swap(at, at - 1);
  twice[1].insert(twice[1].begin() + 100, twice[1].front());
  for (const auto& [t, says] : {std::pair{missing, "2B77 is missing in the row of rank 2"},
                                {missing, ">2F77<"},
                                {swapped, "... 3F62 3B62 3F63 3B63 >3B64< 3F64"},
                                {twice, ">1F0<"}}) {
    const std::string message = message_of(t, s);
    EXPECT_NE(message.find(says), std::string::npos) << message;
    EXPECT_LT(message.size(), 500u) << message;
  }
  const PipeShape wide{64, 64, 1};
  Timetable circle = one_f_one_b(wide);
  std::reverse(circle[63].begin(), circle[63].end());
  EXPECT_LT(message_of(circle, wide).size(), 1500u) << message_of(circle, wide);
}

TEST(Validate, AcceptsRandomValidSchedules) {
  std::mt19937 random(7);
  for (int trial = 0; trial < 60; ++trial) {
    const PipeShape s{1 + trial % 4, 1 + trial % 5, 1 + trial % 3};
    const Timetable t = random_schedule(s, random);
    EXPECT_EQ(message_of(t, s), "");
    EXPECT_EQ(message_of(lower(t), s), "");
  }
}

/// Exchanging two neighbours of a row breaks a schedule or not; validate must agree with a replay.
TEST(Validate, RefusesExactlyWhatCannotRun) {
  std::mt19937 random(11);
  int refused = 0;
  for (int trial = 0; trial < 300; ++trial) {
    const PipeShape s{3, 3, 1};
    Timetable t = one_f_one_b(s);
    auto& row = t[random() % 3];
    std::swap(row[random() % row.size()], row[random() % row.size()]);
    // The definition, once more: rounds in which every rank takes what is ready, until none can.
    std::vector<size_t> at(3, 0);
    std::map<Action, bool> done;
    for (bool moved = true; moved;) {
      moved = false;
      for (size_t r = 0; r < 3; ++r) {
        if (at[r] == t[r].size()) continue;
        const Action a = t[r][at[r]];
        const bool is_forward = a.op == Op::kForward;
        const bool ready = is_forward
                               ? a.stage == 0 || done[{a.op, a.stage - 1, a.micro_batch}]
                               : done[{Op::kForward, a.stage, a.micro_batch}] &&
                                     (a.stage == 2 || done[{a.op, a.stage + 1, a.micro_batch}]);
        if (!ready) continue;
        done[a] = moved = true;
        ++at[r];
      }
    }
    const bool can_run = at[0] == t[0].size() && at[1] == t[1].size() && at[2] == t[2].size();
    EXPECT_EQ(message_of(t, s).empty(), can_run) << to_csv(t);
    refused += can_run ? 0 : 1;
  }
  EXPECT_GT(refused, 20);
}

TEST(Lower, MessagesBetweenTwoRanksKeepOneOrder) {
  std::mt19937 random(3);
  std::vector<Timetable> tables = {gpipe({4, 6, 1}), interleaved({3, 6, 2}), zbv({4, 6, 2})};
  for (int i = 0; i < 20; ++i) tables.push_back(random_schedule({3, 4, 2}, random));
  for (const Timetable& t : tables) {
    const Timetable lowered = lower(t);
    const std::vector<int> rank_of = ranks_of_stages(t, shape_of(t).stages());
    std::map<std::pair<int, int>, std::vector<Action>> sent, received;
    int messages = 0;
    for (size_t r = 0; r < lowered.size(); ++r) {
      for (const Action& a : lowered[r]) {
        const bool is_forward = a.op == Op::kSendForward || a.op == Op::kRecvForward;
        const bool is_send = a.op == Op::kSendForward || a.op == Op::kSendBackward;
        if (!is_message(a.op)) continue;
        const int other = a.stage + (is_send == is_forward ? 1 : -1);
        const int peer = rank_of[static_cast<size_t>(other)], me = static_cast<int>(r);
        EXPECT_NE(peer, me);
        // Both sides named by the sender's stage.
        const int from = is_send ? a.stage : other;
        auto& list = is_send ? sent[{me, peer}] : received[{peer, me}];
        list.push_back({is_forward ? Op::kForward : Op::kBackward, from, a.micro_batch});
        messages += is_send ? 1 : 0;
      }
    }
    EXPECT_EQ(sent, received);
    int expected = 0;
    for (size_t s = 0; s + 1 < rank_of.size(); ++s) expected += rank_of[s] != rank_of[s + 1];
    EXPECT_EQ(messages, 2 * expected * shape_of(t).micro_batches);
  }
}

TEST(Estimate, WaitsForTransfersAndSlowStages) {
  const Timetable t = gpipe({2, 1, 1});
  EXPECT_DOUBLE_EQ(estimate(t, {.transfer = 0.5}).length, 1 + 0.5 + 1 + 2 + 0.5 + 2);
  EXPECT_DOUBLE_EQ(estimate(t, {.stage_weight = {1, 3}}).length, 1 + 3 + 6 + 2);
  const Estimate lowered = estimate(lower(t), {.transfer = 0.5});
  EXPECT_DOUBLE_EQ(lowered.length, 7);
}

TEST(Render, ShowsEveryActionAndTheIdleTime) {
  const std::string chart = render_text(one_f_one_b({2, 2, 1}), {});
  EXPECT_EQ(chart,
            "rank 0  |F0--F1--........B0------....B1------|\n"
            "rank 1  |....F0--B0------F1--B1------........|\n");
  const std::string svg = render_svg(zbv({2, 3, 2}), {});
  EXPECT_EQ(svg.rfind("<svg", 0), 0u);
  EXPECT_NE(svg.find("bubble"), std::string::npos);
  EXPECT_NE(svg.find("</svg>"), std::string::npos);
}

TEST(Partition, IsTheBestOfAllCuts) {
  std::mt19937 random(5);
  for (int trial = 0; trial < 100; ++trial) {
    const int n = 2 + trial % 8, stages = 1 + trial % std::min(n, 4);
    std::vector<double> costs(static_cast<size_t>(n));
    for (double& c : costs) c = 1 + static_cast<double>(random() % 9);
    const std::vector<int> layers = partition(costs, stages);
    EXPECT_EQ(std::accumulate(layers.begin(), layers.end(), 0), n);
    const auto largest = [&](const std::vector<int>& cut) {
      double most = 0;
      size_t at = 0;
      for (const int count : cut) {
        double sum = 0;
        for (int i = 0; i < count; ++i) sum += costs[at++];
        most = std::max(most, sum);
      }
      return most;
    };
    double best = 1e300;
    for (unsigned bits = 0; bits < 1u << (n - 1); ++bits) {  // every way to cut n layers
      if (__builtin_popcount(bits) != stages - 1) continue;
      std::vector<int> cut = {1};
      for (int i = 0; i + 1 < n; ++i) (bits >> i & 1) != 0 ? cut.push_back(1) : void(++cut.back());
      best = std::min(best, largest(cut));
    }
    EXPECT_DOUBLE_EQ(largest(layers), best);
  }
  EXPECT_THROW(partition({1, 1}, 3), Refused);
}

}  // namespace
}  // namespace kuafu::pipeline
