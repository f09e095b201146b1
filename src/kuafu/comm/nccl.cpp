// SPDX-License-Identifier: Apache-2.0
#include <nccl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <exception>
#include <numeric>
#include <thread>

#include "kuafu/base/worlds.h"
#include "kuafu/comm/call.h"
#include "kuafu/comm/splitting.h"
#include "kuafu/comm/worlds.h"

namespace kuafu {

namespace {

void check_nccl(ncclResult_t code, const char* call) {
  if (code == ncclSuccess) return;
  throw Error(text(call, ": ", ncclGetErrorString(code), "; ", ncclGetLastError(nullptr)));
}

void check_cuda(cudaError_t code, const char* call) {
  if (code != cudaSuccess) throw Error(text(call, ": ", cudaGetErrorString(code)));
}

#define KUAFU_NCCL(call) check_nccl(call, #call)
#define KUAFU_CUDA(call) check_cuda(call, #call)

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

/// A point in a stream.
class Mark {
 public:
  explicit Mark(cudaStream_t stream) {
    KUAFU_CUDA(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming));
    KUAFU_CUDA(cudaEventRecord(event_, stream));
  }
  ~Mark() { cudaEventDestroy(event_); }
  Mark(const Mark&) = delete;
  Mark& operator=(const Mark&) = delete;
  void hold(cudaStream_t stream) const { KUAFU_CUDA(cudaStreamWaitEvent(stream, event_, 0)); }
  bool is_reached() const {
    const cudaError_t code = cudaEventQuery(event_);
    if (code != cudaErrorNotReady) KUAFU_CUDA(code);
    return code == cudaSuccess;
  }

 private:
  cudaEvent_t event_ = nullptr;
};

/// A communicator of NCCL with the stream its operations run on.
class Ring {
 public:
  explicit Ring(ncclComm_t comm) : comm_(comm) {
    KUAFU_CUDA(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
  }
  ~Ring() {
    // The others may never come: what an exception unwinds is cut off.
    if (std::uncaught_exceptions() > 0) {
      ncclCommAbort(comm_);
    } else {
      cudaStreamSynchronize(stream_);
      ncclCommDestroy(comm_);
    }
    cudaStreamDestroy(stream_);
  }
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;
  ncclComm_t comm() const { return comm_; }
  cudaStream_t stream() const { return stream_; }

  /// Blocks the host until `mark` is reached; an error of any rank ends the wait.
  void wait_host(const Mark& mark) const {
    while (!mark.is_reached()) {
      ncclResult_t state = ncclSuccess;
      KUAFU_NCCL(ncclCommGetAsyncError(comm_, &state));
      KUAFU_NCCL(state);
      std::this_thread::yield();
    }
  }

 private:
  ncclComm_t comm_;
  cudaStream_t stream_ = nullptr;
};

class MarkedWork final : public PendingWork {
 public:
  MarkedWork(std::shared_ptr<Ring> ring, cudaStream_t user)
      : ring_(std::move(ring)), done_(ring_->stream()), user_(user) {}
  void wait() override { done_.hold(user_); }
  void wait_host() override {
    done_.hold(user_);
    ring_->wait_host(done_);
  }
  bool test() override { return done_.is_reached(); }

 private:
  std::shared_ptr<Ring> ring_;
  Mark done_;
  cudaStream_t user_;
};

class NcclCommunicator final : public CallCommunicator {
 public:
  NcclCommunicator(std::shared_ptr<Ring> ring, int rank, std::vector<int> members)
      : ring_(std::move(ring)), rank_(rank), members_(std::move(members)) {}

  std::string_view name() const override { return worlds::kNccl; }
  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(members_.size()); }
  const std::vector<int>& members() const override { return members_; }

  std::unique_ptr<Communicator> split(const SplitRule& rule) override {
    const SplitTable table(rule, size());
    const auto me = static_cast<size_t>(rank_);
    const int group = table.group_of[me], index = table.index_in[me];
    ncclComm_t comm = nullptr;
    KUAFU_NCCL(ncclCommSplit(ring_->comm(), group < 0 ? NCCL_SPLIT_NOCOLOR : group,
                             std::max(index, 0), &comm, nullptr));
    if (group < 0) return nullptr;
    std::vector<int> world_ranks;
    for (const int r : table.groups[static_cast<size_t>(group)]) {
      world_ranks.push_back(members_[static_cast<size_t>(r)]);
    }
    return std::make_unique<NcclCommunicator>(std::make_shared<Ring>(comm), index,
                                              std::move(world_ranks));
  }

 protected:
  Takes takes() const override { return Takes::kEither; }

  Work start(const Call& call) override {
    KUAFU_REQUIRE(size() > 1 || call.verb == Verb::kSendRecv || !call.is_point_to_point(),
                  describe(call), ": a lone NCCL rank can only talk to itself by send_recv");
    const Buffer& named = call.in.data != nullptr ? call.in : call.out;
    const auto user = static_cast<cudaStream_t>(named.stream);
    const cudaStream_t stream = ring_->stream();
    if (call.verb != Verb::kBarrier) Mark(user).hold(stream);
    launch(call);
    return Work(std::make_unique<MarkedWork>(ring_, user));
  }

 private:
  void launch(const Call& call) {
    const ncclComm_t comm = ring_->comm();
    const cudaStream_t stream = ring_->stream();
    const ncclDataType_t type = type_of(call.dtype());
    const auto count = [](int64_t n) { return static_cast<size_t>(n); };
    const void* in = call.in.data;
    void* out = call.out.data;
    switch (call.verb) {
      case Verb::kBroadcast:
        KUAFU_NCCL(ncclBroadcast(in, out, count(call.in.count), type, call.root, comm, stream));
        return;
      case Verb::kReduce:
        KUAFU_NCCL(ncclReduce(in, out, count(call.in.count), type, op_of(call.op), call.root, comm,
                              stream));
        return;
      case Verb::kAllReduce:
        KUAFU_NCCL(
            ncclAllReduce(in, out, count(call.in.count), type, op_of(call.op), comm, stream));
        return;
      case Verb::kAllGather:
        KUAFU_NCCL(ncclAllGather(in, out, count(call.in.count), type, comm, stream));
        return;
      case Verb::kReduceScatter:
        KUAFU_NCCL(
            ncclReduceScatter(in, out, count(call.out.count), type, op_of(call.op), comm, stream));
        return;
      case Verb::kBarrier:
        launch_barrier();
        return;
      default:
        exchange(call);
    }
  }

  // A sum of one element: every rank's stream gets there when all have started.
  void launch_barrier() {
    void* one = nullptr;
    KUAFU_CUDA(cudaMallocAsync(&one, sizeof(int32_t), ring_->stream()));
    KUAFU_NCCL(ncclAllReduce(one, one, 1, ncclInt32, ncclMax, ring_->comm(), ring_->stream()));
    KUAFU_CUDA(cudaFreeAsync(one, ring_->stream()));
  }

  /// all_to_all, send, recv, send_recv: a group of sends and receives.
  void exchange(const Call& call) {
    const cudaStream_t stream = ring_->stream();
    const std::byte* in = static_cast<const std::byte*>(call.in.data);
    void* staging = nullptr;  // what is sent, where it would be overwritten
    if (call.in.count > 0 && call.in.data == call.out.data) {
      KUAFU_CUDA(cudaMallocAsync(&staging, static_cast<size_t>(call.in.bytes()), stream));
      KUAFU_CUDA(cudaMemcpyAsync(staging, in, static_cast<size_t>(call.in.bytes()),
                                 cudaMemcpyDeviceToDevice, stream));
      in = static_cast<const std::byte*>(staging);
    }
    const int64_t element = size_of(call.dtype());
    auto* out = static_cast<std::byte*>(call.out.data);
    KUAFU_NCCL(ncclGroupStart());
    const auto message = [&](int to, int64_t sent, int from, int64_t received) {
      const ncclDataType_t type = type_of(call.dtype());
      if (to >= 0 && sent > 0) {
        KUAFU_NCCL(ncclSend(in, static_cast<size_t>(sent), type, to, ring_->comm(), stream));
        in += sent * element;
      }
      if (from >= 0 && received > 0) {
        KUAFU_NCCL(ncclRecv(out, static_cast<size_t>(received), type_of(call.out.dtype), from,
                            ring_->comm(), stream));
        out += received * size_of(call.out.dtype);
      }
    };
    if (call.verb != Verb::kAllToAll) {
      message(call.root, call.in.count, call.from, call.out.count);
    } else {
      for (int r = 0; r < size(); ++r) {
        const auto i = static_cast<size_t>(r);
        message(r, call.splits.send[i], r, call.splits.recv[i]);
      }
    }
    KUAFU_NCCL(ncclGroupEnd());
    if (staging != nullptr) KUAFU_CUDA(cudaFreeAsync(staging, stream));
  }

  std::shared_ptr<Ring> ring_;
  int rank_;
  std::vector<int> members_;
};

int num_gpus() {
  int count = 0;
  const cudaError_t code = cudaGetDeviceCount(&count);
  if (code != cudaSuccess || count == 0) {
    throw Unavailable(
        text("NCCL needs a GPU: ",
             code == cudaSuccess ? "the driver reports none" : cudaGetErrorString(code),
             "; choose --world threads or mpi"));
  }
  return count;
}

/// How many ranks with a lower number share this rank's machine, and how many in all.
struct OnMyMachine {
  int before = 0, all = 0;
};

OnMyMachine count_on_my_machine(Communicator& host) {
  constexpr int64_t kLength = 256;
  std::array<char, kLength> mine{};
  gethostname(mine.data(), kLength - 1);
  std::vector<char> names(static_cast<size_t>(kLength * host.size()));
  host.all_gather({.data = names.data(), .count = kLength * host.size(), .dtype = DType::kU8},
                  {.data = mine.data(), .count = kLength, .dtype = DType::kU8})
      .wait();
  OnMyMachine count;
  for (int r = 0; r < host.size(); ++r) {
    if (std::strcmp(names.data() + kLength * r, mine.data()) != 0) continue;
    count.all += 1;
    count.before += r < host.rank() ? 1 : 0;
  }
  return count;
}

void run_with_host(Communicator& host, const std::function<void(Communicator& world)>& body) {
  const int gpus = num_gpus();
  const OnMyMachine here = count_on_my_machine(host);
  if (here.all > gpus) {
    throw Unavailable(text(here.all, " NCCL ranks on a machine with ", gpus,
                           " GPUs: NCCL takes one rank a GPU; start at most ", gpus,
                           " ranks here, or choose --world threads"));
  }
  KUAFU_CUDA(cudaSetDevice(here.before));
  start_rank();
  ncclUniqueId id{};
  if (host.rank() == 0) KUAFU_NCCL(ncclGetUniqueId(&id));
  host.broadcast({.data = id.internal, .count = NCCL_UNIQUE_ID_BYTES, .dtype = DType::kU8}, 0)
      .wait();
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 1;
  ncclComm_t comm = nullptr;
  KUAFU_NCCL(ncclCommInitRankConfig(&comm, host.size(), id, host.rank(), &config));
  std::vector<int> all(static_cast<size_t>(host.size()));
  std::iota(all.begin(), all.end(), 0);
  NcclCommunicator world(std::make_shared<Ring>(comm), host.rank(), std::move(all));
  body(world);
}

}  // namespace

void run_on_nccl(const std::function<void(Communicator& world)>& body) {
  num_gpus();  // before anything is started
  if (!is_under_mpi_launcher()) {
    const auto host = make_self();
    return run_with_host(*host, body);
  }
  run_on_mpi([&](Communicator& host) { run_with_host(host, body); });
}

}  // namespace kuafu
