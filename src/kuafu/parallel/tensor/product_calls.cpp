// SPDX-License-Identifier: Apache-2.0
#include "kuafu/parallel/tensor/product_calls.h"

#include <algorithm>
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

class NotingCommunicator final : public CallCommunicator {
 public:
  NotingCommunicator(std::vector<Noted>& notes, std::vector<int> members, int index)
      : notes_(notes), members_(std::move(members)), index_(index) {}

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
    return std::make_unique<NotingCommunicator>(notes_, std::move(group), table.index_in[me]);
  }

 protected:
  Place place() const override { return Place::kMeta; }
  void enter(const Call& call) override {
    if (size() > 1) notes_.push_back({label(), call.verb, call.count()});
  }
  Work start(const Call&) override { return {}; }

 private:
  std::vector<Noted>& notes_;
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
  std::vector<Noted> calls;
  Ledger ledger;
  std::unique_ptr<Communicator> world;
};

NotingWorld::NotingWorld(const std::vector<Axis>& axes)
    : notes_(std::make_unique<Notes>()), mesh_(std::make_unique<Mesh>(axes, 0)) {
  std::vector<int> all(static_cast<size_t>(mesh_->num_ranks()));
  std::iota(all.begin(), all.end(), 0);
  notes_->world = std::make_unique<NotingCommunicator>(notes_->calls, std::move(all), 0);
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

void NotingWorld::clear() { notes_->calls.clear(); }

ProductCalls NotingWorld::calls(const MarkedExtents& extents, const std::string& left,
                                const std::string& right, const std::string& out) const {
  ProductCalls found;
  for (const Noted& call : notes_->calls) {
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
