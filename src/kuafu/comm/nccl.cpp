// SPDX-License-Identifier: Apache-2.0
#include "kuafu/comm/nccl.h"
#include "kuafu/comm/gather.h"

#include <nccl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "kuafu/base/worlds.h"
#include "kuafu/comm/nccl_channel.h"
#include "kuafu/comm/nccl_ring.h"
#include "kuafu/comm/splitting.h"
#include "kuafu/comm/worlds.h"

namespace kuafu {

namespace {

void check_nccl(ncclResult_t code, const char* call) {
  if (code == ncclSuccess || code == ncclInProgress) return;
  throw Error(text(call, ": ", ncclGetErrorString(code), "; ", ncclGetLastError(nullptr)));
}

#define KUAFU_NCCL(call) check_nccl(call, #call)

std::unique_ptr<Communicator> same_ranks(Communicator& host) {
  return host.split([](int) { return SplitKey{}; });
}

/// A call of the host's ranks, which moves on the rank's messages while it is waited for: who waits
/// on the host may wait for a rank that waits for one of them to begin.
class HostWork final : public PendingWork {
 public:
  HostWork(Work inner, std::shared_ptr<NcclWorld> world)
      : inner_(std::move(inner)), world_(std::move(world)) {}
  void wait() override {
    while (world_->has_waiting() && !inner_.test()) {
      world_->advance();
      std::this_thread::yield();
    }
    inner_.wait();
  }
  bool test() override {
    world_->advance();
    return inner_.test();
  }

 private:
  Work inner_;
  std::shared_ptr<NcclWorld> world_;
};

class NcclCommunicator final : public CallCommunicator {
 public:
  struct Parts {
    std::shared_ptr<NcclWorld> world;
    std::unique_ptr<Communicator> host;     ///< for calls on host memory
    std::unique_ptr<Communicator> control;  ///< for what channels tell each other
    std::shared_ptr<NcclRing> ring;
  };
  explicit NcclCommunicator(Parts parts)
      : world_(std::move(parts.world)),
        host_(std::move(parts.host)),
        ring_(std::move(parts.ring)),
        channels_(world_, std::move(parts.control)) {}

  std::string_view name() const override { return worlds::kNccl; }
  int rank() const override { return host_->rank(); }
  int size() const override { return host_->size(); }
  const std::vector<int>& members() const override { return host_->members(); }

  std::unique_ptr<Communicator> split(const SplitRule& rule) override {
    const SplitTable table(rule, size());
    const auto me = static_cast<size_t>(rank());
    Parts parts{world_, host_->split(rule), channels_.control().split(rule), nullptr};
    ncclComm_t comm = ring_->split(table.group_of[me], std::max(table.index_in[me], 0));
    if (parts.host == nullptr) return nullptr;
    parts.ring = std::make_shared<NcclRing>(
        world_, comm, NcclRing::RankInGroup{parts.host->rank(), parts.host->size()});
    parts.ring->settle();
    return std::make_unique<NcclCommunicator>(std::move(parts));
  }

 protected:
  Takes takes() const override { return Takes::kEither; }

  Work start(const Call& call) override {
    world_->check();
    if (call.place() == Place::kHost) return start_on_host(call);
    if (call.is_point_to_point()) return channels_.start(call);
    if (call.count() == 0 && call.verb != Verb::kAllToAll) return {};
    return ring_->start(call);
  }

 private:
  Work start_on_host(const Call& call) {
    auto& host = dynamic_cast<CallCommunicator&>(*host_);
    return Work(std::make_unique<HostWork>(host.take_over(call), world_));
  }

  std::shared_ptr<NcclWorld> world_;
  std::unique_ptr<Communicator> host_;
  std::shared_ptr<NcclRing> ring_;
  NcclChannels channels_;
};

int num_gpus() {
  const int count = device::num_devices();
  if (count > 0) return count;
  throw Unavailable(
      text("NCCL needs a GPU: ", device::why_none(), "; choose --world threads or mpi"));
}

/// The device of this rank among `gpus` that it sees: ranks that see the same cards of a machine take
/// one after the other; a launcher may show each rank one of its own.
int device_of_rank(Communicator& host, int gpus) {
  std::array<char, 256> machine{};
  gethostname(machine.data(), machine.size() - 1);
  const std::string mine = text(machine.data(), " ", device::bus_of(0));
  const std::vector<std::string> all = gather_texts(host, mine);
  const auto before = std::count(all.begin(), all.begin() + host.rank(), mine);
  const auto ranks = std::count(all.begin(), all.end(), mine);
  if (ranks <= gpus) return static_cast<int>(before);
  throw Unavailable(text(ranks, " NCCL ranks on a machine with ", gpus,
                         " GPUs: NCCL takes one rank a GPU; start at most ", gpus,
                         " ranks here, or choose --world threads"));
}

}  // namespace

void run_on_nccl_over(Communicator& host, const std::function<void(Communicator& world)>& body,
                      const NcclOptions& options) {
  const int gpus = num_gpus();
  const int device = device_of_rank(host, gpus);
  device::use(device);
  start_rank();
  ncclUniqueId id{};
  if (host.rank() == 0) KUAFU_NCCL(ncclGetUniqueId(&id));
  host.broadcast({.data = id.internal, .count = NCCL_UNIQUE_ID_BYTES, .dtype = DType::kU8}, 0)
      .wait();
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  ncclComm_t comm = nullptr;
  KUAFU_NCCL(ncclCommInitRankConfig(&comm, host.size(), id, host.rank(), &config));
  auto world = std::make_shared<NcclWorld>(host.rank(), device, options.timeout);
  auto ring =
      std::make_shared<NcclRing>(world, comm, NcclRing::RankInGroup{host.rank(), host.size()});
  ring->settle();
  {
    NcclCommunicator communicator({world, same_ranks(host), same_ranks(host), std::move(ring)});
    body(communicator);
  }
  world->check();
}

void run_on_nccl(const std::function<void(Communicator& world)>& body) {
  num_gpus();  // before anything is started
  if (!is_under_mpi_launcher()) {
    const auto host = make_self();
    return run_on_nccl_over(*host, body);
  }
  run_on_mpi([&](Communicator& host) { run_on_nccl_over(host, body); });
}

}  // namespace kuafu
