// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>

#include "kuafu/base/errors.h"
#include "kuafu/record/trace_file.h"
#include "kuafu/record/trace_reader.h"
#include "tests/fuzz/targets.h"
#include "tests/record/support.h"

namespace kuafu::fuzz {
namespace {

using test::TemporaryFolder;

/// Every kind of event, two groups, a message and a sum; `rank` of two.
Trace sample_trace(int rank) {
  TraceRecorder t(TraceRecorder::Clock::kNone);
  const std::string labels[] = {"data", "tensor"};
  const std::vector<int> members = {0, 1};
  t.begin_phase("step");
  t.op({.name = t.name_of("kuafu::matmul"),
        .shape = t.shape_of("f32 4x8, f32 8x2"),
        .kind = OpKind::kMatmul,
        .start_ns = t.now_ns()});
  t.work(128, 224, kRecompute);
  const int64_t block = t.alloc("activation", 32);
  for (const std::string& label : labels) {
    TraceRecorder::CallEvent call{.key = &label, .label = &label, .members = &members};
    call.verb = rank == 0 ? "send" : "recv";
    call.call = {.tag = 3, .dtype = DType::kF32};
    (rank == 0 ? call.call.to : call.call.from) = 1 - rank;
    call.bytes = 32;
    t.wait(t.call(call), kHostSync, t.now_ns());
    call.verb = "all_reduce";
    call.reduce = "max";
    call.call = {.dtype = DType::kF64};
    t.wait(t.call(call), kNoFlags, t.now_ns());
  }
  for (const TraceQueue queue : {TraceQueue::kToDevice, TraceQueue::kToHost}) {
    t.arrival(t.copy("parameter", queue, 32), 0, 0, 0);
  }
  t.oracle("loss", 0.1 + rank);
  t.free(block, "activation", 32);
  t.end_phase("step");
  Trace trace = t.take();
  int64_t now = 1'000'000 * (1 + rank);
  for (TraceRecord& r : trace.records) {  // the same times at every call
    r.start_ns = now += 10;
    if (r.kind != TraceKind::kOracle) r.end_ns = now += 5;
  }
  return trace;
}

std::string file_of(const std::vector<Trace>& ranks) {
  std::string all =
      Json({{"trace", 1}, {"world", "threads"}, {"ranks", ranks.size()}}).dump() + "\n";
  for (size_t r = 0; r < ranks.size(); ++r) all += trace_lines(ranks[r], static_cast<int>(r));
  return all;
}

std::vector<std::string> lines_of(const std::string& bytes) {
  std::vector<std::string> lines;
  for (size_t at = 0; at < bytes.size();) {
    const size_t end = std::min(bytes.find('\n', at), bytes.size());
    lines.push_back(bytes.substr(at, end - at));
    at = end + 1;
  }
  return lines;
}

/// What an event says, field by field. A group has the number of the file.
Json fields_of(const Trace& t, const TraceRecord& r, const std::map<int32_t, int64_t>& groups) {
  const char* kinds[] = {"op",    "alloc", "free",   "call", "wait",
                         "begin", "end",   "oracle", "copy", "arrival"};
  const char* queues[] = {"compute", "communication", "to device", "to host"};
  const char* ops[] = {"unbooked", "matmul", "attention", "norm", "elementwise", "reduction",
                       "copy",     "fill",   "gather",    "sort", "load",        "work"};
  const bool is_call = r.kind == TraceKind::kCall || r.kind == TraceKind::kWait;
  Json f = {{"event", kinds[static_cast<int>(r.kind)]},
            {"name", t.names.at(static_cast<size_t>(r.name))},
            {"queue", queues[static_cast<int>(r.queue)]},
            {"host_sync", (r.flags & kHostSync) != 0},
            {"recompute", (r.flags & kRecompute) != 0},
            {"start_ns", r.start_ns}};
  if (r.kind == TraceKind::kOracle) {
    f["value"] = r.value;
  } else {
    f["end_ns"] = r.end_ns;
  }
  if (r.kind == TraceKind::kOp) {
    f["kind"] = ops[static_cast<int>(r.op)];
    f["shape"] = t.shapes.at(static_cast<size_t>(r.payload[0]));
    f["flops"] = r.payload[1];
    f["bytes"] = r.payload[2];
  } else if (is_call) {
    const TraceCall& call = t.calls.at(static_cast<size_t>(r.payload[0]));
    const TraceGroup& group = t.groups.at(static_cast<size_t>(call.group));
    f["bytes"] = r.payload[1];
    f["call"] = r.payload[2];
    f["axis"] = group.label;
    f["members"] = group.members;
    f["group"] = groups.at(call.group);
    f["to"] = call.to;
    f["from"] = call.from;
    f["tag"] = call.tag;
    f["reduce"] = t.names.at(static_cast<size_t>(call.reduce));
    f["dtype"] = std::string(to_string(call.dtype));
  } else if (r.kind == TraceKind::kCopy || r.kind == TraceKind::kArrival) {
    f["copy"] = r.payload[0];
    f["bytes"] = r.payload[1];
  } else if (r.kind == TraceKind::kAlloc || r.kind == TraceKind::kFree) {
    f["block"] = r.payload[0];
    f["bytes"] = r.payload[1];
  }
  return f;
}

/// What a field means that a line leaves out.
const Json kAbsent = {{"host_sync", false}, {"recompute", false}, {"group", 0},  {"to", -1},
                      {"from", -1},         {"tag", 0},           {"reduce", ""}};

void check_event(const Json& line, Json fields, int64_t rank) {
  fields["rank"] = rank;
  for (const auto& [key, value] : line.items()) {
    require(fields.contains(key), "a field that is lost: " + key);
    const bool is_same = value.is_number_float() || fields[key].is_number_float()
                             ? value.is_number() && value.get<double>() == fields[key].get<double>()
                             : value == fields[key];
    require(is_same, text(key, " = ", fields[key].dump(), ", written ", value.dump()));
  }
  for (const auto& [key, value] : fields.items()) {
    if (line.contains(key) || key == "queue") continue;
    require(kAbsent.contains(key) && kAbsent[key] == value,
            text(key, " = ", value.dump(), ", and nothing is written"));
  }
}

/// Numbers of the groups as the file has them, by their place in the table: by their first use.
std::map<int32_t, int64_t> groups_of(const Trace& t, const std::vector<Json>& lines) {
  std::map<int32_t, int64_t> groups;
  for (size_t i = 0; i < t.records.size(); ++i) {
    const TraceRecord& r = t.records[i];
    if (r.kind != TraceKind::kCall && r.kind != TraceKind::kWait) continue;
    const TraceCall& call = t.calls.at(static_cast<size_t>(r.payload[0]));
    groups.try_emplace(call.group, lines[i].value("group", int64_t{0}));
  }
  return groups;
}

void check_trace(const std::vector<Trace>& ranks, const std::string& bytes) {
  const std::vector<std::string> lines = lines_of(bytes);
  const Json head = Json::parse(lines.front());
  require(head["trace"] == 1 && head["ranks"] == ranks.size(), "another head");
  size_t at = 1;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    const Trace& t = ranks[rank];
    require(lines.size() - at >= t.records.size(), "more events than lines");
    std::vector<Json> own;
    for (size_t i = 0; i < t.records.size(); ++i) own.push_back(Json::parse(lines[at++]));
    const std::map<int32_t, int64_t> groups = groups_of(t, own);
    for (size_t i = 0; i < own.size(); ++i) {
      check_event(own[i], fields_of(t, t.records[i], groups), static_cast<int64_t>(rank));
    }
  }
  require(at == lines.size(), "a line that is no event");
}

}  // namespace

Target trace_target() {
  const auto folder = std::make_shared<TemporaryFolder>();
  const std::string path = *folder / "trace.jsonl";
  const std::vector<std::string> valid = {file_of({sample_trace(0), sample_trace(1)}),
                                          file_of({sample_trace(0)})};
  return {"trace", valid, [folder, path](const std::string& bytes) {
            test::write_text(path, bytes);
            check_trace(read_trace(path), bytes);
          }};
}

}  // namespace kuafu::fuzz
