// SPDX-License-Identifier: Apache-2.0
#include "kuafu/comm/call.h"

#include <cstring>
#include <numeric>

#include "kuafu/base/trace.h"
#include "kuafu/comm/cost_model.h"

namespace kuafu {

namespace {

bool overlap(const Buffer& a, const Buffer& b) {
  if (a.data == nullptr || b.data == nullptr || a.count == 0 || b.count == 0) return false;
  const auto begin_a = reinterpret_cast<uintptr_t>(a.data);
  const auto begin_b = reinterpret_cast<uintptr_t>(b.data);
  return begin_a < begin_b + static_cast<uintptr_t>(b.bytes()) &&
         begin_b < begin_a + static_cast<uintptr_t>(a.bytes());
}

std::string_view name_of(Place place) {
  if (place == Place::kHost) return "host";
  return place == Place::kDevice ? "device" : "meta";
}

std::string_view words_of(Takes takes) {
  if (takes == Takes::kEither) return "host or device";
  return takes == Takes::kHost ? "host" : "device";
}

void check_buffer(const Call& call, const Buffer& b, Takes takes) {
  KUAFU_REQUIRE(b.count >= 0, describe(call), ": ", b.count,
                " elements; a buffer has zero or more");
  if (takes == Takes::kMeta) return;
  const bool is_taken = (b.place == Place::kHost && takes != Takes::kDevice) ||
                        (b.place == Place::kDevice && takes != Takes::kHost) ||
                        (b.data == nullptr && b.count == 0);
  KUAFU_REQUIRE(is_taken, describe(call), ": the buffer lives in ", name_of(b.place),
                " memory, this communicator takes ", words_of(takes), " memory");
  KUAFU_REQUIRE(b.data != nullptr || b.count == 0, describe(call), ": ", b.count,
                " elements without data; only the simulated world takes null buffers");
}

void check_peer(const Call& call, const char* what, int peer, int size) {
  KUAFU_REQUIRE(peer >= 0 && peer < size, describe(call), ": ", what, " is ", peer,
                ", the group has ranks 0 to ", size - 1);
}

// The smaller buffer may be the caller's own part of the larger one, or lie apart from it.
void check_part(const Call& call, const Buffer& whole, const Buffer& part, int size, int rank) {
  KUAFU_REQUIRE(whole.count == part.count * size, describe(call), ": the whole has ", whole.count,
                " elements and the part ", part.count, "; on ", size, " ranks the whole must have ",
                part.count * size);
  KUAFU_REQUIRE(whole.dtype == part.dtype, describe(call), ": dtypes ", to_string(whole.dtype),
                " and ", to_string(part.dtype), " differ");
  if (!overlap(whole, part)) return;
  KUAFU_REQUIRE(part.data == whole.range(rank * part.count, part.count).data, describe(call),
                ": the part overlaps the whole but is not the caller's own part of it");
}

void check_all_to_all(const Call& call, int size) {
  const Splits& s = call.splits;
  KUAFU_REQUIRE(call.in.dtype == call.out.dtype, describe(call), ": dtypes ",
                to_string(call.in.dtype), " and ", to_string(call.out.dtype), " differ");
  KUAFU_REQUIRE(s.send.size() == static_cast<size_t>(size) && s.recv.size() == s.send.size(),
                describe(call), ": splits for ", s.send.size(), " and ", s.recv.size(),
                " ranks, the group has ", size);
  for (const auto* part : {&s.send, &s.recv}) {
    for (const int64_t n : *part) {
      KUAFU_REQUIRE(n >= 0, describe(call), ": a split of ", n, " elements; zero or more is right");
    }
  }
  const int64_t sent = std::accumulate(s.send.begin(), s.send.end(), int64_t{0});
  const int64_t received = std::accumulate(s.recv.begin(), s.recv.end(), int64_t{0});
  KUAFU_REQUIRE(sent == call.in.count && received == call.out.count, describe(call),
                ": the splits send ", sent, " of ", call.in.count, " elements and receive ",
                received, " of ", call.out.count, "; they must cover both buffers");
  KUAFU_REQUIRE(!overlap(call.in, call.out) || call.in.data == call.out.data, describe(call),
                ": in and out overlap but are not the same buffer");
}

}  // namespace

std::string_view to_string(ReduceOp op) {
  if (op == ReduceOp::kSum) return "sum";
  return op == ReduceOp::kMax ? "max" : "min";
}

int64_t Call::count() const {
  return verb == Verb::kAllGather || verb == Verb::kRecv ? out.count : in.count;
}

DType Call::dtype() const {
  return verb == Verb::kAllGather || verb == Verb::kRecv ? out.dtype : in.dtype;
}

Place Call::place() const {
  const bool is_given = in.data != nullptr || in.count > 0 || verb == Verb::kSend;
  return is_given ? in.place : out.place;
}

void check(const Call& call, int size, Takes takes) {
  check_buffer(call, call.in, takes);
  check_buffer(call, call.out, takes);
  KUAFU_REQUIRE(
      call.in.data == nullptr || call.out.data == nullptr || call.in.place == call.out.place,
      describe(call), ": one buffer lives in ", name_of(call.in.place), " memory, the other in ",
      name_of(call.out.place), " memory");
  switch (call.verb) {
    case Verb::kBroadcast:
    case Verb::kReduce:
      check_peer(call, "the root", call.root, size);
      break;
    case Verb::kAllToAll:
      check_all_to_all(call, size);
      break;
    case Verb::kSend:
      check_peer(call, "the receiver", call.root, size);
      break;
    case Verb::kRecv:
      check_peer(call, "the sender", call.from, size);
      break;
    case Verb::kSendRecv:
      check_peer(call, "the receiver", call.root, size);
      check_peer(call, "the sender", call.from, size);
      KUAFU_REQUIRE(!overlap(call.in, call.out) || call.in.data == call.out.data, describe(call),
                    ": what is sent and what is received overlap but are not the same buffer");
      break;
    default:
      break;
  }
  KUAFU_REQUIRE(!call.is_point_to_point() || call.tag >= 0, describe(call), ": tag ", call.tag,
                "; tags are zero or more");
}

std::string describe(const Call& call) {
  std::string what = text(to_string(call.verb), "(");
  if (call.verb == Verb::kBarrier) return what + ")";
  what += text(to_string(call.dtype()), " x ", call.count());
  if (call.reduces()) what += text(", ", to_string(call.op));
  switch (call.verb) {
    case Verb::kBroadcast:
    case Verb::kReduce:
      what += text(", root ", call.root);
      break;
    case Verb::kSend:
      what += text(", to ", call.root, ", tag ", call.tag);
      break;
    case Verb::kRecv:
      what += text(", from ", call.from, ", tag ", call.tag);
      break;
    case Verb::kSendRecv:
      what += text(", to ", call.root, ", from ", call.from, ", tag ", call.tag);
      break;
    default:
      break;
  }
  return what + ")";
}

bool agree(const Call& a, const Call& b) {
  if (a.verb != b.verb) return false;
  if (a.verb == Verb::kBarrier) return true;
  if (a.dtype() != b.dtype() || a.root != b.root || a.place() != b.place()) return false;
  if (a.reduces() && a.op != b.op) return false;
  return a.verb == Verb::kAllToAll || a.count() == b.count();
}

void run_alone(const Call& call) {
  if (call.out.data != call.in.data && call.out.count > 0) {
    std::memmove(call.out.data, call.in.data, static_cast<size_t>(call.out.bytes()));
  }
}

namespace {

/// Tells the recorder of the wait, also where the call was through before it.
class TracedWork final : public PendingWork {
 public:
  TracedWork(Work inner, TraceRecorder& trace, int64_t call, Place place)
      : inner_(std::move(inner)),
        trace_(trace),
        call_(call),
        is_on_host_(place != Place::kDevice) {}

  void wait() override {
    wait_by([this] { inner_.wait(); }, is_on_host_);
  }
  void wait_host() override {
    wait_by([this] { inner_.wait_host(); }, true);
  }
  bool test() override { return inner_.test(); }

 private:
  template <class Wait>
  void wait_by(const Wait& wait, bool blocks_host) {
    const bool is_traced = current_trace() == &trace_;  // it may outlive the recorder
    const int64_t start_ns = is_traced ? trace_.now_ns() : 0;
    wait();
    if (is_traced) trace_.wait(call_, blocks_host ? kHostSync : kNoFlags, start_ns);
  }

  Work inner_;
  TraceRecorder& trace_;
  int64_t call_;
  bool is_on_host_;
};

}  // namespace

int64_t CallCommunicator::trace(TraceRecorder& recorder, const Call& call) const {
  TraceRecorder::CallEvent event;
  event.verb = to_string(call.verb);
  if (call.reduces()) event.reduce = to_string(call.op);
  event.key = this;
  event.label = &label();
  event.members = &members();
  event.group_number = group_number();
  event.call = {.to = call.root, .from = call.from, .tag = call.tag, .dtype = call.dtype()};
  event.bytes = call.count() * size_of(call.dtype());
  return recorder.call(event);
}

Work CallCommunicator::submit(const Call& call) {
  check(call, size(), takes());
  if (call.verb == Verb::kAllGather) check_part(call, call.out, call.in, size(), rank());
  if (call.verb == Verb::kReduceScatter) check_part(call, call.in, call.out, size(), rank());
  enter(call);
  TraceRecorder* recorder = current_trace();
  if (recorder == nullptr) return start(call);
  const int64_t number = trace(*recorder, call);
  Work work = start(call);
  recorder->returned(number);
  return Work(std::make_unique<TracedWork>(std::move(work), *recorder, number, call.place()));
}

AxisLedger* CallCommunicator::enter_call(const Call& call, Counting counting) {
  AxisLedger* entry = book();
  if (entry == nullptr) return nullptr;
  entry->calls[static_cast<size_t>(call.verb)] += 1;
  entry->counting = counting;
  const bool is_complete = peers_entry_ == entry && peers_generation_ == ledger()->generation() &&
                           num_peers_ <= entry->peers.size();
  if (size() > 1 && !is_complete) {
    entry->peers.insert_others(members(), members()[static_cast<size_t>(rank())]);
    peers_entry_ = entry;
    peers_generation_ = ledger()->generation();
    num_peers_ = entry->peers.size();
  }
  return entry;
}

void CallCommunicator::enter(const Call& call) {
  if (book() != nullptr) enter_call(call, Counting::kConvention, convention(call, size(), rank()));
}

void CallCommunicator::enter_call(const Call& call, Counting counting, const WireTraffic& traffic) {
  AxisLedger* entry = enter_call(call, counting);
  if (entry == nullptr) return;
  entry->bytes_sent += traffic.sent;
  entry->bytes_received += traffic.received;
  entry->messages += traffic.messages;
  entry->received[static_cast<size_t>(call.verb)] += traffic.received;
  for (const int peer : traffic.wire_peers) {
    entry->wire_peers.insert(members()[static_cast<size_t>(peer)]);
  }
}

Work CallCommunicator::broadcast(Buffer b, int root) {
  return submit({.verb = Verb::kBroadcast, .out = b, .in = b, .root = root});
}

Work CallCommunicator::reduce(Buffer b, int root, ReduceOp op) {
  return submit({.verb = Verb::kReduce, .out = b, .in = b, .root = root, .op = op});
}

Work CallCommunicator::all_reduce(Buffer b, ReduceOp op) {
  return submit({.verb = Verb::kAllReduce, .out = b, .in = b, .op = op});
}

Work CallCommunicator::all_gather(Buffer out, Buffer in) {
  return submit({.verb = Verb::kAllGather, .out = out, .in = in});
}

Work CallCommunicator::reduce_scatter(Buffer out, Buffer in, ReduceOp op) {
  return submit({.verb = Verb::kReduceScatter, .out = out, .in = in, .op = op});
}

Work CallCommunicator::all_to_all(Buffer out, Buffer in, const Splits& splits) {
  Call call{.verb = Verb::kAllToAll, .out = out, .in = in, .splits = splits};
  const int64_t n = size();
  if (splits.send.empty() && splits.recv.empty()) {
    KUAFU_REQUIRE(in.count % n == 0 && out.count == in.count, describe(call), ": in has ", in.count,
                  " elements and out ", out.count,
                  "; without splits both must be the same multiple"
                  " of ",
                  n);
    call.splits.send.assign(static_cast<size_t>(n), in.count / n);
    call.splits.recv = call.splits.send;
  }
  return submit(call);
}

Work CallCommunicator::send(Buffer b, int to, int tag) {
  return submit({.verb = Verb::kSend, .in = b, .root = to, .tag = tag});
}

Work CallCommunicator::recv(Buffer b, int from, int tag) {
  return submit({.verb = Verb::kRecv, .out = b, .from = from, .tag = tag});
}

Work CallCommunicator::send_recv(Buffer out, int to, Buffer in, int from, int tag) {
  return submit(
      {.verb = Verb::kSendRecv, .out = in, .in = out, .root = to, .from = from, .tag = tag});
}

void CallCommunicator::barrier() { submit({.verb = Verb::kBarrier}).wait_host(); }

}  // namespace kuafu
