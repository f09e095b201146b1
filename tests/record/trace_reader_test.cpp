// SPDX-License-Identifier: Apache-2.0
#include "kuafu/record/trace_reader.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <fstream>
#include <limits>
#include <map>

#include "kuafu/base/errors.h"
#include "kuafu/record/trace_file.h"
#include "kuafu/record/trace_timeline.h"

namespace kuafu {
namespace {

/// Rank 0 computes, sends and sums; rank 1 receives and sums. Every kind of event is in it.
Trace trace_of(int rank) {
  TraceRecorder t;
  const std::string label = "data";
  const std::vector<int> members = {0, 1};
  const TraceRecorder::CallEvent data{.key = &label, .label = &label, .members = &members};
  t.begin_phase("step");
  t.begin_phase("forward 0F0");
  t.op({.name = t.name_of("kuafu::matmul"),
        .shape = t.shape_of("f32 4x8, f32 8x2"),
        .kind = OpKind::kMatmul,
        .start_ns = t.now_ns()});
  t.work(128, 224, kRecompute);
  const int64_t block = t.alloc("activation", 32);
  t.end_phase("forward 0F0");
  TraceRecorder::CallEvent message = data;
  message.verb = rank == 0 ? "send" : "recv";
  message.call = {.tag = 3, .dtype = DType::kF32};
  (rank == 0 ? message.call.to : message.call.from) = 1 - rank;
  message.bytes = 32;
  const int64_t first = t.call(message);
  t.returned(first);
  t.wait(first, kHostSync, t.now_ns());
  t.begin_phase("update");
  TraceRecorder::CallEvent sum = data;
  sum.verb = "all_reduce";
  sum.reduce = "max";
  sum.call.dtype = DType::kF64;
  sum.bytes = 8;
  const int64_t second = t.call(sum);
  t.wait(second, kHostSync, t.now_ns());
  for (const TraceQueue queue : {TraceQueue::kToDevice, TraceQueue::kToHost}) {
    const int64_t copy = t.copy("parameter", queue, 64), begun = t.now_ns();
    t.arrival(copy, t.now_ns(), begun, t.now_ns());
  }
  t.oracle("loss", 0.1 + rank);
  t.free(block, "activation", 32);
  t.free(0, "temporary", 8);
  t.end_phase("update");
  t.end_phase("step");
  return t.take();
}

TEST(TraceReader, ReadsWhatIsWritten) {
  const Trace trace = trace_of(1);
  const std::string lines = trace_lines(trace, 1);
  const Trace read = read_trace_lines(lines, 1, "lines");
  EXPECT_EQ(first_difference(trace, read), "");
  EXPECT_EQ(trace_lines(read, 1), lines);  // values, times and flags too
}

// As the norm of gradients that overflow.
TEST(TraceReader, ReadsValuesThatAreNoNumbers) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  for (const double value : {kInfinity, -kInfinity, std::nan("")}) {
    TraceRecorder t;
    t.oracle("gradient norm", value);
    const std::string lines = trace_lines(t.take(), 0);
    const Trace read = read_trace_lines(lines, 0, "lines");
    EXPECT_TRUE(read.records[0].value == value || std::isnan(value)) << lines;
    EXPECT_EQ(trace_lines(read, 0), lines);
  }
}

TEST(TraceReader, ReadsAllRanksOfAFile) {
  const std::string file = testing::TempDir() + "trace_reader_test.jsonl";
  const Json head = {{"trace", 1}, {"ranks", 2}};
  write_trace(head, {trace_lines(trace_of(0), 0), trace_lines(trace_of(1), 1)}, file);
  const std::vector<Trace> ranks = read_trace(file);
  ASSERT_EQ(ranks.size(), 2U);
  EXPECT_EQ(first_difference(ranks[0], trace_of(0)), "");
  EXPECT_EQ(first_difference(ranks[1], trace_of(1)), "");
  std::remove(file.c_str());
}

// At the end of a line, so that every line is one; and of the last rank, which nothing follows.
TEST(TraceReader, RefusesAFileThatLacksAnEvent) {
  const std::string file = testing::TempDir() + "trace_reader_cut.jsonl";
  const std::string of_rank_1 = trace_lines(trace_of(1), 1);
  write_trace({{"trace", 1}, {"ranks", 2}}, {trace_lines(trace_of(0), 0), of_rank_1}, file);
  std::ifstream whole(file);
  const std::string all{std::istreambuf_iterator<char>(whole), {}};
  const size_t last = of_rank_1.rfind('\n', of_rank_1.size() - 2);
  ASSERT_NE(last, std::string::npos);
  std::ofstream(file) << all.substr(0, all.size() - of_rank_1.size() + last + 1);
  EXPECT_THROW(read_trace(file), ConfigError);
  std::remove(file.c_str());
}

std::string error_of(const std::string& content) {
  const std::string file = testing::TempDir() + "trace_reader_error.jsonl";
  std::ofstream(file) << content;
  try {
    read_trace(file);
  } catch (const ConfigError& e) {
    const std::string what = e.what();
    std::remove(file.c_str());
    return what.substr(std::min(what.find("error.jsonl:"), what.size()));
  }
  return "no error";
}

TEST(TraceReader, NamesLineAndFieldOfWhatIsWrong) {
  const std::string head = "{\"trace\":1,\"ranks\":1}\n";
  const std::string oracle = R"({"event":"oracle","name":"loss","start_ns":0,"value":1,"rank":0})";
  EXPECT_EQ(error_of(head + oracle), "no error");
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string line = oracle;
    line.replace(line.find(from), from.size(), to);
    return error_of(head + oracle + "\n" + line);
  };
  EXPECT_EQ(with("\"value\":1,", ""), "error.jsonl:3: \"value\": missing");
  EXPECT_EQ(with("\"value\":1", "\"value\":\"1\""),
            "error.jsonl:3: \"value\": \"1\", expected a number, inf, -inf or nan");
  EXPECT_EQ(with("\"start_ns\":0", "\"start_ns\":0.5"),
            "error.jsonl:3: \"start_ns\": 0.5, expected a whole number");
  EXPECT_EQ(with("\"rank\":0", "\"rank\":1"), "error.jsonl:3: \"rank\": 1 of 1 after rank 0");
  EXPECT_EQ(with("oracle", "oracel"),
            "error.jsonl:3: \"event\": \"oracel\", expected one of op, alloc, free, call, wait, "
            "begin, end, oracle, copy, arrival");
  EXPECT_NE(with("}", "").find("error.jsonl:3: byte "), std::string::npos);
  EXPECT_EQ(error_of("{\"trace\":2,\"ranks\":1}\n"),
            "error.jsonl:1: \"trace\": expected 1, the format's version");
  EXPECT_EQ(error_of(""), "error.jsonl:1: \"trace\": missing; the file is empty");
  EXPECT_NE(error_of("{\"trace\":1,\"ranks\":2}\n" + oracle).find("events of 1 of 2 ranks"),
            std::string::npos);
  const std::string call = R"({"event":"call","name":"send","start_ns":0,"end_ns":0,"rank":0,)"
                           R"("axis":"data","group":0,"members":[0,1],"dtype":"f32","to":2})";
  EXPECT_EQ(error_of(head + call), "error.jsonl:2: \"to\": 2, the group has 2 members");
  const std::string copy =
      R"({"event":"copy","name":"p","queue":"to host","copy":0,"bytes":8,"start_ns":0,"end_ns":0,"rank":0})";
  EXPECT_EQ(error_of(head + copy), "no error");
  std::string elsewhere = copy;
  elsewhere.replace(elsewhere.find("to host"), 7, "compute");
  EXPECT_EQ(error_of(head + elsewhere),
            "error.jsonl:2: \"queue\": \"compute\", expected \"to device\", \"to host\", \"from "
            "disk\" or \"to disk\" of a copy");
}

TEST(TraceTimeline, HasPhasesCallsAndNoGapOfEveryRank) {
  const ActivityLog log = timeline_of({trace_of(0), trace_of(1)}, "two ranks");
  EXPECT_TRUE(problems(log, 1e-9).empty());
  std::map<std::string, int> whats;
  for (const Activity& a : log.activities) ++whats[a.what + " " + a.label];
  EXPECT_EQ(whats["forward 0F0"], 2);
  EXPECT_GE(whats["all_reduce all_reduce data"], 2);
  EXPECT_GE(whats["send send data"], 1);
  EXPECT_EQ(whats["copy to device parameter"], 2);
  EXPECT_EQ(whats["copy to host parameter"], 2);
}

/// Marks of one rank at given times.
class Clocked {
 public:
  TraceRecord& add(TraceKind kind, const std::string& name, int64_t start_ns, int64_t end_ns) {
    trace_.names.push_back(name);
    TraceRecord r;
    r.kind = kind;
    r.name = static_cast<int32_t>(trace_.names.size()) - 1;
    r.start_ns = start_ns;
    r.end_ns = end_ns;
    return trace_.records.emplace_back(r);
  }
  void message(TraceKind kind, const std::string& verb, int64_t start_ns, int64_t end_ns) {
    if (trace_.groups.empty()) {
      trace_.groups.push_back({"pipeline", {0, 1}});
      const bool sends = verb == "send";
      trace_.calls.push_back({.group = 0, .to = sends ? 1 : -1, .from = sends ? -1 : 0});
    }
    add(kind, verb, start_ns, end_ns);
  }
  const Trace& trace() const { return trace_; }

 private:
  Trace trace_;
};

// Rank 1 waits from 10 to 60; rank 0 begins to send at 40: idle until then, then communication.
TEST(TraceTimeline, AWaitForAMessageThatNobodySendsIsIdle) {
  Clocked sender, receiver;
  sender.add(TraceKind::kPhaseBegin, "step", 0, 0);
  sender.add(TraceKind::kPhaseBegin, "forward 0F0", 0, 0);
  sender.add(TraceKind::kPhaseEnd, "forward 0F0", 40, 40);
  sender.message(TraceKind::kCall, "send", 40, 50);
  sender.add(TraceKind::kPhaseEnd, "step", 100, 100);
  receiver.add(TraceKind::kPhaseBegin, "step", 0, 0);
  receiver.message(TraceKind::kCall, "recv", 5, 10);
  receiver.message(TraceKind::kWait, "recv", 10, 60);
  receiver.add(TraceKind::kPhaseBegin, "forward 1F0", 60, 60);
  receiver.add(TraceKind::kPhaseEnd, "forward 1F0", 90, 90);
  receiver.add(TraceKind::kPhaseEnd, "step", 100, 100);
  const ActivityLog log = timeline_of({sender.trace(), receiver.trace()}, "late");
  std::vector<std::string> row;
  for (const Activity& a : log.activities) {
    if (a.rank == 1) row.push_back(text(a.what, " ", std::llround(a.end_s * 1e9)));
  }
  EXPECT_EQ(row, (std::vector<std::string>{"load 5", "recv 10", "idle 40", "recv 60", "forward 90",
                                           "update 100"}));
}

TEST(TraceTimeline, WithoutAStepIsRefused) {
  EXPECT_THROW(timeline_of({Trace{}}, "nothing"), ConfigError);
}

}  // namespace
}  // namespace kuafu
