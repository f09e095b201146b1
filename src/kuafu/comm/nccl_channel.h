// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "kuafu/comm/call.h"
#include "kuafu/comm/nccl_world.h"

namespace kuafu {

/// One end of a message on device memory.
struct NcclMessage {
  Buffer buffer;
  std::string what;
  device::Event ready{device::Event::Timing::kOff};  ///< the caller's stream is that far
  std::shared_ptr<device::Event> end = nullptr;      ///< null until it has begun
};
using NcclMessagePtr = std::shared_ptr<NcclMessage>;

/// The messages of one sender to one receiver with one tag, in order. On a stream of the whole
/// group a message would hold up all later ones until its receiver comes, and two ranks that both
/// send first would be stuck. So each channel is an NCCL communicator of the two with a stream of
/// its own. It is made when both have first used it: the sender gives the receiver its id through
/// the host, and neither blocks for the other. Messages to oneself are copies.
class NcclChannel {
 public:
  struct Key {
    int from, to, tag;  ///< ranks of `control`
    auto operator<=>(const Key&) const = default;
  };
  NcclChannel(std::shared_ptr<NcclWorld> world, Communicator& control, const Key& key);
  ~NcclChannel();
  NcclChannel(const NcclChannel&) = delete;
  NcclChannel& operator=(const NcclChannel&) = delete;

  enum class Side : uint8_t { kSends, kReceives };
  NcclMessagePtr post(Side side, const Buffer& buffer, std::string what);
  /// Takes the next steps that need nobody to wait for.
  void advance();

 private:
  bool has_comm();
  void make_comm();
  void begin_copies();
  void finish(NcclMessage& message);

  static constexpr int64_t kIdBytes = 128;
  std::shared_ptr<NcclWorld> world_;
  const Key key_;
  const int me_;
  device::DeviceStream stream_;
  std::vector<char> id_;
  Work id_under_way_;
  std::unique_ptr<NcclComm> comm_;
  NcclMessagePtr launched_;  // NCCL has it, the stream perhaps not
  std::deque<NcclMessagePtr> sends_, receives_;
};

/// The channels of one group, and the work of its messages.
class NcclChannels {
 public:
  NcclChannels(std::shared_ptr<NcclWorld> world, std::unique_ptr<Communicator> control)
      : world_(std::move(world)), control_(std::move(control)) {}
  Communicator& control() { return *control_; }
  /// send, recv, send_recv on device memory.
  Work start(const Call& call);

 private:
  NcclChannel& at(const NcclChannel::Key& key);

  std::shared_ptr<NcclWorld> world_;
  std::unique_ptr<Communicator> control_;
  std::map<NcclChannel::Key, std::unique_ptr<NcclChannel>> channels_;
};

}  // namespace kuafu
