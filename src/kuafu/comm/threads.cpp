// SPDX-License-Identifier: Apache-2.0
#include <cstring>
#include <thread>

#include "kuafu/base/worlds.h"
#include "kuafu/comm/thread_group.h"
#include "kuafu/comm/turns.h"

namespace kuafu {

namespace {

void (*start_of_ranks)() = nullptr;

// Messages up to this size are copied by the sender, which then goes on.
constexpr int64_t kEagerBytes = 8 * 1024;

class OperationWork : public PendingWork {
 public:
  OperationWork(std::shared_ptr<Operation> operation, int world_rank)
      : operation_(std::move(operation)), world_rank_(world_rank) {}
  void wait() override { operation_->complete(world_rank_); }
  void wait_host() override { operation_->complete_on_host(world_rank_); }
  bool test() override { return operation_->test(world_rank_); }

 protected:
  std::shared_ptr<Operation> operation_;
  int world_rank_;
};

/// Both halves of a send_recv.
class TwoOperationsWork : public OperationWork {
 public:
  TwoOperationsWork(Work first, std::shared_ptr<Operation> second, int world_rank)
      : OperationWork(std::move(second), world_rank), first_(std::move(first)) {}
  ~TwoOperationsWork() override = default;
  void wait() override {
    OperationWork::wait();  // where it throws, the destructor of first_ ends the other half
    first_.wait();
  }
  void wait_host() override {
    OperationWork::wait_host();
    first_.wait_host();
  }
  bool test() override { return OperationWork::test() && first_.test(); }

 private:
  Work first_;
};

/// all_to_all from and into one buffer: what is sent is a copy.
class StagedWork : public OperationWork {
 public:
  StagedWork(std::shared_ptr<Operation> operation, int world_rank, std::vector<std::byte> staging)
      : OperationWork(std::move(operation), world_rank), staging_(std::move(staging)) {}

 private:
  std::vector<std::byte> staging_;
};

/// What is sent from a buffer that is received into, on the device: a copy on the caller's stream.
class DeviceStagedWork : public PendingWork {
 public:
  DeviceStagedWork(std::unique_ptr<device::StreamMemory> staging, Work work)
      : staging_(std::move(staging)), work_(std::move(work)) {}
  void wait() override { work_.wait(); }
  void wait_host() override { work_.wait_host(); }
  bool test() override { return work_.test(); }

 private:
  std::unique_ptr<device::StreamMemory> staging_;  // goes last
  Work work_;
};

class ThreadCommunicator final : public CallCommunicator {
 public:
  ThreadCommunicator(std::string_view name, std::shared_ptr<ThreadWorld> world,
                     std::shared_ptr<ThreadGroup> group, int index, std::string group_name)
      : name_(name),
        world_(std::move(world)),
        group_(std::move(group)),
        index_(index),
        group_name_(std::move(group_name)) {}

  std::string_view name() const override { return name_; }
  int rank() const override { return index_; }
  int size() const override { return group_->size(); }
  const std::vector<int>& members() const override { return group_->members(); }

  ThreadWorld& world() const { return *world_; }
  int world_rank() const { return members()[static_cast<size_t>(index_)]; }

  std::unique_ptr<Communicator> split(const SplitRule& rule) override {
    if (world_->has_failed()) world_->throw_torn_down(world_rank());
    const std::string name = text("split ", num_splits_, " of ", group_label());
    auto group = group_->split(index_, num_splits_++, rule);
    if (group == nullptr) return nullptr;
    const auto& members = group->members();
    int index = 0;
    while (members[static_cast<size_t>(index)] != world_rank()) ++index;
    return std::make_unique<ThreadCommunicator>(name_, world_, std::move(group), index, name);
  }

 protected:
  Work start(const Call& call) override {
    if (world_->has_failed()) world_->throw_torn_down(world_rank());
    const bool is_on_device = call.place() == Place::kDevice;
    const bool is_in_place = call.in.count > 0 && call.in.data == call.out.data &&
                             (call.verb == Verb::kAllToAll || call.verb == Verb::kSendRecv);
    if (is_on_device && is_in_place && size() > 1) return start_staged_on_device(call);
    if (call.is_point_to_point()) return start_message(call);
    if (size() == 1) {
      if (!is_on_device) {
        run_alone(call);
      } else if (call.out.data != call.in.data) {
        device::copy(call.out.data, call.in.data, call.out.bytes(),
                     device::StreamView(call.stream()));
      }
      return {};
    }
    if (is_in_place) return start_staged(call);
    return start_collective(call);
  }

  Takes takes() const override { return Takes::kEither; }

 private:
  const std::string& group_label() const { return label().empty() ? group_name_ : label(); }

  Work pending(std::shared_ptr<Operation> operation) const {
    if (operation == nullptr || operation->is_over()) return {};
    return Work(std::make_unique<OperationWork>(std::move(operation), world_rank()));
  }

  Work start_collective(const Call& call) {
    return pending(group_->post(index_, num_calls_++, call, group_label()));
  }

  Work start_staged_on_device(const Call& call) {
    const device::StreamView stream(call.stream());
    auto staging = std::make_unique<device::StreamMemory>(call.in.bytes(), stream, world_rank());
    device::copy(staging->data(), call.in.data, call.in.bytes(), stream);
    Call staged = call;
    staged.in.data = staging->data();
    Work work = call.is_point_to_point() ? start_message(staged) : start_collective(staged);
    return Work(std::make_unique<DeviceStagedWork>(std::move(staging), std::move(work)));
  }

  Work start_staged(const Call& call) {
    std::vector<std::byte> staging(static_cast<size_t>(call.in.bytes()));
    std::memcpy(staging.data(), call.in.data, staging.size());
    Call staged = call;
    staged.in.data = staging.data();
    auto operation = group_->post(index_, num_calls_++, staged, group_label());
    if (operation->is_done()) return {};
    return Work(
        std::make_unique<StagedWork>(std::move(operation), world_rank(), std::move(staging)));
  }

  Work start_message(const Call& call) {
    const bool copies = call.place() == Place::kHost &&
                        (call.in.bytes() <= kEagerBytes || call.in.data == call.out.data);
    const auto sending =
        copies ? ThreadGroup::Sending::kFromCopy : ThreadGroup::Sending::kFromBuffer;
    if (call.verb == Verb::kSend)
      return pending(group_->send(index_, call, sending, group_label()));
    if (call.verb == Verb::kRecv) return pending(group_->recv(index_, call, group_label()));
    auto sent = group_->send(index_, call, sending, group_label());
    Work guard = pending(sent);  // if the receive throws, nobody reads the buffer afterwards
    auto received = group_->recv(index_, call, group_label());
    if (!guard.is_pending()) return pending(std::move(received));
    if (received == nullptr) return guard;
    return Work(
        std::make_unique<TwoOperationsWork>(std::move(guard), std::move(received), world_rank()));
  }

  std::string_view name_;
  std::shared_ptr<ThreadWorld> world_;
  std::shared_ptr<ThreadGroup> group_;
  int index_;
  std::string group_name_;  // until it is metered under a label
  int64_t num_calls_ = 0;   // collectives, the same on all members
  int64_t num_splits_ = 0;  // the same on all members
};

std::vector<int> all_ranks(int ranks) {
  std::vector<int> members;
  for (int r = 0; r < ranks; ++r) members.push_back(r);
  return members;
}

}  // namespace

std::optional<Turns> turns_of(Communicator& world) {
  const auto* threads = dynamic_cast<const ThreadCommunicator*>(&world);
  if (threads == nullptr || !threads->world().has_turns()) return {};
  return Turns(threads->world(), threads->world_rank());
}

bool Turns::enter() { return world_->enter_turns(rank_); }
bool Turns::leave() { return world_->leave_turns(rank_); }

std::unique_ptr<Communicator> make_self() {
  auto world = std::make_shared<ThreadWorld>(1, ThreadsOptions{});
  auto group = std::make_shared<ThreadGroup>(*world, all_ranks(1));
  return std::make_unique<ThreadCommunicator>("self", std::move(world), std::move(group), 0,
                                              "world");
}

void set_start_of_ranks(void (*start)()) { start_of_ranks = start; }

void start_rank() {
  if (start_of_ranks != nullptr) start_of_ranks();
}

void run_on_threads(int ranks, const std::function<void(Communicator& world)>& body,
                    const ThreadsOptions& options) {
  KUAFU_REQUIRE(ranks >= 1, "cannot run on ", ranks, " thread ranks; give 1 or more");
  auto world = std::make_shared<ThreadWorld>(ranks, options);
  auto group = std::make_shared<ThreadGroup>(*world, all_ranks(ranks));
  const auto run_rank = [&](int rank) {
    try {
      start_rank();
      {
        ThreadCommunicator communicator(worlds::kThreads, world, group, rank, "world");
        body(communicator);
      }
      world->finish(rank);
    } catch (...) {
      world->fail(rank, std::current_exception());
    }
  };
  std::vector<std::thread> threads;
  for (int rank = 1; rank < ranks; ++rank) {
    try {
      threads.emplace_back(run_rank, rank);
    } catch (const std::system_error& e) {
      world->fail(rank, std::make_exception_ptr(Error(
                            text("cannot start thread ", rank, " of ", ranks, ": ", e.what()))));
      break;
    }
  }
  run_rank(0);
  for (std::thread& thread : threads) thread.join();
  group.reset();  // reports messages that nobody received
  world->rethrow_first();
}

}  // namespace kuafu
