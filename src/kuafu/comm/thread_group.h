// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "kuafu/comm/splitting.h"
#include "kuafu/comm/thread_operation.h"

namespace kuafu {

/// What the members of one communicator share: operations under way, unmatched messages, splits.
class ThreadGroup {
 public:
  ThreadGroup(ThreadWorld& world, std::vector<int> members);
  /// Fails the world if a message was sent that nobody received.
  ~ThreadGroup();
  ThreadGroup(const ThreadGroup&) = delete;
  ThreadGroup& operator=(const ThreadGroup&) = delete;

  ThreadWorld& world() { return world_; }
  const std::vector<int>& members() const { return *members_; }
  int size() const { return static_cast<int>(members_->size()); }

  /// Member `index` makes its `sequence`-th collective call. Throws CollectiveMismatch (and fails
  /// the world) where the others called something else.
  std::shared_ptr<Operation> post(int index, int64_t sequence, const Call& call,
                                  const std::string& label);
  /// One message; null where nothing is left to wait for. `copies`: the sender's bytes are kept, so
  /// that it may go on at once.
  enum class Sending : uint8_t { kFromBuffer, kFromCopy };
  std::shared_ptr<Operation> send(int index, const Call& call, Sending sending,
                                  const std::string& label);
  std::shared_ptr<Operation> recv(int index, const Call& call, const std::string& label);

  /// The group of member `index` under the `sequence`-th split; null where it is left out.
  std::shared_ptr<ThreadGroup> split(int index, int64_t sequence, const SplitRule& rule);

 private:
  struct Message {  // sent and not received, or expected and not sent
    int from;
    int tag;
    std::shared_ptr<Operation> operation;
  };
  struct Ends {
    int from, to;  // members
    int side;      // who calls: 0 the sender, 1 the receiver
  };
  struct Split {
    SplitTable table;
    std::vector<std::shared_ptr<ThreadGroup>> groups;
    int num_pending = 0;  // members that have not asked yet
  };

  std::shared_ptr<Operation> meet(const Ends& ends, const Call& call,
                                  std::vector<std::byte> payload, const std::string& label);
  std::string describe_members() const;
  [[noreturn]] void mismatch(int index, const std::string& what);

  ThreadWorld& world_;
  const std::shared_ptr<const std::vector<int>> members_;
  mutable std::mutex mutex_;
  std::deque<std::shared_ptr<Operation>> open_;  // not all have posted; the first is first_open_
  int64_t first_open_ = 0;
  std::vector<std::deque<Message>> sent_;      // by receiver
  std::vector<std::deque<Message>> expected_;  // by receiver
  std::map<int64_t, Split> splits_;
};

}  // namespace kuafu
