// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include "kuafu/base/dtype.h"

// What one rank did, event by event, in its own order: the same in every world. Layers write into
// the recorder of their thread where there is one (current_trace()); without one they pay a look.
namespace kuafu {

enum class TraceKind : uint8_t {
  kOp,          ///< name: op; payload: shape, FLOPs, bytes moved by the op's formula
  kAlloc,       ///< name: category; payload: block, bytes
  kFree,        ///< the same
  kCall,        ///< name: verb; payload: entry of calls, bytes of the argument, number of the call
  kWait,        ///< name: verb; payload: entry of calls, bytes, number of the call waited for
  kPhaseBegin,  ///< name: what follows, until the kPhaseEnd of that name
  kPhaseEnd,
  kOracle,  ///< name: a value the program reads off its data; a simulated run is given it
  kCopy,  ///< name: what moves between tiers of memory; payload: number of the copy, bytes; times:
          ///< while its queue had it
  kArrival,  ///< the same of a copy that the rank needs done; times: of its wait
};
inline constexpr int kNumTraceKinds = 10;

/// "op", "alloc", "free", "call", "wait", "begin", "end", "oracle", "copy", "arrival".
std::string_view to_string(TraceKind kind);

/// What an op does with its tensors: the rule of its bytes (meter/op_kinds.h).
enum class OpKind : uint8_t {
  kUnbooked,  ///< nothing books it
  kMatmul,
  kAttention,
  kNorm,
  kElementwise,
  kReduction,
  kCopy,
  kFill,    ///< writes without reading
  kGather,  ///< takes some rows of a tensor
  kSort,
  kLoad,  ///< data of the batch
  kWork,  ///< all work between two calls, where ops are not told apart
};
inline constexpr int kNumOpKinds = 12;

/// "unbooked", "matmul", "attention", "norm", "elementwise", "reduction", "copy", "fill", "gather",
/// "sort", "load", "work".
std::string_view to_string(OpKind kind);

/// Who carries an event out: the rank itself (its thread, a device's compute stream), or what moves
/// bytes for it meanwhile.
enum class TraceQueue : uint8_t {
  kCompute,
  kCommunication,
  kToDevice,
  kToHost,
  kFromDisk,
  kToDisk
};
inline constexpr int kNumTraceQueues = 6;

/// "compute", "communication", "to device", "to host", "from disk", "to disk".
std::string_view to_string(TraceQueue queue);

/// Facts about an event.
enum TraceFlags : uint8_t {
  kNoFlags = 0,
  kHostSync = 1,   ///< the host stands still until it is done; a stream waits otherwise
  kRecompute = 2,  ///< an op that repeats a forward
  kOnHost = 4,     ///< an op on states where they lie on the host
};

/// One event. The first 32 bytes are the same in every world, the last 16 are not compared.
struct TraceRecord {
  TraceKind kind = TraceKind::kOp;
  TraceQueue queue = TraceQueue::kCompute;
  uint8_t flags = kNoFlags;
  OpKind op = OpKind::kUnbooked;  ///< kOp
  int32_t name = 0;               ///< of Trace::names
  int64_t payload[3] = {0, 0, 0};
  int64_t start_ns = 0;  ///< of the steady clock; 0 in a simulated run
  union {
    int64_t end_ns = 0;
    double value;  ///< kOracle
  };
};
static_assert(sizeof(TraceRecord) == 48);

/// A group of ranks whose calls are traced.
struct TraceGroup {
  std::string label;         ///< what its calls are booked under
  std::vector<int> members;  ///< world ranks in group order
  int64_t number = -1;       ///< in the simulated world, the same on all its ranks; not compared
};

/// What calls have in common besides verb, bytes and time.
struct TraceCall {
  int32_t group = -1;  ///< of Trace::groups
  int32_t to = -1;     ///< group index: root, receiver of send and send_recv
  int32_t from = -1;   ///< group index: sender of recv and send_recv
  int32_t tag = 0;     ///< of messages
  int32_t reduce = 0;  ///< of Trace::names: "sum", "max", "min", or ""
  DType dtype = DType::kU8;
  auto operator<=>(const TraceCall&) const = default;
};

/// The events of one rank and the tables they refer to, in the order of their first use.
struct Trace {
  std::vector<TraceRecord> records;
  std::vector<std::string> names = {""};
  std::vector<std::string> shapes = {""};  ///< "f32 4x8, f32 8x16": of an op's tensor arguments
  std::vector<TraceGroup> groups;
  std::vector<TraceCall> calls;

  /// One line without times and oracle values: equal where the events are.
  std::string describe(const TraceRecord& record) const;
};

/// The first event in which two traces differ, as both have it; empty where none does. Times and
/// oracle values are not compared.
std::string first_difference(const Trace& a, const Trace& b);

/// Writes down what one rank does. Of one thread.
class TraceRecorder {
 public:
  /// Whether events get times: a simulated rank has none.
  enum class Clock : uint8_t { kSteady, kNone };
  /// kWork: work, calls and waits, all that a price needs; kWorkByPhase: and phases.
  enum class Keeps : uint8_t { kEverything, kWork, kWorkByPhase };
  explicit TraceRecorder(Clock clock = Clock::kSteady, Keeps keeps = Keeps::kEverything);

  /// An op that ran since start_ns; its work may follow.
  struct OpEvent {
    int32_t name = 0, shape = 0;  ///< by name_of() and shape_of()
    OpKind kind = OpKind::kUnbooked;
    uint8_t flags = kNoFlags;
    int64_t bytes = 0;
    int64_t start_ns = 0;
  };
  void op(const OpEvent& event);
  /// Work of the op that ran last, by its formula; a lone event "work" where none did.
  void work(int64_t flops, int64_t bytes, uint8_t flags);
  /// A block was taken; returns its number, from 1. @pre the category is constant text, which is
  /// known again by where it stands
  int64_t alloc(std::string_view category, int64_t bytes);
  /// Block 0 was there before the trace.
  void free(int64_t block, std::string_view category, int64_t bytes);
  /// A communicator is called; returns the number of the call, from 0. `key` tells groups of one
  /// label and members apart for as long as they live.
  struct CallEvent {
    std::string_view verb = {}, reduce = {};
    const void* key = nullptr;
    const std::string* label = nullptr;
    const std::vector<int>* members = nullptr;
    int64_t group_number = -1;  ///< TraceGroup::number
    TraceCall call = {};        ///< but group and reduce
    int64_t bytes = 0;
    uint8_t flags = kNoFlags;
  };
  int64_t call(const CallEvent& event);
  /// The call of that number came back to the program now.
  void returned(int64_t call);
  /// The wait for that call began at start_ns and ends now.
  void wait(int64_t call, uint8_t flags, int64_t start_ns);
  /// A queue is asked for a copy between tiers; returns its number, from 0. @pre constant text
  int64_t copy(std::string_view what, TraceQueue queue, int64_t bytes);
  /// The rank needs that copy done, and has waited since start_ns; its queue had it for so long.
  void arrival(int64_t copy, int64_t start_ns, int64_t begun_ns, int64_t ended_ns);
  void begin_phase(std::string_view name);
  void end_phase(std::string_view name);
  /// A value was read off data. Returns it, or the next one given for it: what a simulated run goes
  /// on with. Throws ConfigError where the next one given is of another name.
  double oracle(std::string_view name, double value);
  /// The oracles of another trace, in its order, to be given here.
  void give_oracles(const Trace& from);

  /// Entries of Trace::names and Trace::shapes.
  int32_t name_of(std::string_view text);
  int32_t shape_of(std::string_view text);

  int64_t now_ns() const;
  const Trace& trace() const { return trace_; }
  /// What was recorded so far. The recorder starts anew but keeps its tables: blocks taken before
  /// count as there before the trace, and waits for calls made before are left out.
  Trace take();
  /// The same; what was recorded is thrown away.
  void clear();

 private:
  struct TextHash {
    using is_transparent = void;
    size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
  };
  using Ids = std::unordered_map<std::string, int32_t, TextHash, std::equal_to<>>;
  static int32_t id_of(std::string_view text, Ids& ids, std::vector<std::string>& table);
  int32_t name_of_constant(std::string_view text);
  int32_t group_of(const CallEvent& event);
  TraceRecord& add(TraceKind kind, int32_t name, int64_t at_ns);
  bool keeps_phases() const { return keeps_ != Keeps::kWork; }

  Clock clock_;
  Keeps keeps_;
  Trace trace_;
  Ids names_ = {{"", 0}}, shapes_ = {{"", 0}};
  std::vector<std::pair<const char*, int32_t>> constants_;        // by where they stand: a few
  std::unordered_map<const void*, std::vector<int32_t>> groups_;  // by key: one a label
  std::map<TraceCall, int32_t> calls_;
  struct Made {  // a call: what its wait says
    int32_t verb, entry;
    int64_t bytes;
  };
  std::vector<Made> made_;
  std::vector<size_t> copies_;  // where the record of each is
  int64_t num_copies_ = 0, num_blocks_ = 0;
  int64_t blocks_before_ = 0, calls_before_ = 0, copies_before_ = 0;  // clear()
  std::deque<std::pair<std::string, double>> given_;
  int64_t last_op_ = -1, last_call_ = -1;  // indices of records
};

/// The recorder of this thread; null where nothing is traced.
TraceRecorder* current_trace();

/// Makes `recorder` this thread's recorder until the scope ends; null: nothing is traced.
class TraceScope {
 public:
  explicit TraceScope(TraceRecorder* recorder);
  ~TraceScope();
  TraceScope(const TraceScope&) = delete;
  TraceScope& operator=(const TraceScope&) = delete;

 private:
  TraceRecorder* previous_;
};

/// A phase of this thread's recorder, if it has one, until the scope ends. Its name is text, or a
/// function that gives it: asked only where something is traced.
class TracePhase {
 public:
  template <class Name>
  explicit TracePhase(const Name& name) : trace_(current_trace()) {
    if (trace_ == nullptr) return;
    if constexpr (std::is_invocable_v<Name>) {
      name_ = name();
    } else {
      name_ = name;
    }
    trace_->begin_phase(name_);
  }
  ~TracePhase() {
    if (trace_ != nullptr && current_trace() == trace_) trace_->end_phase(name_);
  }
  TracePhase(const TracePhase&) = delete;
  TracePhase& operator=(const TracePhase&) = delete;

 private:
  TraceRecorder* trace_;
  std::string name_;
};

}  // namespace kuafu
