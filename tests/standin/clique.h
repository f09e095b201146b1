// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nccl.h>

#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

#include "tests/standin/queue.h"

namespace kuafu::standin {

class Clique;

/// A rank's end of a communicator. What is not const is guarded by its clique.
struct Member {
  const std::shared_ptr<Clique> clique;
  const int rank;
  const bool blocks;  ///< its calls return when they are through
  bool is_aborted = false;
  ncclResult_t state = ncclInProgress;
  int64_t num_collectives = 0;
  int num_splits = 0;
};
using MemberPtr = std::shared_ptr<Member>;

enum class Collective : uint8_t { kBroadcast, kReduce, kAllReduce, kAllGather, kReduceScatter };

struct CollectiveCall {
  Collective what;
  const void* in;
  void* out;
  size_t count;
  ncclDataType_t type;
  ncclRedOp_t op;
  int root;
  bool matches(const CollectiveCall& other) const {
    return what == other.what && count == other.count && type == other.type && op == other.op &&
           root == other.root;
  }
};

/// One end of a message.
struct Transfer {
  int from, to;
  bool sends;  ///< the end is the sender's
  void* data;
  size_t bytes;
};

/// What the ranks of a communicator share. As bad as NCCL may be: calls that do not match, and
/// those that somebody has left, are stuck until each rank aborts; the first collective and the
/// first message of a pair begin only once the others have made the call, on the host.
class Clique {
 public:
  explicit Clique(int size) : size_(size) {}
  int size() const { return size_; }

  /// A rank comes; the members' states say when all have.
  MemberPtr join(const std::shared_ptr<Clique>& self, int rank, bool blocks);
  /// Fills `child` once all have called it, null where the color is negative.
  void split(const MemberPtr& member, int color, int key, std::function<void(MemberPtr)> fill);

  void start_collective(const MemberPtr& member, const std::shared_ptr<Queue>& queue,
                        const CollectiveCall& call);
  void start_messages(const MemberPtr& member, const std::shared_ptr<Queue>& queue,
                      std::vector<Transfer> transfers);

  /// Blocks while the member's last call is in progress, where its calls block.
  ncclResult_t settle(const MemberPtr& member);
  ncclResult_t state_of(const MemberPtr& member);
  void abort(const MemberPtr& member);
  void abort_all();

 private:
  struct Meeting {  // one collective
    std::map<int, CollectiveCall> calls;
    bool is_done = false, is_dead = false;
  };
  struct Post {  // one end of a message that waits for the other
    Transfer transfer;
    bool is_matched = false, is_dead = false;
  };
  struct Launch {  // a call that waits for connections
    MemberPtr member;
    std::set<std::pair<int, int>> needs;
    std::shared_ptr<Queue> queue;
    std::function<void()> task;
  };
  struct Splitter {
    MemberPtr member;
    int color, key;
    std::function<void(MemberPtr)> fill;
  };
  using Lock = std::unique_lock<std::mutex>;

  void connect(Launch launch);
  void run_collective(const MemberPtr& member, int64_t number, const CollectiveCall& call);
  void run_messages(const MemberPtr& member, const std::vector<Transfer>& transfers);
  static void finish_split(std::vector<Splitter>& all);
  std::vector<MemberPtr> members() const;

  const int size_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::weak_ptr<Member>> members_;
  std::map<int, std::vector<Splitter>> splits_;
  std::map<std::pair<int, int>, std::set<int>> offered_;  // ends that are there, by connection
  std::set<std::pair<int, int>> made_;
  std::vector<Launch> launches_;
  std::map<int64_t, std::shared_ptr<Meeting>> meetings_;
  std::map<std::pair<int, int>, std::deque<std::shared_ptr<Post>>> sent_, expected_;
};

}  // namespace kuafu::standin
