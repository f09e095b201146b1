// SPDX-License-Identifier: Apache-2.0
#include "kuafu/record/activity.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "kuafu/base/config.h"
#include "kuafu/base/errors.h"
#include "kuafu/record/json.h"
#include "tests/record/support.h"

namespace kuafu {
namespace {

using Kind = Activity::Kind;

/// Two ranks, 4 ms: rank 1 waits for the first half.
ActivityLog sample() {
  ActivityLog log{"a run", 4e-3, {}};
  log.activities = {{1, Kind::kCompute, "forward", "1F0", 2e-3, 3e-3},
                    {0, Kind::kCompute, "forward", "0F0", 0, 1e-3},
                    {0, Kind::kCommunication, "send", "0s0", 1e-3, 1.5e-3},
                    {1, Kind::kCompute, "backward", "1B0", 3e-3, 4e-3}};
  complete(log, 2);
  return log;
}

size_t count(const std::string& text, const std::string& word) {
  size_t n = 0;
  for (size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) ++n;
  return n;
}

TEST(Activity, CompletesEveryRowWithIdleTime) {
  const ActivityLog log = sample();
  ASSERT_EQ(log.activities.size(), 6U);
  EXPECT_EQ(log.activities[2], (Activity{0, Kind::kIdle, "idle", "", 1.5e-3, 4e-3}));
  EXPECT_EQ(log.activities[3], (Activity{1, Kind::kIdle, "idle", "", 0, 2e-3}));
  double reached[2] = {};
  for (const Activity& a : log.activities) {
    EXPECT_EQ(a.start_s, reached[a.rank]);
    reached[a.rank] = a.end_s;
  }
  for (const double end_s : reached) EXPECT_EQ(end_s, log.length_s);
  EXPECT_TRUE(problems(log).empty());
}

TEST(Activity, ARankWithoutAnyIsIdleThroughout) {
  ActivityLog log = sample();
  complete(log, 3);
  EXPECT_EQ(log.activities.back(), (Activity{2, Kind::kIdle, "idle", "", 0, 4e-3}));
}

TEST(Activity, NamesWhatCannotBe) {
  ActivityLog log = sample();
  log.activities.push_back({0, Kind::kCompute, "forward", "0F1", 0.5e-3, 0.7e-3});
  log.activities.push_back({1, Kind::kCompute, "forward", "1F1", 3.9e-3, 5e-3});
  log.activities.push_back({2, Kind::kCompute, "forward", "2F1", 2e-3, 1e-3});
  log.activities.push_back({3, Kind::kCompute, "forward", "3F1", -1e-3, 1e-3});
  const std::vector<std::string> found = problems(log);
  ASSERT_EQ(found.size(), 5U);
  EXPECT_NE(found[0].find("rank 0, forward 0F1"), std::string::npos) << found[0];
  EXPECT_NE(found[0].find("overlaps forward 0F0"), std::string::npos) << found[0];
  EXPECT_NE(found[1].find("ends after the step"), std::string::npos) << found[1];
  EXPECT_NE(found[2].find("overlaps backward 1B0"), std::string::npos) << found[2];
  EXPECT_NE(found[3].find("ends before it starts"), std::string::npos) << found[3];
  EXPECT_NE(found[4].find("starts before the step"), std::string::npos) << found[4];
  EXPECT_LT(problems(log, 0.95e-3).size(), 5U);
}

TEST(Activity, ChromeTraceHasAProcessARunAndAThreadARank) {
  const ActivityLog log = sample();
  const Json trace = Json::parse(chrome_trace({log, log}));
  std::map<int, std::map<int, double>> reached;  // by process and thread, us
  int events = 0, names = 0;
  for (const Json& e : trace["traceEvents"]) {
    if (e["ph"] == "M") {
      ++names;
      if (e["name"] == "process_name") {
        EXPECT_EQ(e["args"]["name"], "a run");
      } else {
        EXPECT_EQ(e["args"]["name"], text("rank ", e["tid"].get<int>()));
      }
      continue;
    }
    ASSERT_EQ(e["ph"], "X");
    double& end = reached[e["pid"]][e["tid"]];
    EXPECT_NEAR(e["ts"].get<double>(), end, 1e-9) << e.dump();
    end = e["ts"].get<double>() + e["dur"].get<double>();
    ++events;
  }
  EXPECT_EQ(names, 2 * 3);
  EXPECT_EQ(events, 2 * 6);
  for (const auto& [pid, threads] : reached) {
    ASSERT_EQ(threads.size(), 2U);
    for (const auto& [tid, end] : threads) EXPECT_NEAR(end, 4000, 1e-9);
  }
  EXPECT_EQ(trace["traceEvents"][3]["cat"], "compute");
  EXPECT_EQ(trace["traceEvents"][3]["name"], "0F0");
}

TEST(Activity, PictureHasAxisUnitLegendAndEveryLabel) {
  const std::string svg = activity_svg(sample());
  for (const char* word : {"time, ms", "rank 0", "rank 1", ">1F0<", ">1B0<", "forward, 25.0 %",
                           "idle, 56.3 %", "send, 6.2 %", ">0.5<", ">4<", "a run"}) {
    EXPECT_NE(svg.find(word), std::string::npos) << word << "\n" << svg;
  }
  EXPECT_EQ(count(svg, "<rect"), 1U + 4 + 6);  // paper, legend, activities
  EXPECT_EQ(svg, activity_svg(sample()));
}

TEST(Activity, EveryVerbHasAColourOfItsOwn) {
  ActivityLog log{"a run", 10e-3, {}};
  for (int verb = 0; verb < 10; ++verb) {
    const double start = 1e-3 * verb;
    log.activities.push_back(
        {0, Kind::kCommunication, "verb" + std::to_string(verb), "x", start, start + 1e-3});
  }
  complete(log, 1);
  const std::string svg = activity_svg(log);
  std::set<std::string> fills;
  for (size_t at = svg.find("fill=\"#"); at != std::string::npos;
       at = svg.find("fill=\"#", at + 1)) {
    if (svg.rfind("<rect", at) > svg.rfind("<text", at) ||
        svg.rfind("<text", at) == std::string::npos)
      fills.insert(svg.substr(at + 6, 7));
  }
  EXPECT_GE(fills.size(), 10u) << svg;
}

TEST(Activity, QueuesHaveRowsBelowTheirRank) {
  ActivityLog log = sample();
  log.activities.push_back(
      {0, Kind::kCopy, "copy to device", "parameter", 0.5e-3, 2e-3, Activity::Row::kToDevice});
  complete(log, 2);
  EXPECT_EQ(log.activities.size(), 7U);  // no idle time of queues
  EXPECT_TRUE(problems(log).empty());
  const std::string svg = activity_svg(log);
  for (const char* word : {">to device<", "copy to device, 18.8 %", ">parameter<",
                           "rank 0 to device, copy to device parameter: 0.5 to 2 ms"}) {
    EXPECT_NE(svg.find(word), std::string::npos) << word << "\n" << svg;
  }
  const Json trace = Json::parse(chrome_trace({log}));
  std::map<std::string, int> threads;
  for (const Json& e : trace["traceEvents"]) {
    if (e["name"] == "thread_name") threads[e["args"]["name"]] = e["tid"];
    if (e["ph"] == "X" && e["cat"] == "copy") {
      EXPECT_EQ(e["tid"], 2);
    }
  }
  EXPECT_EQ(threads,
            (std::map<std::string, int>{{"rank 0", 0}, {"rank 0 to device", 2}, {"rank 1", 1}}));
}

TEST(Activity, PictureEscapesNamesAndThinsWhatNobodySees) {
  ActivityLog log{"a < b & \"c\"", 1.0, {}};
  for (int i = 0; i < 5000; ++i) {
    const double start = i * 2e-4;
    log.activities.push_back({0, Kind::kCompute, "tiny", text(i), start, start + 2e-4});
  }
  const std::string svg = activity_svg(log);
  EXPECT_NE(svg.find("a &lt; b &amp; &quot;c&quot;"), std::string::npos);
  EXPECT_LT(count(svg, "<rect"), 2500U);
  EXPECT_THROW(activity_svg({"empty", 0, {}}), ConfigError);
}

TEST(Activity, IsWrittenByTheEndOfTheName) {
  const test::TemporaryFolder folder;
  write_activities(sample(), folder.path() + "/t.json");
  write_activities(sample(), folder.path() + "/t.svg");
  EXPECT_EQ(read_file(folder.path() + "/t.svg", "picture"), activity_svg(sample()));
  EXPECT_EQ(read_file(folder.path() + "/t.json", "trace"), chrome_trace({sample()}));
  try {
    check_activity_path("t.png");
    ADD_FAILURE() << "no error";
  } catch (const ConfigError& error) {
    EXPECT_NE(std::string(error.what()).find(".svg"), std::string::npos);
  }
}

}  // namespace
}  // namespace kuafu
