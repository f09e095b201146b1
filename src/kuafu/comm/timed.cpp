// SPDX-License-Identifier: Apache-2.0
#include "kuafu/comm/timed.h"

#include <chrono>
#include <utility>

namespace kuafu {
namespace {

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// Waits for the inner work and tells how long that took.
class TimedWork : public PendingWork {
 public:
  TimedWork(Work inner, CallObserver& observer, std::string axis, Verb verb)
      : inner_(std::move(inner)), observer_(observer), axis_(std::move(axis)), verb_(verb) {}

  void wait() override {
    const double start = seconds_now();
    inner_.wait();
    observer_.note(axis_, verb_, start, seconds_now());
  }
  void wait_host() override {
    const double start = seconds_now();
    inner_.wait_host();
    observer_.note(axis_, verb_, start, seconds_now());
  }
  bool test() override { return inner_.test(); }

 private:
  Work inner_;
  CallObserver& observer_;
  std::string axis_;
  Verb verb_;
};

class TimedCommunicator final : public Communicator {
 public:
  TimedCommunicator(Communicator& inner, CallObserver& observer)
      : inner_(&inner), observer_(observer) {}
  TimedCommunicator(std::unique_ptr<Communicator> inner, CallObserver& observer)
      : owned_(std::move(inner)), inner_(owned_.get()), observer_(observer) {}

  std::string_view name() const override { return inner_->name(); }
  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  const std::vector<int>& members() const override { return inner_->members(); }

  std::unique_ptr<Communicator> split(const SplitRule& rule) override {
    std::unique_ptr<Communicator> group = inner_->split(rule);
    if (group == nullptr) return nullptr;
    return std::make_unique<TimedCommunicator>(std::move(group), observer_);
  }

  Work broadcast(Buffer b, int root) override {
    return tell(Verb::kBroadcast, [&] { return inner_->broadcast(b, root); });
  }
  Work reduce(Buffer b, int root, ReduceOp op) override {
    return tell(Verb::kReduce, [&] { return inner_->reduce(b, root, op); });
  }
  Work all_reduce(Buffer b, ReduceOp op) override {
    return tell(Verb::kAllReduce, [&] { return inner_->all_reduce(b, op); });
  }
  Work all_gather(Buffer out, Buffer in) override {
    return tell(Verb::kAllGather, [&] { return inner_->all_gather(out, in); });
  }
  Work reduce_scatter(Buffer out, Buffer in, ReduceOp op) override {
    return tell(Verb::kReduceScatter, [&] { return inner_->reduce_scatter(out, in, op); });
  }
  Work all_to_all(Buffer out, Buffer in, const Splits& splits) override {
    return tell(Verb::kAllToAll, [&] { return inner_->all_to_all(out, in, splits); });
  }
  Work send(Buffer b, int to, int tag) override {
    return tell(Verb::kSend, [&] { return inner_->send(b, to, tag); });
  }
  Work recv(Buffer b, int from, int tag) override {
    return tell(Verb::kRecv, [&] { return inner_->recv(b, from, tag); });
  }
  Work send_recv(Buffer out, int to, Buffer in, int from, int tag) override {
    return tell(Verb::kSendRecv, [&] { return inner_->send_recv(out, to, in, from, tag); });
  }
  bool set_turns(bool takes_turns) override { return inner_->set_turns(takes_turns); }
  void barrier() override {
    tell(Verb::kBarrier, [&] {
      inner_->barrier();
      return Work();
    });
  }

 private:
  template <class Start>
  Work tell(Verb verb, const Start& start) {
    // meter() sets this object; the group itself does the booking.
    if (inner_->ledger() != ledger() || inner_->label() != label()) {
      inner_->meter(ledger(), label());
    }
    const double begin = seconds_now();
    Work work = start();
    observer_.note(label(), verb, begin, seconds_now());
    if (!work.is_pending()) return work;
    return Work(std::make_unique<TimedWork>(std::move(work), observer_, label(), verb));
  }

  std::unique_ptr<Communicator> owned_;
  Communicator* inner_;
  CallObserver& observer_;
};

}  // namespace

std::unique_ptr<Communicator> timed(Communicator& group, CallObserver& observer) {
  return std::make_unique<TimedCommunicator>(group, observer);
}

}  // namespace kuafu
