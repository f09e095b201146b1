// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "kuafu/comm/communicator.h"

namespace kuafu {

class TraceRecorder;
struct WireTraffic;

std::string_view to_string(ReduceOp op);

/// One call of a communicator as data: what back ends check, compare, book and execute.
struct Call {
  Verb verb = Verb::kBarrier;
  Buffer out = {};  ///< where the result goes; the same as `in` for broadcast, reduce, all_reduce
  Buffer in = {};   ///< what this rank contributes
  int root = -1;    ///< broadcast, reduce: the root; send, send_recv: to whom
  int from = -1;    ///< recv, send_recv: from whom
  int tag = 0;
  ReduceOp op = ReduceOp::kSum;
  Splits splits = {};  ///< all_to_all: never empty, send[i] and recv[i] elements for rank i

  /// Where its buffers are; kHost for a barrier.
  Place place() const;
  /// The stream that the caller's buffers belong to; null on the host.
  void* stream() const { return in.stream != nullptr ? in.stream : out.stream; }

  /// Elements of the verb's argument: the whole for gathers and scatters.
  int64_t count() const;
  DType dtype() const;
  bool reduces() const {
    return verb == Verb::kReduce || verb == Verb::kAllReduce || verb == Verb::kReduceScatter;
  }
  bool is_point_to_point() const {
    return verb == Verb::kSend || verb == Verb::kRecv || verb == Verb::kSendRecv;
  }
};

/// Where the buffers of a back end may be.
enum class Takes : uint8_t { kHost, kDevice, kEither, kMeta };

/// Refuses a call that cannot be right on its own (sizes, dtypes, roots, null data, overlaps, memory
/// of two kinds) with a ConfigError, before anything is sent.
void check(const Call& call, int size, Takes takes);

/// "all_reduce(f32 x 100, sum)", "broadcast(f64 x 8, root 2)", "send(u8 x 3, to 1, tag 7)".
std::string describe(const Call& call);

/// True where two ranks of a group may make these calls at the same position.
bool agree(const Call& a, const Call& b);

/// Executes a collective of a group of one on host memory: at most a copy.
void run_alone(const Call& call);

/// A communicator of host or device ranks that turns the verbs into checked, booked Calls.
class CallCommunicator : public Communicator {
 public:
  Work broadcast(Buffer b, int root) final;
  Work reduce(Buffer b, int root, ReduceOp op) final;
  Work all_reduce(Buffer b, ReduceOp op) final;
  Work all_gather(Buffer out, Buffer in) final;
  Work reduce_scatter(Buffer out, Buffer in, ReduceOp op) final;
  Work all_to_all(Buffer out, Buffer in, const Splits& splits = {}) final;
  Work send(Buffer b, int to, int tag) final;
  Work recv(Buffer b, int from, int tag) final;
  Work send_recv(Buffer out, int to, Buffer in, int from, int tag) final;
  void barrier() final;

  /// Starts a call of another back end, which has checked and booked it and hands it on.
  Work take_over(const Call& call) { return start(call); }

 protected:
  /// Starts a checked call.
  virtual Work start(const Call& call) = 0;
  virtual Takes takes() const { return Takes::kHost; }
  /// The number of this group in its world, for traces that are replayed; -1 where it has none.
  virtual int64_t group_number() const { return -1; }
  /// Books a call: by the convention, unless a back end counts on its wire.
  virtual void enter(const Call& call);
  /// Books the call count and the members of the group; returns the entry, null where off.
  AxisLedger* enter_call(const Call& call, Counting counting);
  /// The same, and what the call sends and receives.
  void enter_call(const Call& call, Counting counting, const WireTraffic& traffic);

 private:
  Work submit(const Call& call);
  int64_t trace(TraceRecorder& recorder, const Call& call) const;
  // Entry and generation whose peers are complete, and how many it had then: another ledger may
  // come to lie where one was.
  const AxisLedger* peers_entry_ = nullptr;
  int64_t peers_generation_ = -1;
  size_t num_peers_ = 0;
};

}  // namespace kuafu
