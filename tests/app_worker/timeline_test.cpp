// SPDX-License-Identifier: Apache-2.0
//
// kuafu run --timeline FILE: what every rank did in the last step, real and simulated alike.

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <set>
#include <sstream>

#include "tests/app_worker/process.h"

namespace kuafu {
namespace {

using tests::Arguments;
using tests::Folder;
using tests::kSmallPlan;
using tests::Ran;

std::string content(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream all;
  all << file.rdbuf();
  return all.str();
}

/// Two stages, two replicas: four micro-batches a replica.
Arguments settings(const std::string& schedule, const std::string& zero) {
  Arguments words;
  for (const std::string& s :
       {std::string("parallel.pipeline.size=2"), "parallel.pipeline.schedule=" + schedule,
        std::string("parallel.data=2"), "parallel.zero=" + zero, std::string("train.micro_batch=1"),
        std::string("cluster.compute_gflops=1")}) {
    words.push_back("--set");
    words.push_back(s);
  }
  return words;
}

Ran run(const Arguments& more, const Arguments& launcher = {}) {
  return tests::run_program("bin/kuafu", kSmallPlan, more, launcher, {});
}

Json trace_of(const Arguments& more, const Arguments& launcher = {}) {
  const Folder folder;
  Arguments words = more;
  words.insert(words.end(), {"--timeline", folder.path("step.json")});
  const Ran ran = run(words, launcher);
  EXPECT_EQ(ran.code, 0) << ran.output;
  return Json::parse(content(folder.path("step.json")), nullptr, false);
}

bool is_action(const std::string& name) {
  const size_t op = name.find_first_of("FBIW");
  return op != std::string::npos && op > 0 && op + 1 < name.size() &&
         name.find_first_not_of("0123456789FBIW") == std::string::npos;
}

/// What a trace says of a rank.
struct Row {
  double reached_us = 0;
  std::map<std::string, double> us_by_kind;
  std::set<std::string> actions;
};

/// Reads a trace; every row must be without gap and overlap from 0.
std::map<int, Row> rows_of(const Json& trace) {
  std::map<int, Row> rows;
  std::set<std::string> keys;
  for (const Json& e : trace["traceEvents"]) {
    if (e["ph"] == "M") continue;
    EXPECT_EQ(e["ph"], "X") << e.dump();
    for (const auto& [key, value] : e.items()) keys.insert(key);
    Row& row = rows[e["tid"].get<int>()];
    const double start = e["ts"], length = e["dur"];
    EXPECT_GE(length, 0) << e.dump();
    EXPECT_NEAR(start, row.reached_us, 1e-3) << e.dump();  // a nanosecond: printed digits
    row.reached_us = start + length;
    row.us_by_kind[e["cat"]] += length;
    if (is_action(e["name"])) row.actions.insert(e["name"].get<std::string>());
  }
  EXPECT_EQ(keys, (std::set<std::string>{"args", "cat", "dur", "name", "ph", "pid", "tid", "ts"}));
  return rows;
}

/// Four rows of one length, each with all three kinds and no other.
void expect_filled(const std::map<int, Row>& rows) {
  ASSERT_EQ(rows.size(), 4U);
  for (const auto& [rank, row] : rows) {
    EXPECT_GT(row.reached_us, 0);
    EXPECT_NEAR(row.reached_us, rows.at(0).reached_us, 1e-3) << "rank " << rank;
    ASSERT_EQ(row.us_by_kind.size(), 3U) << "rank " << rank;
    double sum = 0;
    for (const char* kind : {"compute", "communication", "idle"}) {
      ASSERT_TRUE(row.us_by_kind.contains(kind)) << kind << ", rank " << rank;
      EXPECT_GT(row.us_by_kind.at(kind), 0) << kind << ", rank " << rank;
      sum += row.us_by_kind.at(kind);
    }
    EXPECT_NEAR(sum, row.reached_us, 1e-2) << "rank " << rank;
  }
}

/// Ranks 0 and 1 are stage 0, ranks 2 and 3 stage 1.
std::set<std::string> actions_of(int rank, const std::string& ops) {
  std::set<std::string> all;
  for (const char op : ops) {
    for (int m = 0; m < 4; ++m) all.insert(std::to_string(rank / 2) + op + std::to_string(m));
  }
  return all;
}

TEST(WorkerTimeline, FillsTheStepOfEveryRankRealAndSimulatedInOneFormat) {
  struct Wanted {
    const char *schedule, *zero, *ops;
  };
  for (const Wanted& w : {Wanted{"1f1b", "1", "FB"}, Wanted{"zero_bubble", "3", "FIW"}}) {
    for (const char* world : {"threads", "simulated"}) {
      SCOPED_TRACE(std::string(w.schedule) + ", " + world);
      Arguments words = settings(w.schedule, w.zero);
      words.insert(words.end(), {"--world", world});
      const Json trace = trace_of(words);
      ASSERT_TRUE(trace.is_object());
      const std::map<int, Row> rows = rows_of(trace);
      expect_filled(rows);
      for (const auto& [rank, row] : rows) EXPECT_EQ(row.actions, actions_of(rank, w.ops));
    }
  }
}

// The same numbers every time, as long as a predicted step takes.
TEST(WorkerTimeline, OfTheSimulatedWorldIsExact) {
  Arguments words = settings("1f1b", "2");
  words.insert(words.end(), {"--world", "simulated"});
  const Json once = trace_of(words);
  EXPECT_EQ(once, trace_of(words));
  const Ran ran = run(words);
  // The prediction is a mean over its steps, some of which overlap; one alone is no shorter.
  const double step_us = ran.document["step_time_s"]["median"].get<double>() * 1e6;
  EXPECT_GE(rows_of(once).at(0).reached_us, step_us * (1 - 1e-9));
  EXPECT_LE(rows_of(once).at(0).reached_us, step_us * 1.5);
}

TEST(WorkerTimeline, IsDrawnWithARowARankAndTheShareOfEachKind) {
  for (const char* world : {"threads", "simulated"}) {
    const Folder folder;
    Arguments words = settings("1f1b", "0");
    words.insert(words.end(), {"--world", world, "--timeline", folder.path("step.svg")});
    ASSERT_EQ(run(words).code, 0) << world;
    const std::string svg = content(folder.path("step.svg"));
    EXPECT_EQ(svg.find("<svg"), svg.find('<'));
    EXPECT_NE(svg.find("</svg>"), std::string::npos);
    for (const char* word : {"rank 0", "rank 3", "forward, ", "backward, ", "idle, ", "time, "}) {
      EXPECT_NE(svg.find(word), std::string::npos) << world << ": " << word;
    }
    EXPECT_EQ(svg.find("rank 4"), std::string::npos);
  }
}

TEST(WorkerTimeline, IsRefusedUnderAWrongNameOrInNoFolder) {
  const Folder folder;
  const Ran png = run({"--timeline", folder.path("step.png")});
  EXPECT_EQ(png.code, 2) << png.output;
  EXPECT_NE(png.output.find(".svg"), std::string::npos) << png.output;
  const Ran nowhere = run({"--timeline", folder.path("none/step.svg")});
  EXPECT_EQ(nowhere.code, 2) << nowhere.output;
}

}  // namespace
}  // namespace kuafu
