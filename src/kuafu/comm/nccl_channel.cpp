// SPDX-License-Identifier: Apache-2.0
#include "kuafu/comm/nccl_channel.h"

#include <nccl.h>

#include <algorithm>
#include <cstring>

namespace kuafu {

namespace {

/// One message, or both of a send_recv.
class MessagesWork final : public PendingWork {
 public:
  MessagesWork(std::shared_ptr<NcclWorld> world, std::vector<NcclMessagePtr> messages, void* user,
               std::unique_ptr<device::StreamMemory> staging)
      : world_(std::move(world)),
        user_(user),
        staging_(std::move(staging)),
        messages_(std::move(messages)) {}

  void wait() override {
    for (const NcclMessagePtr& m : messages_) {
      world_->wait([&m] { return m->what; }, [&m] { return m->end != nullptr; });
      m->end->hold(device::StreamView(user_));
    }
  }
  void wait_host() override {
    wait();
    for (const NcclMessagePtr& m : messages_) {
      world_->wait([&m] { return m->what; }, [&m] { return m->end->is_reached(); });
    }
    world_->check();  // what was cut off looks as if it had ended
  }
  bool test() override {
    world_->check();
    world_->advance();
    return std::all_of(messages_.begin(), messages_.end(), [](const NcclMessagePtr& m) {
      return m->end != nullptr && m->end->is_reached();
    });
  }

 private:
  std::shared_ptr<NcclWorld> world_;
  void* user_;
  std::unique_ptr<device::StreamMemory> staging_;
  std::vector<NcclMessagePtr> messages_;
};

}  // namespace

NcclChannel::NcclChannel(std::shared_ptr<NcclWorld> world, Communicator& control, const Key& key)
    : world_(std::move(world)), key_(key), me_(control.rank()), id_(kIdBytes) {
  static_assert(kIdBytes == NCCL_UNIQUE_ID_BYTES);
  if (key.from == key.to) return;
  const Buffer bytes{.data = id_.data(), .count = kIdBytes, .dtype = DType::kU8};
  if (me_ == key.to) {
    id_under_way_ = control.recv(bytes, key.from, key.tag);
    return;
  }
  ncclUniqueId id{};
  const ncclResult_t code = ncclGetUniqueId(&id);
  if (code != ncclSuccess) throw Error(text("ncclGetUniqueId: ", ncclGetErrorString(code)));
  std::memcpy(id_.data(), id.internal, sizeof id.internal);
  id_under_way_ = control.send(bytes, key.to, key.tag);
  make_comm();
}

NcclChannel::~NcclChannel() { world_->remove_waiting(*this); }

NcclMessagePtr NcclChannel::post(Side side, const Buffer& buffer, std::string what) {
  const NcclMessagePtr message(new NcclMessage{.buffer = buffer, .what = std::move(what)});
  message->ready.record(device::StreamView(buffer.stream));
  (side == Side::kSends ? sends_ : receives_).push_back(message);
  world_->add_waiting(*this);
  advance();
  return message;
}

void NcclChannel::make_comm() {
  ncclUniqueId id{};
  std::memcpy(id.internal, id_.data(), sizeof id.internal);
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  ncclComm_t comm = nullptr;
  const ncclResult_t code = ncclCommInitRankConfig(&comm, 2, id, me_ == key_.from ? 0 : 1, &config);
  if (code != ncclSuccess && code != ncclInProgress) {
    throw Error(text("ncclCommInitRankConfig: ", ncclGetErrorString(code)));
  }
  comm_ = std::make_unique<NcclComm>(world_, comm, stream_);
}

bool NcclChannel::has_comm() {
  if (comm_ == nullptr && id_under_way_.test()) {
    id_under_way_.wait();
    make_comm();
  }
  return comm_ != nullptr && comm_->is_settled();
}

void NcclChannel::finish(NcclMessage& message) {
  auto end = std::make_shared<device::Event>(device::Event::Timing::kOff);
  end->record(stream_);
  world_->watch(message.what, end);
  message.end = std::move(end);
}

// Both ends are this rank's.
void NcclChannel::begin_copies() {
  while (!sends_.empty() && !receives_.empty()) {
    NcclMessage &from = *sends_.front(), &to = *receives_.front();
    if (from.buffer.count != to.buffer.count || from.buffer.dtype != to.buffer.dtype) {
      throw CollectiveMismatch(text("rank ", world_->rank(), " called ", from.what, " and ",
                                    to.what, " for one message to itself"));
    }
    from.ready.hold(stream_);
    to.ready.hold(stream_);
    device::copy(to.buffer.data, from.buffer.data, from.buffer.bytes(), stream_);
    finish(from);
    finish(to);
    sends_.pop_front();
    receives_.pop_front();
  }
}

void NcclChannel::advance() {
  if (key_.from == key_.to) begin_copies();
  auto& mine = me_ == key_.from ? sends_ : receives_;
  while (key_.from != key_.to && (launched_ != nullptr || !mine.empty()) && has_comm()) {
    if (launched_ != nullptr) {
      finish(*launched_);
      launched_.reset();
      continue;
    }
    launched_ = mine.front();
    mine.pop_front();
    launched_->ready.hold(stream_);
    const Buffer& b = launched_->buffer;
    const auto bytes = static_cast<size_t>(b.bytes());
    const auto stream = static_cast<cudaStream_t>(stream_.handle());
    comm_->call(me_ == key_.from ? "ncclSend" : "ncclRecv", [&](ncclComm_t comm) {
      return me_ == key_.from ? ncclSend(b.data, bytes, ncclUint8, 1, comm, stream)
                              : ncclRecv(b.data, bytes, ncclUint8, 0, comm, stream);
    });
  }
  if (launched_ == nullptr && sends_.empty() && receives_.empty()) world_->remove_waiting(*this);
}

NcclChannel& NcclChannels::at(const NcclChannel::Key& key) {
  auto& channel = channels_[key];
  if (channel == nullptr) channel = std::make_unique<NcclChannel>(world_, *control_, key);
  return *channel;
}

Work NcclChannels::start(const Call& call) {
  const int me = control_->rank();
  const device::StreamView user(call.stream());
  std::unique_ptr<device::StreamMemory> staging;  // what is sent, where it would be overwritten
  Buffer in = call.in;
  if (in.count > 0 && in.data == call.out.data) {
    staging = std::make_unique<device::StreamMemory>(in.bytes(), user, world_->rank());
    device::copy(staging->data(), in.data, in.bytes(), user);
    in.data = staging->data();
  }
  std::vector<NcclMessagePtr> messages;
  if (call.verb != Verb::kSend && call.out.count > 0) {
    messages.push_back(
        at({call.from, me, call.tag}).post(NcclChannel::Side::kReceives, call.out, describe(call)));
  }
  if (call.verb != Verb::kRecv && in.count > 0) {
    messages.push_back(
        at({me, call.root, call.tag}).post(NcclChannel::Side::kSends, in, describe(call)));
  }
  if (messages.empty()) return {};
  return Work(std::make_unique<MessagesWork>(world_, std::move(messages), call.stream(),
                                             std::move(staging)));
}

}  // namespace kuafu
