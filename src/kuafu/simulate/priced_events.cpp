// SPDX-License-Identifier: Apache-2.0
#include "kuafu/simulate/priced_events.h"

#include "kuafu/base/errors.h"

namespace kuafu {
namespace {

using Kind = PricedEvent::Kind;

template <class Row>
const Row& at(const std::vector<Row>& table, int64_t index) {
  return table.at(static_cast<size_t>(index));
}

Verb verb_of(const std::string& name) {
  for (int v = 0; v < kNumVerbs; ++v) {
    if (to_string(static_cast<Verb>(v)) == name) return static_cast<Verb>(v);
  }
  throw ConfigError(text("a trace with a call of the unknown verb ", name));
}

PricedEvent call_event(const Trace& trace, const TraceRecord& r, const std::vector<Verb>& verbs) {
  const TraceCall& call = at(trace.calls, r.payload[0]);
  const TraceGroup& group = at(trace.groups, call.group);
  KUAFU_REQUIRE(group.number >= 0, "a call on ", group.label,
                " without the number of its group: only traces of the simulated world have prices");
  PricedEvent e;
  e.kind = r.kind == TraceKind::kCall ? Kind::kIssue : Kind::kWait;
  e.verb = at(verbs, r.name);
  e.group = group.number;
  e.entry = call.group;
  e.peer = e.verb == Verb::kRecv ? call.from : call.to;
  e.from = e.verb == Verb::kSendRecv ? call.from : -1;
  e.tag = call.tag;
  e.bytes = r.payload[1];
  e.sequence = r.payload[2];
  return e;
}

/// Verbs by name, where a name is one.
std::vector<Verb> verbs_of(const Trace& trace) {
  std::vector<Verb> verbs(trace.names.size(), Verb::kBarrier);
  for (const TraceRecord& r : trace.records) {
    if (r.kind != TraceKind::kCall && r.kind != TraceKind::kWait) continue;
    verbs.at(static_cast<size_t>(r.name)) = verb_of(at(trace.names, r.name));
  }
  return verbs;
}

}  // namespace

std::vector<PricedEvent> priced_events(const Trace& trace) {
  const std::vector<Verb> verbs = verbs_of(trace);
  std::vector<PricedEvent> all;
  std::vector<bool> is_step;  // of the phases that are open
  for (const TraceRecord& r : trace.records) {
    switch (r.kind) {
      case TraceKind::kOp:
        if (all.empty() || all.back().kind != Kind::kCompute) all.emplace_back();
        all.back().flops += r.payload[1];
        ((r.flags & kOnHost) != 0 ? all.back().host_bytes_moved : all.back().bytes_moved) +=
            r.payload[2];
        break;
      case TraceKind::kCall:
      case TraceKind::kWait:
        all.push_back(call_event(trace, r, verbs));
        break;
      case TraceKind::kCopy:
      case TraceKind::kArrival:
        all.push_back({.kind = r.kind == TraceKind::kCopy ? Kind::kCopy : Kind::kArrival,
                       .name = r.name,
                       .queue = r.queue,
                       .sequence = r.payload[0],
                       .bytes = r.payload[1]});
        break;
      case TraceKind::kPhaseBegin:
        is_step.push_back(at(trace.names, r.name) == kStepPhase);
        break;
      case TraceKind::kPhaseEnd: {
        KUAFU_CHECK(!is_step.empty(), "phase ", at(trace.names, r.name), " ends before it begins");
        const bool ends_step = is_step.back();
        is_step.pop_back();
        if (!ends_step && (is_step.empty() || !is_step.back())) break;
        all.push_back({.kind = Kind::kMark, .name = r.name});
        break;
      }
      default:
        break;
    }
  }
  return all;
}

}  // namespace kuafu
