// SPDX-License-Identifier: Apache-2.0
//
// kuafu run --trace: the file of docs/trace.md.

#include <gtest/gtest.h>

#include <fstream>
#include <map>
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
  EXPECT_EQ(real.front()["name"], "step");
  EXPECT_EQ(real.back()["name"], "step");
}

TEST(WorkerTrace, IsRefusedWhereItCannotBeWritten) {
  const Ran ran = run_worker(kSmallPlan, {"--trace", "/nowhere/trace.jsonl"});
  EXPECT_EQ(ran.code, kUsage);
  EXPECT_NE(ran.output.find("/nowhere/trace.jsonl"), std::string::npos) << ran.output;
}

}  // namespace
}  // namespace kuafu
