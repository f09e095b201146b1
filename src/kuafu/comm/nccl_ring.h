// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>

#include "kuafu/comm/call.h"
#include "kuafu/comm/nccl_world.h"

namespace kuafu {

/// The collectives of one group on device memory: an NCCL communicator and the stream they run on,
/// one after the other.
class NcclRing : public std::enable_shared_from_this<NcclRing> {
 public:
  struct RankInGroup {
    int rank, size;
  };
  NcclRing(std::shared_ptr<NcclWorld> world, ncclComm* comm, RankInGroup place)
      : world_(std::move(world)), place_(place), comm_(world_, comm, stream_) {}

  /// Blocks the host until the communicator is there.
  void settle() {
    comm_.settle([] { return "making an NCCL communicator"; });
  }
  /// A collective other than a barrier.
  Work start(const Call& call);
  /// The group of the given color, null where it is negative. Collective.
  ncclComm* split(int color, int key);

 private:
  void launch(const Call& call);
  void all_to_all(const Call& call);
  void wide_sum(const Call& call);
  struct Message {
    void* data;
    int64_t bytes;
    int peer;
  };
  struct Exchange {
    std::vector<Message> sends, receives;
  };
  void exchange(const Exchange& messages, const Call& call);
  void run(const char* name, const Call& call, const NcclComm::NcclCall& launch);

  std::shared_ptr<NcclWorld> world_;
  const RankInGroup place_;
  device::DeviceStream stream_;
  NcclComm comm_;
};

}  // namespace kuafu
