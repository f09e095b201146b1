// SPDX-License-Identifier: Apache-2.0
#include "experiments/micro/step/watched_world.h"

#include <time.h>

#include <utility>

namespace kuafu {
namespace {

double seconds_of(clockid_t clock) {
  timespec t{};
  clock_gettime(clock, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

/// A group, or the world itself, whose calls are watched.
class Watched : public Communicator {
 public:
  Watched(Communicator& inner, CommWatch& watch) : inner_(inner), watch_(watch) {}
  Watched(std::unique_ptr<Communicator> owned, CommWatch& watch)
      : owned_(std::move(owned)), inner_(*owned_), watch_(watch) {}

  std::string_view name() const override { return inner_.name(); }
  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }
  const std::vector<int>& members() const override { return inner_.members(); }
  std::unique_ptr<Communicator> split(const SplitRule& rule) override {
    auto group = inner_.split(rule);
    return group ? std::make_unique<Watched>(std::move(group), watch_) : nullptr;
  }

  Work broadcast(Buffer b, int root) override {
    return make(Verb::kBroadcast, b, [&] { return inner_.broadcast(b, root); });
  }
  Work reduce(Buffer b, int root, ReduceOp op) override {
    return make(Verb::kReduce, b, [&] { return inner_.reduce(b, root, op); });
  }
  Work all_reduce(Buffer b, ReduceOp op) override {
    return make(Verb::kAllReduce, b, [&] { return inner_.all_reduce(b, op); });
  }
  Work all_gather(Buffer out, Buffer in) override {
    return make(Verb::kAllGather, out, [&] { return inner_.all_gather(out, in); });
  }
  Work reduce_scatter(Buffer out, Buffer in, ReduceOp op) override {
    return make(Verb::kReduceScatter, in, [&] { return inner_.reduce_scatter(out, in, op); });
  }
  Work all_to_all(Buffer out, Buffer in, const Splits& splits) override {
    return make(Verb::kAllToAll, in, [&] { return inner_.all_to_all(out, in, splits); });
  }
  Work send(Buffer b, int to, int tag) override {
    return make(Verb::kSend, b, [&] { return inner_.send(b, to, tag); });
  }
  Work recv(Buffer b, int from, int tag) override {
    return make(Verb::kRecv, b, [&] { return inner_.recv(b, from, tag); });
  }
  Work send_recv(Buffer out, int to, Buffer in, int from, int tag) override {
    return make(Verb::kSendRecv, in, [&] { return inner_.send_recv(out, to, in, from, tag); });
  }
  void barrier() override { inner_.barrier(); }

 private:
  template <class Call>
  Work make(Verb verb, const Buffer& b, const Call& call) {
    // Bytes are booked where the wire is, under the name this group has here.
    if (inner_.ledger() != ledger()) inner_.meter(ledger(), label());
    const double cpu = thread_cpu_now(), wall = wall_now();
    call().wait_host();
    if (!watch_.is_on) return {};
    watch_.cpu_s += thread_cpu_now() - cpu;
    watch_.wall_s += wall_now() - wall;
    ++watch_.calls[{label(), verb, b.bytes()}];
    return {};
  }

  std::unique_ptr<Communicator> owned_;
  Communicator& inner_;
  CommWatch& watch_;
};

}  // namespace

double thread_cpu_now() { return seconds_of(CLOCK_THREAD_CPUTIME_ID); }
double wall_now() { return seconds_of(CLOCK_MONOTONIC); }

std::unique_ptr<Communicator> watched(Communicator& world, CommWatch& watch) {
  return std::make_unique<Watched>(world, watch);
}

}  // namespace kuafu
