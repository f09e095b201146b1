// SPDX-License-Identifier: Apache-2.0
#include "kuafu/comm/nccl_ring.h"

#include <nccl.h>

#include "kuafu/comm/device_operation.h"

namespace kuafu {

namespace {

ncclDataType_t type_of(DType t) {
  switch (t) {
    case DType::kF64:
      return ncclFloat64;
    case DType::kF32:
      return ncclFloat32;
    case DType::kBF16:
      return ncclBfloat16;
    case DType::kF16:
      return ncclFloat16;
    case DType::kI64:
      return ncclInt64;
    case DType::kI32:
      return ncclInt32;
    case DType::kU8:
      return ncclUint8;
  }
  return ncclUint8;
}

ncclRedOp_t op_of(ReduceOp op) {
  if (op == ReduceOp::kSum) return ncclSum;
  return op == ReduceOp::kMax ? ncclMax : ncclMin;
}

/// NCCL adds in the type, rounding after every rank; the promise is one rounding.
bool is_wide_sum(const Call& call) {
  return call.reduces() && call.op == ReduceOp::kSum &&
         (call.dtype() == DType::kBF16 || call.dtype() == DType::kF16);
}

class RingWork final : public PendingWork {
 public:
  RingWork(std::shared_ptr<NcclWorld> world, std::shared_ptr<NcclRing> ring,
           std::shared_ptr<device::Event> end, const Call& call)
      : world_(std::move(world)), ring_(std::move(ring)), end_(std::move(end)), call_(call) {}

  void wait() override {
    world_->check();
    end_->hold(device::StreamView(call_.stream()));
  }
  void wait_host() override {
    wait();
    world_->wait([this] { return describe(call_); }, [this] { return end_->is_reached(); });
    world_->check();  // what was cut off looks as if it had ended
  }
  bool test() override {
    world_->check();
    world_->advance();
    return end_->is_reached();
  }

 private:
  std::shared_ptr<NcclWorld> world_;
  std::shared_ptr<NcclRing> ring_;  // lives until the end is waited for
  std::shared_ptr<device::Event> end_;
  Call call_;
};

}  // namespace

Work NcclRing::start(const Call& call) {
  device::Event ready(device::Event::Timing::kOff);
  ready.record(device::StreamView(call.stream()));
  ready.hold(stream_);
  launch(call);
  auto end = std::make_shared<device::Event>(device::Event::Timing::kOff);
  end->record(stream_);
  world_->watch(describe(call), end);
  return Work(std::make_unique<RingWork>(world_, shared_from_this(), std::move(end), call));
}

ncclComm* NcclRing::split(int color, int key) {
  ncclComm_t child = nullptr;  // there once this one has settled
  comm_.call("ncclCommSplit", [&](ncclComm_t comm) {
    return ncclCommSplit(comm, color < 0 ? NCCL_SPLIT_NOCOLOR : color, key, &child, nullptr);
  });
  comm_.settle([] { return "ncclCommSplit"; });
  return child;
}

// Until it has settled, the stream does not have it yet.
void NcclRing::run(const char* name, const Call& call, const NcclComm::NcclCall& launch) {
  comm_.call(name, launch);
  comm_.settle([&call] { return describe(call); });
}

void NcclRing::launch(const Call& call) {
  if (call.verb == Verb::kAllToAll) return all_to_all(call);
  if (is_wide_sum(call)) return wide_sum(call);
  const auto stream = static_cast<cudaStream_t>(stream_.handle());
  const ncclDataType_t type = type_of(call.dtype());
  const ncclRedOp_t op = op_of(call.op);
  const void* const in = call.in.data;
  void* const out = call.out.data;
  const auto sent = static_cast<size_t>(call.in.count), got = static_cast<size_t>(call.out.count);
  switch (call.verb) {
    case Verb::kBroadcast:
      return run("ncclBroadcast", call, [&](ncclComm_t comm) {
        return ncclBroadcast(in, out, sent, type, call.root, comm, stream);
      });
    case Verb::kReduce:
      return run("ncclReduce", call, [&](ncclComm_t comm) {
        return ncclReduce(in, out, sent, type, op, call.root, comm, stream);
      });
    case Verb::kAllReduce:
      return run("ncclAllReduce", call, [&](ncclComm_t comm) {
        return ncclAllReduce(in, out, sent, type, op, comm, stream);
      });
    case Verb::kAllGather:
      return run("ncclAllGather", call,
                 [&](ncclComm_t comm) { return ncclAllGather(in, out, sent, type, comm, stream); });
    default:
      return run("ncclReduceScatter", call, [&](ncclComm_t comm) {
        return ncclReduceScatter(in, out, got, type, op, comm, stream);
      });
  }
}

// One group: all of them go on together.
void NcclRing::exchange(const Exchange& messages, const Call& call) {
  const auto stream = static_cast<cudaStream_t>(stream_.handle());
  run("ncclGroupEnd", call, [&](ncclComm_t comm) {
    ncclResult_t first = ncclGroupStart();
    const auto keep = [&first](ncclResult_t code) {
      if (first == ncclSuccess && code != ncclInProgress) first = code;
    };
    for (const Message& m : messages.sends) {
      if (m.bytes == 0) continue;
      keep(ncclSend(m.data, static_cast<size_t>(m.bytes), ncclUint8, m.peer, comm, stream));
    }
    for (const Message& m : messages.receives) {
      if (m.bytes == 0) continue;
      keep(ncclRecv(m.data, static_cast<size_t>(m.bytes), ncclUint8, m.peer, comm, stream));
    }
    const ncclResult_t last = ncclGroupEnd();
    return first == ncclSuccess ? last : first;
  });
}

void NcclRing::all_to_all(const Call& call) {
  const bool is_in_place = call.in.count > 0 && call.in.data == call.out.data;
  const device::StreamMemory staging(is_in_place ? call.in.bytes() : 0, stream_, world_->rank());
  Buffer in = call.in;
  if (is_in_place) {
    in.data = staging.data();
    device::copy(in.data, call.in.data, in.bytes(), stream_);
  }
  Exchange messages;
  int64_t sent = 0, received = 0;
  for (int r = 0; r < place_.size; ++r) {
    const int64_t to = call.splits.send[static_cast<size_t>(r)];
    const int64_t from = call.splits.recv[static_cast<size_t>(r)];
    messages.sends.push_back({in.range(sent, to).data, to * size_of(in.dtype), r});
    messages.receives.push_back(
        {call.out.range(received, from).data, from * size_of(call.out.dtype), r});
    sent += to;
    received += from;
  }
  exchange(messages, call);
}

// Every rank gets everybody's elements of its own part, adds them in f32 in rank order and rounds
// once, as thread ranks do; then the parts go to whoever wants them. Of a sum of n ranks a rank
// receives (n - 1) / n for the first half, as much as a ring's, and as much again for the second.
void NcclRing::wide_sum(const Call& call) {
  const int n = place_.size, me = place_.rank;
  const bool scatters = call.verb == Verb::kReduceScatter;
  const Buffer mine = call.in.part(me, n);
  const Buffer into = scatters ? call.out : mine;
  const device::StreamMemory room(mine.bytes() * (n - 1), stream_, world_->rank());
  Exchange parts;
  std::vector<const void*> from;
  for (int r = 0; r < n; ++r) {
    if (r == me) {
      from.push_back(mine.data);
      continue;
    }
    void* const place =
        static_cast<std::byte*>(room.data()) + std::ssize(parts.receives) * mine.bytes();
    parts.sends.push_back({call.in.part(r, n).data, call.in.part(r, n).bytes(), r});
    parts.receives.push_back({place, mine.bytes(), r});
    from.push_back(place);
  }
  exchange(parts, call);
  device::combine(call.dtype(), on_device(call.op), from, {&into.data, 1}, into.count, stream_);
  if (scatters) return;
  Exchange sums;
  for (int r = 0; r < n; ++r) {
    const bool wants = call.verb == Verb::kAllReduce || r == call.root;
    if (r != me && wants) sums.sends.push_back({into.data, into.bytes(), r});
    const bool want = call.verb == Verb::kAllReduce || me == call.root;
    const Buffer theirs = call.out.part(r, n);
    if (r != me && want) sums.receives.push_back({theirs.data, theirs.bytes(), r});
  }
  exchange(sums, call);
}

}  // namespace kuafu
