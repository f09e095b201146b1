// SPDX-License-Identifier: Apache-2.0
#include <chrono>
#include <cstdio>
#include <cstring>
#include <exception>
#include <numeric>
#include <optional>
#include <thread>

#include "kuafu/base/reason.h"
#include "kuafu/base/worlds.h"
#include "kuafu/comm/algorithms/algorithms.h"
#include "kuafu/comm/mpi_group.h"
#include "kuafu/comm/mpi_world.h"
#include "kuafu/comm/splitting.h"

namespace kuafu {

namespace {

std::vector<std::byte> copy_of(const Buffer& b) {
  const auto* first = static_cast<const std::byte*>(b.data);
  return {first, first + b.bytes()};
}

/// A collective by our own algorithms.
class CollectiveTask final : public MpiTask {
 public:
  CollectiveTask(const Call& call, MpiWorld& world, std::shared_ptr<MpiGroup> group,
                 AxisLedger* entry)
      : group_(std::move(group)),
        sequence_(group_->announce(call, needs_match(call))),
        call_(call) {
    if (call.verb == Verb::kAllToAll && call.in.count > 0 && call.in.data == call.out.data) {
      staging_ = copy_of(call.in);
      call_.in.data = staging_.data();
    }
    const algorithms::Execution::Setting setting{.wire = group_->collectives(),
                                                 .pool = world.pool(),
                                                 .members = group_->members(),
                                                 .entry = entry};
    execution_.emplace(call_, algorithms::choose(call_, {group_->size(), group_->rank()}), setting,
                       group_->tag_of(call_, sequence_));
  }

  bool advance() override {
    if (!is_through_) is_through_ = execution_->advance();
    if (!is_through_) return false;
    if (!needs_match(call_) || group_->is_matched(sequence_)) return true;
    group_->listen();
    return group_->is_matched(sequence_);
  }
  std::string describe() const override {
    return text(kuafu::describe(call_), ", ", group_->position(sequence_));
  }
  MpiGroup* group() const override { return group_.get(); }

 private:
  // Where every rank waits for all others anyway, a wrong result is never handed out. Messages that
  // came through have proved it by their tags.
  bool needs_match(const Call& call) const {
    if (call.verb == Verb::kBroadcast || call.verb == Verb::kReduce) return false;
    return !group_->has_fingerprints();
  }

  std::shared_ptr<MpiGroup> group_;
  int64_t sequence_;
  Call call_;
  std::vector<std::byte> staging_;
  std::optional<algorithms::Execution> execution_;
  bool is_through_ = false;
};

/// A send, a receive, or both.
class MessageTask final : public MpiTask {
 public:
  MessageTask(const Call& call, std::shared_ptr<MpiGroup> group)
      : group_(std::move(group)), call_(call) {
    MpiChannel& channel = group_->messages();
    if (call.verb != Verb::kSend) {
      if (call.verb == Verb::kSendRecv && call.in.data == call.out.data) {
        staging_ = copy_of(call.in);
        call_.in.data = staging_.data();
      }
      handles_.push_back(channel.receive(call.out.data, call.out.bytes(), call.from, call.tag));
    }
    if (call.verb != Verb::kRecv) {
      handles_.push_back(channel.send(call_.in.data, call.in.bytes(), call.root, call.tag));
    }
  }

  bool advance() override { return group_->messages().test(handles_); }
  std::string describe() const override {
    return text(kuafu::describe(call_), " of group '", group_->label(), "'");
  }
  MpiGroup* group() const override { return group_.get(); }

 private:
  std::shared_ptr<MpiGroup> group_;
  Call call_;
  std::vector<std::byte> staging_;
  std::vector<int> handles_;
};

/// My neighbour makes the same call: before what blocks inside the MPI library.
class MatchTask final : public MpiTask {
 public:
  MatchTask(std::shared_ptr<MpiGroup> group, int64_t sequence, std::string what)
      : group_(std::move(group)), sequence_(sequence), what_(std::move(what)) {}
  bool advance() override {
    if (!group_->is_matched(sequence_)) group_->listen();
    return group_->is_matched(sequence_);
  }
  std::string describe() const override { return text(what_, ", ", group_->position(sequence_)); }
  MpiGroup* group() const override { return group_.get(); }

 private:
  std::shared_ptr<MpiGroup> group_;
  int64_t sequence_;
  std::string what_;
};

class TaskWork final : public PendingWork {
 public:
  TaskWork(MpiWorld& world, std::shared_ptr<MpiTask> task)
      : world_(world), task_(std::move(task)) {}
  void wait() override { world_.wait(*task_); }
  bool test() override { return world_.test(*task_); }

 private:
  MpiWorld& world_;
  std::shared_ptr<MpiTask> task_;
};

class MpiCommunicator final : public CallCommunicator {
 public:
  MpiCommunicator(MpiWorld& world, std::shared_ptr<MpiGroup> group, std::string group_name)
      : world_(world), group_(std::move(group)), group_name_(std::move(group_name)) {
    group_->set_label(group_name_);
    world_.watch(group_);
  }
  ~MpiCommunicator() override {
    if (std::uncaught_exceptions() > 0) return;  // the exception ends all ranks, with its own words
    try {
      group_->leave();
    } catch (...) {  // the end of the run reports that MPI has failed
    }
  }

  std::string_view name() const override { return worlds::kMpi; }
  int rank() const override { return group_->rank(); }
  int size() const override { return group_->size(); }
  const std::vector<int>& members() const override { return group_->members(); }

  std::unique_ptr<Communicator> split(const SplitRule& rule) override {
    name_group();
    const SplitTable table(rule, size());
    int64_t fingerprint = 0;
    for (const std::vector<int>* list : {&table.group_of, &table.index_in}) {
      for (const int i : *list) fingerprint = (fingerprint * 1'000'003 + i + 7) % 2'147'483'647;
    }
    match(group_->announce_split(fingerprint), "split");
    const auto me = static_cast<size_t>(rank());
    const int color = table.group_of[me];
    auto collectives = group_->collectives().split(color, table.index_in[me]);
    if (collectives == nullptr) return nullptr;
    std::vector<int> world_ranks;
    for (const int r : table.groups[static_cast<size_t>(color)]) {
      world_ranks.push_back(members()[static_cast<size_t>(r)]);
    }
    auto messages = collectives->duplicate();
    auto group = std::make_shared<MpiGroup>(std::move(collectives), std::move(messages),
                                            std::move(world_ranks));
    return std::make_unique<MpiCommunicator>(
        world_, std::move(group), text("split ", num_splits_++, " of ", group_->label()));
  }

 protected:
  bool is_native(const Call& call) const {
    return world_.collectives() == MpiCollectives::kNative && !call.is_point_to_point() &&
           MpiNative::can_run(call);
  }

  void enter(const Call& call) override {
    entry_ = nullptr;
    if (is_native(call)) return CallCommunicator::enter(call);
    if (!call.is_point_to_point()) {
      entry_ = enter_call(call, Counting::kWire);  // the execution books what it sends
    } else if (book() != nullptr) {
      const bool is_own = world_.collectives() != MpiCollectives::kNative;
      enter_call(call, is_own ? Counting::kWire : Counting::kConvention,
                 convention(call, size(), rank()));  // one message: literal
    }
  }

  Work start(const Call& call) override {
    name_group();
    if (call.is_point_to_point()) return pending(std::make_shared<MessageTask>(call, group_));
    if (size() == 1) {
      run_alone(call);
      return {};
    }
    if (!is_native(call))
      return pending(std::make_shared<CollectiveTask>(call, world_, group_, entry_));
    match(group_->announce(call, true), describe(call));
    Call staged = call;
    std::vector<std::byte> staging;
    if (call.verb == Verb::kAllToAll && call.in.count > 0 && call.in.data == call.out.data) {
      staging = copy_of(call.in);
      staged.in.data = staging.data();
    }
    world_.native().run(group_->collectives(), staged);
    return {};
  }

 private:
  void name_group() { group_->set_label(label().empty() ? group_name_ : label()); }

  void match(int64_t sequence, std::string what) {
    const auto task = std::make_shared<MatchTask>(group_, sequence, std::move(what));
    world_.start(task);
    world_.wait(*task);
  }

  Work pending(std::shared_ptr<MpiTask> task) {
    world_.start(task);
    return Work(std::make_unique<TaskWork>(world_, std::move(task)));
  }

  MpiWorld& world_;
  std::shared_ptr<MpiGroup> group_;
  std::string group_name_;  // until it is metered under a label
  AxisLedger* entry_ = nullptr;
  int num_splits_ = 0;
};

/// Says why this rank ends the run. Where all ranks fail the same way, rank 0 is heard and ends the
/// rest.
void report(int rank, const std::string& what) {
  if (rank != 0) std::this_thread::sleep_for(std::chrono::milliseconds(200));
  const std::string who = text("rank ", rank);
  const bool is_named = what.starts_with(who + " ") || what.starts_with(who + ":");
  std::fprintf(stderr, "kuafu: %s%s\n", is_named ? "" : (who + ": ").c_str(), what.c_str());
  std::fflush(stderr);
}

void run_body(MpiWorld& world, const std::function<void(Communicator& world)>& body) {
  std::vector<int> all(static_cast<size_t>(world.channel().size()));
  std::iota(all.begin(), all.end(), 0);
  auto collectives = world.channel().duplicate();
  auto messages = world.channel().duplicate();
  auto group =
      std::make_shared<MpiGroup>(std::move(collectives), std::move(messages), std::move(all));
  {
    MpiCommunicator communicator(world, std::move(group), "world");
    body(communicator);
  }
  world.finish();
}

}  // namespace

void run_on_mpi(const std::function<void(Communicator& world)>& body, MpiCollectives collectives,
                const ExitCodeOf& exit_code) {
  MpiSession session;
  {
    MpiWorld world(collectives);
    try {
      run_body(world, body);
    } catch (const std::exception& e) {
      report(world.channel().rank(), reason_of(e));
      session.abort(exit_code ? exit_code(e) : 1);
    } catch (...) {
      report(world.channel().rank(), "an exception that is no std::exception");
      session.abort(1);
    }
  }
  session.finalize();
}

}  // namespace kuafu
