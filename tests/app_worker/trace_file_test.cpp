// SPDX-License-Identifier: Apache-2.0
//
// kuafu run --trace: the file of docs/trace.md.

#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <set>
#include <vector>

#include "app/worker/exit_code.h"
#include "kuafu/record/json.h"
#include "tests/app_worker/process.h"

namespace kuafu {
namespace {

using tests::Arguments;
using tests::kSmallPlan;
using tests::Ran;
using tests::run_worker;

/// The events of a run of two ranks without clipping, whose factor would be a value of the data.
std::vector<Json> events_of(const std::string& world, Json& head) {
  const tests::Folder folder;
  const std::string file = folder.path("trace.jsonl");
  const Ran ran = run_worker(kSmallPlan, {"--set", "parallel.data=2", "--set", "optimizer.clip=0",
                                          "--world", world, "--trace", file});
  EXPECT_EQ(ran.code, 0) << ran.output;
  std::ifstream in(file);
  std::string line;
  std::getline(in, line);
  head = Json::parse(line);
  std::vector<Json> events;
  while (std::getline(in, line)) events.push_back(Json::parse(line));
  return events;
}

TEST(WorkerTrace, HasTheSameEventsInEveryWorld) {
  Json head;
  const std::vector<Json> real = events_of("threads", head);
  EXPECT_EQ(head["world"], "threads");
  EXPECT_EQ(head["trace"], 1);
  EXPECT_EQ(head["ranks"], 2);
  std::vector<Json> simulated = events_of("simulated", head);
  EXPECT_EQ(head["world"], "simulated");
  ASSERT_EQ(real.size(), simulated.size());
  std::map<std::string, int> num_events;
  for (size_t i = 0; i < real.size(); ++i) {
    Json a = real[i], b = simulated[i];
    ++num_events[a["event"].get<std::string>()];
    if (a["event"] != "oracle") {
      EXPECT_GT(a["start_ns"], 0);
      EXPECT_GE(a["end_ns"], a["start_ns"]);
    }
    for (const char* key : {"start_ns", "end_ns", "value"}) {
      a.erase(key);
      b.erase(key);
    }
    ASSERT_EQ(a, b) << "event " << i;
  }
  for (const char* kind : {"op", "alloc", "free", "call", "wait", "begin", "end", "oracle"}) {
    EXPECT_GT(num_events[kind], 0) << kind;
  }
  EXPECT_EQ(num_events["begin"], num_events["end"]);
  std::set<std::string> phases, kinds;
  for (const Json& e : real) {
    if (e["event"] == "begin") phases.insert(e["name"].get<std::string>());
    if (e["event"] == "op") kinds.insert(e["kind"].get<std::string>());
  }
  for (const char* phase : {"forward 0F0", "backward 0B0", "blocks.0", "head", "update"}) {
    EXPECT_EQ(phases.count(phase), 1U) << phase;
  }
  for (const char* kind : {"matmul", "attention", "norm", "elementwise", "copy", "fill", "load"}) {
    EXPECT_EQ(kinds.count(kind), 1U) << kind;
  }
  EXPECT_EQ(kinds.count("unbooked"), 0U);
  EXPECT_EQ(real.front()["name"], "step");
  EXPECT_EQ(real.back()["name"], "step");
}

/// Runs two ranks with clipping and a trace.
Ran traced(const std::string& world, const std::string& file, const Arguments& more = {}) {
  Arguments words = {"--set", "parallel.data=2", "--set", "optimizer.clip=0.5", "--world",
                     world,   "--trace",         file};
  words.insert(words.end(), more.begin(), more.end());
  return run_worker(kSmallPlan, words);
}

/// The lines behind the head without their times.
std::vector<Json> without_times(const std::string& file) {
  std::ifstream in(file);
  std::string line;
  std::getline(in, line);
  std::vector<Json> events;
  while (std::getline(in, line)) {
    events.push_back(Json::parse(line));
    events.back().erase("start_ns");
    events.back().erase("end_ns");
  }
  return events;
}

// Whether gradients are clipped is read off the data: a simulated run needs the real one's values.
TEST(WorkerTrace, OfTheSimulatedWorldTakesTheOraclesOfARealOne) {
  const tests::Folder folder;
  const std::string real = folder.path("real.jsonl"), simulated = folder.path("simulated.jsonl");
  ASSERT_EQ(traced("threads", real).code, 0);
  const Ran ran = traced("simulated", simulated, {"--oracles", real});
  ASSERT_EQ(ran.code, 0) << ran.output;
  const std::vector<Json> a = without_times(real), b = without_times(simulated);
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) ASSERT_EQ(a[i], b[i]) << "event " << i;
}

TEST(WorkerTrace, RefusesOraclesThatAreNone) {
  const tests::Folder folder;
  const std::string file = folder.path("real.jsonl"), out = folder.path("out.jsonl");
  std::ofstream(file) << R"({"trace":1,"ranks":2})"
                      << "\n"
                      << R"({"event":"oracle","name":"loss","start_ns":0,"rank":0})"
                      << "\n";
  const Ran cut = traced("simulated", out, {"--oracles", file});
  EXPECT_EQ(cut.code, kUsage);
  EXPECT_NE(cut.output.find("real.jsonl:2: \"value\": missing"), std::string::npos) << cut.output;
  std::ofstream(file) << R"({"trace":1,"ranks":1})"
                      << "\n"
                      << R"({"event":"oracle","name":"loss","start_ns":0,"value":1,"rank":0})";
  const Ran ranks = traced("simulated", out, {"--oracles", file});
  EXPECT_EQ(ranks.code, kUsage);
  EXPECT_NE(ranks.output.find("real.jsonl:1: \"ranks\": 1; the plan has 2"), std::string::npos)
      << ranks.output;
  std::ofstream(file) << R"({"trace":1,"ranks":2,"plan_hash":"0123456789abcdef"})"
                      << "\n"
                      << R"({"event":"oracle","name":"loss","start_ns":0,"value":1,"rank":0})"
                      << "\n"
                      << R"({"event":"oracle","name":"loss","start_ns":0,"value":1,"rank":1})";
  const Ran other = traced("simulated", out, {"--oracles", file});
  EXPECT_EQ(other.code, kUsage);
  EXPECT_NE(other.output.find("real.jsonl:1: it is of the plan 0123456789abcdef, and this is " +
                              other.document["plan_hash"].get<std::string>()),
            std::string::npos)
      << other.output;
  const Ran threads = traced("threads", out, {"--oracles", file});
  EXPECT_EQ(threads.code, kUsage);
  EXPECT_NE(threads.output.find("--world simulated"), std::string::npos) << threads.output;
}

TEST(WorkerTrace, IsRefusedWhereItCannotBeWritten) {
  const Ran ran = run_worker(kSmallPlan, {"--trace", "/nowhere/trace.jsonl"});
  EXPECT_EQ(ran.code, kUsage);
  EXPECT_NE(ran.output.find("/nowhere/trace.jsonl"), std::string::npos) << ran.output;
}

}  // namespace
}  // namespace kuafu
