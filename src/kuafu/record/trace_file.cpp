// SPDX-License-Identifier: Apache-2.0
#include "kuafu/record/trace_file.h"

#include <algorithm>
#include <cmath>

#include "kuafu/record/files.h"

namespace kuafu {
namespace {

/// JSON has no numbers for these.
Json number_or_word(double value) {
  if (std::isfinite(value)) return value;
  return std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf";
}

template <class Row>
const Row& at(const std::vector<Row>& table, int64_t index) {
  return table.at(static_cast<size_t>(index));
}

void add_call(Json& line, const Trace& trace, const TraceRecord& r) {
  const TraceCall& call = at(trace.calls, r.payload[0]);
  const TraceGroup& group = at(trace.groups, call.group);
  line["call"] = r.payload[2];
  line["axis"] = group.label;
  line["group"] = call.group;
  line["members"] = group.members;
  line["bytes"] = r.payload[1];
  line["dtype"] = std::string(to_string(call.dtype));
  if (call.to >= 0) line["to"] = call.to;
  if (call.from >= 0) line["from"] = call.from;
  if (call.to >= 0 || call.from >= 0) line["tag"] = call.tag;
  if (call.reduce != 0) line["reduce"] = at(trace.names, call.reduce);
}

Json line_of(const Trace& trace, const TraceRecord& r) {
  Json line = {{"event", std::string(to_string(r.kind))}, {"name", at(trace.names, r.name)}};
  switch (r.kind) {
    case TraceKind::kOp:
      line["kind"] = std::string(to_string(r.op));
      line["shape"] = at(trace.shapes, r.payload[0]);
      line["flops"] = r.payload[1];
      line["bytes"] = r.payload[2];
      break;
    case TraceKind::kAlloc:
    case TraceKind::kFree:
      line["block"] = r.payload[0];
      line["bytes"] = r.payload[1];
      break;
    case TraceKind::kCall:
    case TraceKind::kWait:
      add_call(line, trace, r);
      break;
    case TraceKind::kCopy:
    case TraceKind::kArrival:
      line["copy"] = r.payload[0];
      line["bytes"] = r.payload[1];
      break;
    default:
      break;
  }
  line["queue"] = std::string(to_string(r.queue));
  if ((r.flags & kHostSync) != 0) line["host_sync"] = true;
  if ((r.flags & kRecompute) != 0) line["recompute"] = true;
  if ((r.flags & kOnHost) != 0) line["on_host"] = true;
  line["start_ns"] = r.start_ns;
  if (r.kind == TraceKind::kOracle) {
    line["value"] = number_or_word(r.value);
  } else {
    line["end_ns"] = r.end_ns;
  }
  return line;
}

}  // namespace

std::string trace_lines(const Trace& trace, int rank) {
  std::string lines;
  for (const TraceRecord& r : trace.records) {
    Json line = line_of(trace, r);
    line["rank"] = rank;
    lines += line.dump() + "\n";
  }
  return lines;
}

void write_trace(const Json& head, const std::vector<std::string>& lines_by_rank,
                 const std::string& file) {
  Json counted = head;
  for (const std::string& lines : lines_by_rank) {
    counted["events"].push_back(std::count(lines.begin(), lines.end(), '\n'));
  }
  std::string all = counted.dump() + "\n";
  for (const std::string& lines : lines_by_rank) all += lines;
  replace_file(file, all);
}

}  // namespace kuafu
