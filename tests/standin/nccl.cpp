// SPDX-License-Identifier: Apache-2.0
//
// The calls of NCCL that Kuafu makes, between the threads of one process.

#include <nccl.h>

#include <algorithm>
#include <cstring>

#include "tests/standin/clique.h"
#include "tests/standin/stream.h"
#include "tests/standin/sums.h"

using kuafu::standin::bytes_of;
using kuafu::standin::Clique;
using kuafu::standin::Collective;
using kuafu::standin::CollectiveCall;
using kuafu::standin::Machine;
using kuafu::standin::MemberPtr;
using kuafu::standin::Queue;
using kuafu::standin::queue_of;
using kuafu::standin::Transfer;

/// What an ncclComm_t points to.
struct ncclComm {
  MemberPtr member;
};

namespace {

#define STANDIN_ENTER_NCCL() \
  if (const int code = Machine::instance().enter(__func__)) return static_cast<ncclResult_t>(code)

/// Communicators that some of their ranks have not joined yet, by the number in their id.
class Ids {
 public:
  static Ids& instance() {
    static Ids ids;
    return ids;
  }
  int64_t make() {
    const std::lock_guard lock(mutex_);
    return ++last_;
  }
  std::shared_ptr<Clique> join(int64_t id, int size) {
    const std::lock_guard lock(mutex_);
    auto& [clique, num_joined] = open_[id];
    if (clique == nullptr) clique = std::make_shared<Clique>(size);
    const auto mine = clique;
    if (++num_joined == size) open_.erase(id);
    return mine;
  }

 private:
  std::mutex mutex_;
  int64_t last_ = 0;
  std::map<int64_t, std::pair<std::shared_ptr<Clique>, int>> open_;
};

/// A handle whose clique ends with the test at the latest.
ncclComm_t make_comm(MemberPtr member) {
  Machine::instance().at_reset([clique = std::weak_ptr(member->clique)] {
    if (const auto c = clique.lock()) c->abort_all();
  });
  return new ncclComm{std::move(member)};
}

/// Calls between ncclGroupStart and ncclGroupEnd of a thread.
struct Group {
  struct Part {
    MemberPtr member;
    std::shared_ptr<Queue> queue;
    std::vector<Transfer> transfers;
  };
  int depth = 0;
  std::vector<Part> parts;
};
thread_local Group group;

ncclResult_t end_group() {
  std::vector<Group::Part> parts;
  parts.swap(group.parts);
  for (Group::Part& part : parts) {
    part.member->clique->start_messages(part.member, part.queue, std::move(part.transfers));
  }
  ncclResult_t result = ncclSuccess;
  for (const Group::Part& part : parts) {
    const ncclResult_t code = part.member->clique->settle(part.member);
    if (result == ncclSuccess) result = code;
  }
  return result;
}

ncclResult_t message(ncclComm_t comm, cudaStream_t stream, const Transfer& transfer) {
  if (comm->member->clique->state_of(comm->member) == ncclInProgress) return ncclInvalidUsage;
  const auto queue = queue_of(stream);
  const auto found = std::find_if(group.parts.begin(), group.parts.end(), [&](const auto& part) {
    return part.member == comm->member && part.queue == queue;
  });
  if (found != group.parts.end()) {
    found->transfers.push_back(transfer);
  } else {
    group.parts.push_back({comm->member, queue, {transfer}});
  }
  return group.depth > 0 ? ncclSuccess : end_group();
}

ncclResult_t collective(ncclComm_t comm, cudaStream_t stream, const CollectiveCall& call) {
  Clique& clique = *comm->member->clique;
  if (clique.state_of(comm->member) == ncclInProgress) return ncclInvalidUsage;
  clique.start_collective(comm->member, queue_of(stream), call);
  return clique.settle(comm->member);
}

}  // namespace

extern "C" {

const char* ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclSuccess:
      return "no error";
    case ncclInvalidUsage:
      return "invalid usage";
    case ncclRemoteError:
      return "remote process exited or there was a network error";
    case ncclInProgress:
      return "NCCL operation in progress";
    default:
      return "an error that the stand-in has no words for";
  }
}

const char* ncclGetLastError(ncclComm_t) { return "no more is known to the stand-in"; }

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  STANDIN_ENTER_NCCL();
  const int64_t number = Ids::instance().make();
  std::memcpy(id->internal, &number, sizeof number);
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int size, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  STANDIN_ENTER_NCCL();
  int64_t number = 0;
  std::memcpy(&number, id.internal, sizeof number);
  const auto clique = Ids::instance().join(number, size);
  *comm = make_comm(clique->join(clique, rank, config->blocking != 0));
  return clique->settle((*comm)->member);
}

ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* child, ncclConfig_t*) {
  STANDIN_ENTER_NCCL();
  Clique& clique = *comm->member->clique;
  if (clique.state_of(comm->member) == ncclInProgress) return ncclInvalidUsage;
  clique.split(comm->member, color, key, [child](MemberPtr member) {
    *child = member == nullptr ? nullptr : make_comm(std::move(member));
  });
  return clique.settle(comm->member);
}

// What is under way is still done, as far as the others come.
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  STANDIN_ENTER_NCCL();
  delete comm;
  return ncclSuccess;
}

// Ends what this rank waits for; the others are not told.
ncclResult_t ncclCommAbort(ncclComm_t comm) {
  STANDIN_ENTER_NCCL();
  comm->member->clique->abort(comm->member);
  delete comm;
  return ncclSuccess;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* state) {
  STANDIN_ENTER_NCCL();
  *state = comm->member->clique->state_of(comm->member);
  return ncclSuccess;
}

ncclResult_t ncclBroadcast(const void* in, void* out, size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream) {
  STANDIN_ENTER_NCCL();
  return collective(comm, stream, {Collective::kBroadcast, in, out, count, type, ncclSum, root});
}

ncclResult_t ncclReduce(const void* in, void* out, size_t count, ncclDataType_t type,
                        ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream) {
  STANDIN_ENTER_NCCL();
  return collective(comm, stream, {Collective::kReduce, in, out, count, type, op, root});
}

ncclResult_t ncclAllReduce(const void* in, void* out, size_t count, ncclDataType_t type,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  STANDIN_ENTER_NCCL();
  return collective(comm, stream, {Collective::kAllReduce, in, out, count, type, op, 0});
}

ncclResult_t ncclAllGather(const void* in, void* out, size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream) {
  STANDIN_ENTER_NCCL();
  return collective(comm, stream, {Collective::kAllGather, in, out, count, type, ncclSum, 0});
}

ncclResult_t ncclReduceScatter(const void* in, void* out, size_t count, ncclDataType_t type,
                               ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  STANDIN_ENTER_NCCL();
  return collective(comm, stream, {Collective::kReduceScatter, in, out, count, type, op, 0});
}

ncclResult_t ncclSend(const void* data, size_t count, ncclDataType_t type, int peer,
                      ncclComm_t comm, cudaStream_t stream) {
  STANDIN_ENTER_NCCL();
  return message(comm, stream,
                 {comm->member->rank, peer, true, const_cast<void*>(data), count * bytes_of(type)});
}

ncclResult_t ncclRecv(void* data, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  STANDIN_ENTER_NCCL();
  return message(comm, stream, {peer, comm->member->rank, false, data, count * bytes_of(type)});
}

ncclResult_t ncclGroupStart() {
  STANDIN_ENTER_NCCL();
  ++group.depth;
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
  STANDIN_ENTER_NCCL();
  return --group.depth > 0 ? ncclSuccess : end_group();
}

}  // extern "C"
