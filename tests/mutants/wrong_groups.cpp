// SPDX-License-Identifier: Apache-2.0
//
// Communicators that spoil results.

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "kuafu/base/errors.h"
#include "tests/mutants/mutant.h"

namespace kuafu::tests {
namespace {

using Bytes = std::vector<std::byte>;
using Count = std::shared_ptr<std::atomic<int64_t>>;

Bytes bytes_of(const Buffer& b) {
  Bytes bytes(static_cast<size_t>(b.bytes()));
  if (!bytes.empty()) std::memcpy(bytes.data(), b.data, bytes.size());
  return bytes;
}

void put(const Buffer& b, const Bytes& bytes) {
  KUAFU_CHECK(static_cast<size_t>(b.bytes()) == bytes.size(), "sizes differ");
  if (!bytes.empty()) std::memcpy(b.data, bytes.data(), bytes.size());
}

/// A call under way whose result is spoilt once it is there.
class LaterWork final : public PendingWork {
 public:
  LaterWork(Work work, std::function<void()> then)
      : work_(std::move(work)), then_(std::move(then)) {}
  void wait() override {
    work_.wait_host();
    then_();
  }
  bool test() override { return work_.test(); }

 private:
  Work work_;
  std::function<void()> then_;
};

/// A group whose matching calls give wrong results.
class SpoilingGroup : public Communicator {
 public:
  SpoilingGroup(std::unique_ptr<Communicator> inner, CommFault fault, Count met, Count fired,
                int depth = 0)
      : inner_(std::move(inner)),
        fault_(std::move(fault)),
        met_(std::move(met)),
        fired_(std::move(fired)),
        depth_(depth) {}

  std::string_view name() const override { return inner_->name(); }
  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  const std::vector<int>& members() const override { return inner_->members(); }
  std::unique_ptr<Communicator> split(const SplitRule& rule) override {
    auto group = inner_->split(rule);
    if (group == nullptr) return nullptr;
    return std::make_unique<SpoilingGroup>(std::move(group), fault_, met_, fired_, depth_ + 1);
  }

  Work broadcast(Buffer b, int root) override {
    // What a rank that is not reached would hold is left over from before: here, nothing.
    const Bytes local = rank() == root ? bytes_of(b) : Bytes(static_cast<size_t>(b.bytes()));
    inner_->broadcast(b, root).wait_host();
    if (is_hit(Verb::kBroadcast)) spoil(b, local, local);
    remember(Verb::kBroadcast, b);
    return {};
  }
  Work reduce(Buffer b, int root, ReduceOp op) override {
    const Bytes local = bytes_of(b);
    const bool is_hit_here = is_hit(Verb::kReduce);
    inner_->reduce(b, root, is_hit_here ? changed(op) : op).wait_host();
    if (is_hit_here && rank() == root) spoil(b, local, local);
    remember(Verb::kReduce, b);
    return {};
  }
  Work all_reduce(Buffer b, ReduceOp op) override {
    const Bytes local = bytes_of(b);
    const bool is_of_them = b.count >= fault_.least_f64 && b.dtype == DType::kF64;
    bool is_hit_here = (fault_.least_f64 == 0 || is_of_them) && is_hit(Verb::kAllReduce);
    if (is_hit_here && fault_.of_sums && op != ReduceOp::kSum) {
      is_hit_here = false;
      ++fault_.at;
    }
    inner_->all_reduce(b, is_hit_here ? changed(op) : op).wait_host();
    if (is_hit_here) spoil(b, local, local);
    remember(Verb::kAllReduce, b);
    return {};
  }
  Work all_gather(Buffer out, Buffer in) override {
    Bytes repeated;
    const Bytes local = bytes_of(in);
    for (int r = 0; r < size(); ++r) repeated.insert(repeated.end(), local.begin(), local.end());
    inner_->all_gather(out, in).wait_host();
    if (is_hit(Verb::kAllGather)) spoil(out, repeated, repeated);
    remember(Verb::kAllGather, out);
    return {};
  }
  Work reduce_scatter(Buffer out, Buffer in, ReduceOp op) override {
    const Bytes local = bytes_of(in.range(rank() * out.count, out.count));
    const bool is_hit_here = is_hit(Verb::kReduceScatter);
    inner_->reduce_scatter(out, in, is_hit_here ? changed(op) : op).wait_host();
    if (is_hit_here) spoil(out, local, local);
    remember(Verb::kReduceScatter, out);
    return {};
  }
  Work all_to_all(Buffer out, Buffer in, const Splits& splits) override {
    // Not made: every part stays where it was, or, where parts differ in size, what was there.
    const Bytes local = bytes_of(in.bytes() == out.bytes() ? in : out);
    inner_->all_to_all(out, in, splits).wait_host();
    if (is_hit(Verb::kAllToAll)) spoil(out, local, local);
    remember(Verb::kAllToAll, out);
    return {};
  }
  Work send(Buffer b, int to, int tag) override { return inner_->send(b, to, tag); }
  // Messages stay under way: algorithms and schedules post them long before they wait.
  Work recv(Buffer b, int from, int tag) override {
    // What never came is what the memory held before: here, nothing.
    return later(inner_->recv(b, from, tag), Verb::kRecv, b, Bytes(static_cast<size_t>(b.bytes())));
  }
  Work send_recv(Buffer out, int to, Buffer in, int from, int tag) override {
    // Not made: what I would have passed on stays, or, where sizes differ, nothing is there.
    Bytes local =
        out.bytes() == in.bytes() ? bytes_of(out) : Bytes(static_cast<size_t>(in.bytes()));
    return later(inner_->send_recv(out, to, in, from, tag), Verb::kSendRecv, in, std::move(local));
  }
  void barrier() override { inner_->barrier(); }

 private:
  /// Counts a call; true where this one is to be spoilt. The same on all ranks of the group, so
  /// that a changed operation matches.
  bool is_hit(Verb verb) {
    if (verb != fault_.verb || label() != fault_.axis || depth_ != fault_.depth) return false;
    ++calls_;
    return fault_.at == 0 || calls_ == fault_.at;
  }
  Work later(Work work, Verb verb, const Buffer& b, Bytes local) {
    const bool is_hit_here = is_hit(verb);
    return Work(std::make_unique<LaterWork>(std::move(work),
                                            [this, verb, b, local = std::move(local), is_hit_here] {
                                              if (is_hit_here) spoil(b, local, local);
                                              remember(verb, b);
                                            }));
  }
  ReduceOp changed(ReduceOp op) const {
    return fault_.action == CommFault::Action::kMaximum ? ReduceOp::kMax : op;
  }
  void spoil(const Buffer& b, const Bytes& local, const Bytes& dropped) {
    if (fault_.rank >= 0 && fault_.rank != rank()) return;
    ++*met_;
    const Bytes before = bytes_of(b);
    switch (fault_.action) {
      case CommFault::Action::kDrop:
        put(b, dropped);
        break;
      case CommFault::Action::kScale:
        scale(b);
        break;
      case CommFault::Action::kStale:
        if (const auto found = last_.find(b.bytes()); found != last_.end()) put(b, found->second);
        break;
      case CommFault::Action::kMaximum:
        *fired_ += before != local;  // the wire did it
        return;
      case CommFault::Action::kSwapParts:
        swap_parts(b);
        break;
    }
    *fired_ += bytes_of(b) != before;
  }
  void swap_parts(const Buffer& b) const {
    Bytes bytes = bytes_of(b);
    const auto part = static_cast<std::ptrdiff_t>(bytes.size()) / size();
    std::swap_ranges(bytes.begin(), bytes.begin() + part, bytes.begin() + part);
    put(b, bytes);
  }
  void scale(const Buffer& b) const {
    KUAFU_CHECK(b.dtype == DType::kF64 || b.dtype == DType::kF32, "only f64 and f32 are scaled");
    for (int64_t i = 0; i < b.count; ++i) {
      if (b.dtype == DType::kF64) {
        static_cast<double*>(b.data)[i] *= fault_.factor;
      } else {
        static_cast<float*>(b.data)[i] *= static_cast<float>(fault_.factor);
      }
    }
  }
  void remember(Verb verb, const Buffer& b) {
    if (fault_.action == CommFault::Action::kStale && verb == fault_.verb) {
      last_[b.bytes()] = bytes_of(b);
    }
  }

  std::unique_ptr<Communicator> inner_;
  CommFault fault_;
  Count met_, fired_;
  int depth_;
  int64_t calls_ = 0;
  std::map<int64_t, Bytes> last_;  // by size
};

/// A world whose groups are spoilt: all that a mesh makes of it. Calls on the world itself, which
/// the certificate uses for its verdict, are left alone.
class SpoilingWorld : public Communicator {
 public:
  using Groups = std::function<std::unique_ptr<Communicator>(Communicator&, const SplitRule&)>;
  SpoilingWorld(Communicator& inner, Groups groups) : inner_(inner), groups_(std::move(groups)) {}

  std::string_view name() const override { return inner_.name(); }
  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }
  const std::vector<int>& members() const override { return inner_.members(); }
  std::unique_ptr<Communicator> split(const SplitRule& rule) override {
    return groups_(inner_, rule);
  }
  Work broadcast(Buffer b, int root) override { return inner_.broadcast(b, root); }
  Work reduce(Buffer b, int root, ReduceOp op) override { return inner_.reduce(b, root, op); }
  Work all_reduce(Buffer b, ReduceOp op) override { return inner_.all_reduce(b, op); }
  Work all_gather(Buffer out, Buffer in) override { return inner_.all_gather(out, in); }
  Work reduce_scatter(Buffer out, Buffer in, ReduceOp op) override {
    return inner_.reduce_scatter(out, in, op);
  }
  Work all_to_all(Buffer out, Buffer in, const Splits& splits) override {
    return inner_.all_to_all(out, in, splits);
  }
  Work send(Buffer b, int to, int tag) override { return inner_.send(b, to, tag); }
  Work recv(Buffer b, int from, int tag) override { return inner_.recv(b, from, tag); }
  Work send_recv(Buffer out, int to, Buffer in, int from, int tag) override {
    return inner_.send_recv(out, to, in, from, tag);
  }
  void barrier() override { inner_.barrier(); }

 private:
  Communicator& inner_;
  Groups groups_;
};

}  // namespace

void set_fault(Mutant& m, const CommFault& fault) {
  m.wrap_world = [fault, met = m.met,
                  fired = m.fired](Communicator& world) -> std::unique_ptr<Communicator> {
    return std::make_unique<SpoilingWorld>(world, [=](Communicator& inner, const SplitRule& rule) {
      return std::make_unique<SpoilingGroup>(inner.split(rule), fault, met, fired);
    });
  };
}

void set_fault(Mutant& m, const PlaceFault& fault) {
  m.wrap_world = [fault, fired = m.fired](Communicator& world) -> std::unique_ptr<Communicator> {
    return std::make_unique<SpoilingWorld>(world, [=](Communicator& inner, const SplitRule& rule) {
      ++*fired;
      return inner.split([rule, fault](int rank) {
        return rule(rank == fault.first ? fault.second : rank == fault.second ? fault.first : rank);
      });
    });
  };
}

}  // namespace kuafu::tests
