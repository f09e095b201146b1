// SPDX-License-Identifier: Apache-2.0
#include "kuafu/base/trace.h"

#include <algorithm>
#include <array>
#include <chrono>

#include "kuafu/base/errors.h"

namespace kuafu {
namespace {

thread_local TraceRecorder* tls_recorder = nullptr;

template <class Table, class Row>
const Row& row_of(const Table& table, int64_t index, const Row& none) {
  return index >= 0 && index < static_cast<int64_t>(table.size())
             ? table[static_cast<size_t>(index)]
             : none;
}

std::string describe_call(const Trace& trace, const TraceRecord& r) {
  const TraceCall c = row_of(trace.calls, r.payload[0], TraceCall{});
  const TraceGroup group = row_of(trace.groups, c.group, TraceGroup{});
  std::string members;
  for (const int m : group.members) members += text(members.empty() ? "" : " ", m);
  const std::string reduce = row_of(trace.names, c.reduce, std::string());
  return text(" ", r.payload[2], " on ", group.label, " {", members, "}: ", r.payload[1],
              " bytes of ", to_string(c.dtype), c.to >= 0 ? text(", to ", c.to) : "",
              c.from >= 0 ? text(", from ", c.from) : "", c.tag != 0 ? text(", tag ", c.tag) : "",
              reduce.empty() ? "" : ", " + reduce, (r.flags & kHostSync) != 0 ? ", host" : "");
}

}  // namespace

std::string_view to_string(TraceKind kind) {
  static constexpr std::array<std::string_view, kNumTraceKinds> names = {
      "op", "alloc", "free", "call", "wait", "begin", "end", "oracle", "copy", "arrival"};
  return names[static_cast<size_t>(kind)];
}

std::string_view to_string(TraceQueue queue) {
  static constexpr std::array<std::string_view, kNumTraceQueues> names = {
      "compute", "communication", "to device", "to host", "from disk", "to disk"};
  return names[static_cast<size_t>(queue)];
}

std::string_view to_string(OpKind kind) {
  static constexpr std::array<std::string_view, kNumOpKinds> names = {
      "unbooked", "matmul", "attention", "norm", "elementwise", "reduction",
      "copy",     "fill",   "gather",    "sort", "load",        "work"};
  return names[static_cast<size_t>(kind)];
}

std::string Trace::describe(const TraceRecord& r) const {
  const std::string head =
      text(to_string(r.kind), " ", row_of(names, r.name, std::string("?")),
           r.queue == TraceQueue::kCompute ? "" : text(" [", to_string(r.queue), "]"));
  switch (r.kind) {
    case TraceKind::kOp:
      return text(head, " (", row_of(shapes, r.payload[0], std::string("?")), "), ",
                  to_string(r.op), ", ", r.payload[1], " FLOPs, ", r.payload[2], " bytes",
                  (r.flags & kRecompute) != 0 ? ", again" : "",
                  (r.flags & kOnHost) != 0 ? ", on the host" : "");
    case TraceKind::kAlloc:
    case TraceKind::kFree:
      return text(head, " block ", r.payload[0], ", ", r.payload[1], " bytes");
    case TraceKind::kCall:
    case TraceKind::kWait:
      return head + describe_call(*this, r);
    case TraceKind::kCopy:
    case TraceKind::kArrival:
      return text(head, " ", r.payload[0], ", ", r.payload[1], " bytes");
    default:
      return head;
  }
}

std::string first_difference(const Trace& a, const Trace& b) {
  const size_t both = std::min(a.records.size(), b.records.size());
  for (size_t i = 0; i < both; ++i) {
    const std::string left = a.describe(a.records[i]), right = b.describe(b.records[i]);
    if (left != right) return text("event ", i, ": ", left, "; other: ", right);
  }
  if (a.records.size() == b.records.size()) return {};
  const Trace& longer = a.records.size() > both ? a : b;
  return text("event ", both, ": ",
              &longer == &a ? "" : "nothing; other: ", longer.describe(longer.records[both]),
              &longer == &a ? "; other: nothing" : "");
}

TraceRecorder::TraceRecorder(Clock clock, Keeps keeps) : clock_(clock), keeps_(keeps) {
  // A step of a small model, so that none of it waits for memory.
  if (keeps == Keeps::kEverything) trace_.records.reserve(4096);
}

int64_t TraceRecorder::now_ns() const {
  if (clock_ == Clock::kNone) return 0;
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

int32_t TraceRecorder::id_of(std::string_view text, Ids& ids, std::vector<std::string>& table) {
  const auto found = ids.find(text);
  if (found != ids.end()) return found->second;
  const auto id = static_cast<int32_t>(table.size());
  table.emplace_back(text);
  ids.emplace(text, id);
  return id;
}

int32_t TraceRecorder::name_of(std::string_view text) { return id_of(text, names_, trace_.names); }

int32_t TraceRecorder::name_of_constant(std::string_view text) {
  for (const auto& [at, id] : constants_) {
    if (at == text.data()) return id;
  }
  return constants_.emplace_back(text.data(), name_of(text)).second;
}

int32_t TraceRecorder::shape_of(std::string_view text) {
  return id_of(text, shapes_, trace_.shapes);
}

TraceRecord& TraceRecorder::add(TraceKind kind, int32_t name, int64_t at_ns) {
  TraceRecord& r = trace_.records.emplace_back();
  r.kind = kind;
  r.name = name;
  r.start_ns = r.end_ns = at_ns;
  return r;
}

void TraceRecorder::op(const OpEvent& event) {
  TraceRecord& r = add(TraceKind::kOp, event.name, event.start_ns);
  r.op = event.kind;
  r.flags = event.flags;
  r.payload[0] = event.shape;
  r.payload[2] = event.bytes;
  r.end_ns = now_ns();
  last_op_ = static_cast<int64_t>(trace_.records.size()) - 1;
}

void TraceRecorder::work(int64_t flops, int64_t bytes, uint8_t flags) {
  if (last_op_ < 0) op({.name = name_of("work"), .kind = OpKind::kWork, .start_ns = now_ns()});
  TraceRecord& r = trace_.records[static_cast<size_t>(last_op_)];
  r.payload[1] += flops;
  r.payload[2] += bytes;
  r.flags |= flags;
}

int64_t TraceRecorder::alloc(std::string_view category, int64_t bytes) {
  if (keeps_ != Keeps::kEverything) return 0;
  TraceRecord& r = add(TraceKind::kAlloc, name_of_constant(category), now_ns());
  r.payload[0] = ++num_blocks_ - blocks_before_;
  r.payload[1] = bytes;
  return num_blocks_;
}

void TraceRecorder::free(int64_t block, std::string_view category, int64_t bytes) {
  if (keeps_ != Keeps::kEverything) return;
  TraceRecord& r = add(TraceKind::kFree, name_of_constant(category), now_ns());
  r.payload[0] = std::max<int64_t>(0, block - blocks_before_);
  r.payload[1] = bytes;
}

int32_t TraceRecorder::group_of(const CallEvent& event) {
  std::vector<int32_t>& of_key = groups_[event.key];
  for (const int32_t group : of_key) {
    const TraceGroup& known = trace_.groups[static_cast<size_t>(group)];
    const bool is_it = known.label == *event.label && known.number == event.group_number &&
                       known.members == *event.members;
    if (is_it) return group;
  }
  of_key.push_back(static_cast<int32_t>(trace_.groups.size()));
  trace_.groups.push_back({*event.label, *event.members, event.group_number});
  return of_key.back();
}

int64_t TraceRecorder::call(const CallEvent& event) {
  TraceCall call = event.call;
  call.group = group_of(event);
  call.reduce = name_of(event.reduce);
  const auto [entry, is_new] = calls_.try_emplace(call, static_cast<int32_t>(trace_.calls.size()));
  if (is_new) trace_.calls.push_back(call);
  const auto number = static_cast<int64_t>(made_.size());
  TraceRecord& r = add(TraceKind::kCall, name_of(event.verb), now_ns());
  r.queue = TraceQueue::kCommunication;
  r.flags = event.flags;
  r.payload[0] = entry->second;
  r.payload[1] = event.bytes;
  r.payload[2] = number - calls_before_;
  made_.push_back({r.name, entry->second, event.bytes});
  last_op_ = -1;
  last_call_ = static_cast<int64_t>(trace_.records.size()) - 1;
  return number;
}

void TraceRecorder::returned(int64_t call) {
  if (last_call_ < 0) return;
  TraceRecord& r = trace_.records[static_cast<size_t>(last_call_)];
  if (r.payload[2] == call - calls_before_) r.end_ns = now_ns();
}

void TraceRecorder::wait(int64_t call, uint8_t flags, int64_t start_ns) {
  if (call < calls_before_) return;
  const Made& made = made_.at(static_cast<size_t>(call));
  TraceRecord& r = add(TraceKind::kWait, made.verb, start_ns);
  r.queue = TraceQueue::kCommunication;
  r.flags = flags;
  r.end_ns = now_ns();
  r.payload[0] = made.entry;
  r.payload[1] = made.bytes;
  r.payload[2] = call - calls_before_;
  last_op_ = -1;
}

int64_t TraceRecorder::copy(std::string_view what, TraceQueue queue, int64_t bytes) {
  copies_.push_back(trace_.records.size());
  TraceRecord& r = add(TraceKind::kCopy, name_of_constant(what), now_ns());
  r.queue = queue;
  r.payload[0] = num_copies_ - copies_before_;
  r.payload[1] = bytes;
  last_op_ = -1;
  return num_copies_++;
}

void TraceRecorder::arrival(int64_t copy, int64_t start_ns, int64_t begun_ns, int64_t ended_ns) {
  if (copy < copies_before_) return;
  TraceRecord& moved = trace_.records.at(copies_.at(static_cast<size_t>(copy - copies_before_)));
  moved.start_ns = begun_ns;
  moved.end_ns = ended_ns;
  const TraceRecord asked = moved;
  TraceRecord& r = add(TraceKind::kArrival, asked.name, start_ns);
  r.queue = asked.queue;
  r.flags = kHostSync;
  r.end_ns = now_ns();
  r.payload[0] = asked.payload[0];
  r.payload[1] = asked.payload[1];
  last_op_ = -1;
}

void TraceRecorder::begin_phase(std::string_view name) {
  if (!keeps_phases()) return;
  add(TraceKind::kPhaseBegin, name_of(name), now_ns());
  last_op_ = -1;
}

void TraceRecorder::end_phase(std::string_view name) {
  if (!keeps_phases()) return;
  add(TraceKind::kPhaseEnd, name_of(name), now_ns());
  last_op_ = -1;
}

double TraceRecorder::oracle(std::string_view name, double value) {
  if (!given_.empty()) {
    const auto [next, given] = given_.front();
    KUAFU_REQUIRE(next == name, "the oracle given next is '", next, "', the program reads '", name,
                  "'");
    given_.pop_front();
    value = given;
  }
  if (keeps_ != Keeps::kEverything) return value;
  TraceRecord& r = add(TraceKind::kOracle, name_of(name), now_ns());
  r.flags = kHostSync;
  r.value = value;
  return value;
}

void TraceRecorder::give_oracles(const Trace& from) {
  for (const TraceRecord& r : from.records) {
    if (r.kind != TraceKind::kOracle) continue;
    given_.emplace_back(from.names[static_cast<size_t>(r.name)], r.value);
  }
}

Trace TraceRecorder::take() {
  Trace taken = trace_;
  clear();
  return taken;
}

void TraceRecorder::clear() {
  trace_.records.clear();
  blocks_before_ = num_blocks_;
  calls_before_ = static_cast<int64_t>(made_.size());
  copies_.clear();
  copies_before_ = num_copies_;
  last_op_ = last_call_ = -1;
}

TraceRecorder* current_trace() { return tls_recorder; }

TraceScope::TraceScope(TraceRecorder* recorder) : previous_(tls_recorder) {
  tls_recorder = recorder;
}
TraceScope::~TraceScope() { tls_recorder = previous_; }

}  // namespace kuafu
