// SPDX-License-Identifier: Apache-2.0
#include "kuafu/parallel/tensor/product_calls.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "kuafu/comm/call.h"
#include "kuafu/comm/splitting.h"

namespace kuafu {
namespace {

struct Noted {
  std::string axis;
  Verb verb;
  int64_t elements;
};

/// What communicators of a world share.
struct World {
  Place place = Place::kMeta;
  std::vector<Noted> calls = {};
  std::string marked = {};
  bool is_untold = false;
  /// What rank 0 broadcast, by axis and elements.
  std::map<std::pair<std::string, int64_t>, double> sent = {};
};

class NotingCommunicator final : public CallCommunicator {
 public:
  NotingCommunicator(World& world, std::vector<int> members, int index)
      : world_(world), members_(std::move(members)), index_(index) {}

  std::string_view name() const override { return "noting"; }
  int rank() const override { return index_; }
  int size() const override { return static_cast<int>(members_.size()); }
  const std::vector<int>& members() const override { return members_; }

  std::unique_ptr<Communicator> split(const SplitRule& rule) override {
    const SplitTable table(rule, size());
    const auto me = static_cast<size_t>(index_);
    if (table.group_of[me] < 0) return nullptr;
    std::vector<int> group = table.groups[static_cast<size_t>(table.group_of[me])];
    for (int& r : group) r = members_[static_cast<size_t>(r)];
    return std::make_unique<NotingCommunicator>(world_, std::move(group), table.index_in[me]);
  }

 protected:
  Takes takes() const override {
    return world_.place == Place::kMeta ? Takes::kMeta : Takes::kHost;
  }
  void enter(const Call& call) override {
    if (size() > 1) world_.calls.push_back({label(), call.verb, call.count()});
  }
  Work start(const Call& call) override {
    if (world_.place == Place::kHost && call.verb != Verb::kBarrier) play(call);
    return {};
  }

 private:
  /// All ranks hold what this one does. The reduced buffer of a rank that is not the root says nothing.
  void play(const Call& call) {
    if (call.verb == Verb::kSend || call.verb == Verb::kRecv || call.dtype() != DType::kF64) {
      world_.is_untold = true;
      return;
    }
    if (call.verb == Verb::kBroadcast && call.root != index_) {
      receive(call);
      return;
    }
    double factor = 1;
    if (call.reduces() && call.op == ReduceOp::kSum) {
      factor = size() * (size() > 1 && label() == world_.marked ? 2 : 1);
    }
    if (call.verb == Verb::kBroadcast) {
      if (call.in.count > 0)
        world_.sent[{label(), call.in.count}] = *static_cast<const double*>(call.in.data);
      return;
    }
    auto* out = static_cast<double*>(call.out.data);
    const auto* in = static_cast<const double*>(call.in.data);
    for (int64_t i = 0; i < call.out.count && call.in.count > 0; ++i) {
      out[i] = factor * in[i % call.in.count];
    }
  }

  /// Another rank's broadcast: what this one sent when it was the root of as many elements.
  void receive(const Call& call) {
    const auto sent = world_.sent.find({label(), call.out.count});
    world_.is_untold = world_.is_untold || sent == world_.sent.end();
    auto* out = static_cast<double*>(call.out.data);
    std::fill(out, out + call.out.count, sent == world_.sent.end() ? 0 : sent->second);
  }

  World& world_;
  std::vector<int> members_;
  int index_;
};

}  // namespace

MarkedExtents::MarkedExtents(const std::vector<Axis>& axes) {
  int64_t ranks = 1;
  for (const Axis& axis : axes) ranks *= axis.size;
  int64_t prime = 2;
  const auto is_free = [&] {
    for (int64_t d = 2; d * d <= prime; ++d) {
      if (prime % d == 0) return false;
    }
    return ranks % prime != 0;
  };
  for (const char letter : {'B', 'S', 'K', 'M'}) {
    do ++prime;
    while (!is_free());
    prime_[letter] = prime;
    extent_[letter] = prime * ranks;
  }
}

struct NotingWorld::Notes {
  World shared;
  Ledger ledger;
  std::unique_ptr<Communicator> world;
};

NotingWorld::NotingWorld(const std::vector<Axis>& axes, Place place)
    : notes_(std::make_unique<Notes>()), mesh_(std::make_unique<Mesh>(axes, 0)) {
  std::vector<int> all(static_cast<size_t>(mesh_->num_ranks()));
  std::iota(all.begin(), all.end(), 0);
  notes_->shared.place = place;
  notes_->world = std::make_unique<NotingCommunicator>(notes_->shared, std::move(all), 0);
  mesh_->connect(*notes_->world, &notes_->ledger);
}

NotingWorld::~NotingWorld() { mesh_.reset(); }

std::vector<std::string> NotingWorld::names() const {
  std::vector<std::string> names;
  for (const Axis& axis : mesh_->axes()) names.push_back(axis.name);
  return names;
}

bool NotingWorld::has(const std::string& axis) const {
  const std::vector<std::string> all = names();
  return std::find(all.begin(), all.end(), axis) != all.end();
}

void NotingWorld::clear() {
  notes_->shared.calls.clear();
  notes_->shared.is_untold = false;
  notes_->shared.sent.clear();
}
void NotingWorld::mark(const std::string& axis) { notes_->shared.marked = axis; }
bool NotingWorld::is_untold() const { return notes_->shared.is_untold; }

ProductCalls NotingWorld::calls(const MarkedExtents& extents, const std::string& left,
                                const std::string& right, const std::string& out) const {
  ProductCalls found;
  for (const Noted& call : notes_->shared.calls) {
    if (call.verb == Verb::kBarrier) continue;
    const auto is_of = [&](const std::string& letters) {
      const std::string all = "BSKM";
      return std::all_of(all.begin(), all.end(), [&](char letter) {
        return extents.has(letter, call.elements) == (letters.find(letter) != std::string::npos);
      });
    };
    OperandCalls* of = is_of(left)    ? &found.left
                       : is_of(right) ? &found.right
                       : is_of(out)   ? &found.out
                                      : nullptr;
    if (of == nullptr) {
      found.unknown.insert(call.axis);
      continue;
    }
    const Verb verb = call.verb;
    const bool is_sum =
        verb == Verb::kReduce || verb == Verb::kAllReduce || verb == Verb::kReduceScatter;
    const bool is_either = verb == Verb::kSend || verb == Verb::kRecv || verb == Verb::kSendRecv;
    if (is_sum || is_either) of->summed.insert(call.axis);
    if (!is_sum) of->moved.insert(call.axis);
    if (verb == Verb::kAllGather || verb == Verb::kReduceScatter) of->in_runs.insert(call.axis);
  }
  return found;
}

}  // namespace kuafu
