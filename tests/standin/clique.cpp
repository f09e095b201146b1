// SPDX-License-Identifier: Apache-2.0
#include "tests/standin/clique.h"

#include <algorithm>
#include <cstring>
#include <tuple>

#include "tests/standin/sums.h"

namespace kuafu::standin {

namespace {

// A connection of all with all, beside those of a sender with a receiver.
constexpr std::pair<int, int> kAll = {-1, -1};

}  // namespace

MemberPtr Clique::join(const std::shared_ptr<Clique>& self, int rank, bool blocks) {
  const Lock lock(mutex_);
  const auto mine = std::make_shared<Member>(Member{self, rank, blocks});
  members_.push_back(mine);
  if (std::ssize(members_) == size_) {
    for (const MemberPtr& m : members()) m->state = ncclSuccess;
    changed_.notify_all();
  }
  return mine;
}

void Clique::split(const MemberPtr& member, int color, int key,
                   std::function<void(MemberPtr)> fill) {
  const Lock lock(mutex_);
  member->state = ncclInProgress;
  const int number = member->num_splits++;
  std::vector<Splitter>& all = splits_[number];
  all.push_back({member, color, key, std::move(fill)});
  if (std::ssize(all) < size_) return;
  finish_split(all);
  splits_.erase(number);
  changed_.notify_all();
}

void Clique::finish_split(std::vector<Splitter>& all) {
  std::sort(all.begin(), all.end(), [](const Splitter& a, const Splitter& b) {
    return std::tuple(a.color, a.key, a.member->rank) < std::tuple(b.color, b.key, b.member->rank);
  });
  for (auto first = all.begin(); first != all.end();) {
    const auto last =
        std::find_if(first, all.end(), [&](const Splitter& s) { return s.color != first->color; });
    const auto child = std::make_shared<Clique>(static_cast<int>(last - first));
    for (int rank = 0; first != last; ++first, ++rank) {
      first->fill(first->color < 0 ? nullptr : child->join(child, rank, first->member->blocks));
      first->member->state = ncclSuccess;
    }
  }
}

// Begins the launch, and those of others that it lets begin.
void Clique::connect(Launch launch) {
  const Lock lock(mutex_);
  const MemberPtr member = launch.member;
  member->state = ncclInProgress;
  for (const auto& need : launch.needs) {
    auto& ends = offered_[need];
    ends.insert(member->rank);
    const int all = need == kAll ? size_ : need.first == need.second ? 1 : 2;
    if (std::ssize(ends) == all) made_.insert(need);
  }
  launches_.push_back(std::move(launch));
  std::erase_if(launches_, [&](const Launch& l) {
    const bool is_there = std::includes(made_.begin(), made_.end(), l.needs.begin(), l.needs.end());
    if (is_there) {
      l.queue->push(l.task);
      l.member->state = ncclSuccess;
    }
    return is_there;
  });
  changed_.notify_all();
}

void Clique::start_collective(const MemberPtr& member, const std::shared_ptr<Queue>& queue,
                              const CollectiveCall& call) {
  const int64_t number = member->num_collectives++;
  connect({member, {kAll}, queue, [this, member, number, call] {
             run_collective(member, number, call);
           }});
}

void Clique::start_messages(const MemberPtr& member, const std::shared_ptr<Queue>& queue,
                            std::vector<Transfer> transfers) {
  std::set<std::pair<int, int>> needs;
  for (const Transfer& t : transfers) needs.emplace(t.from, t.to);
  connect({member, needs, queue,
           [this, member, transfers = std::move(transfers)] { run_messages(member, transfers); }});
}

// On the stream's thread: whoever comes last does it all.
void Clique::run_collective(const MemberPtr& member, int64_t number, const CollectiveCall& call) {
  Lock lock(mutex_);
  auto& slot = meetings_[number];
  if (slot == nullptr) slot = std::make_shared<Meeting>();
  const auto meeting = slot;
  if (!meeting->calls.empty() && !meeting->calls.begin()->second.matches(call)) {
    meeting->is_dead = true;
  }
  meeting->calls.emplace(member->rank, call);
  if (!meeting->is_dead && !member->is_aborted && std::ssize(meeting->calls) == size_) {
    std::vector<CollectiveCall> calls;
    for (const auto& [rank, c] : meeting->calls) calls.push_back(c);
    run(calls);
    meeting->is_done = true;
    meetings_.erase(number);
    changed_.notify_all();
  }
  changed_.wait(lock, [&] { return meeting->is_done || member->is_aborted; });
  if (!meeting->is_done) meeting->is_dead = true;
}

// On the stream's thread. All go on together; each pair's in the order of the calls.
void Clique::run_messages(const MemberPtr& member, const std::vector<Transfer>& transfers) {
  Lock lock(mutex_);
  std::vector<std::shared_ptr<Post>> posts;
  const auto post = [&](const Transfer& t) {
    const bool sends = t.sends;
    auto& others = (sends ? expected_ : sent_)[{t.from, t.to}];
    posts.push_back(std::make_shared<Post>(Post{t}));
    const auto mine = posts.back();
    if (others.empty()) return (sends ? sent_ : expected_)[{t.from, t.to}].push_back(mine);
    const auto other = others.front();
    if (other->is_dead || other->transfer.bytes != t.bytes) return;  // stuck
    others.pop_front();
    std::memmove(sends ? other->transfer.data : t.data, sends ? t.data : other->transfer.data,
                 t.bytes);
    mine->is_matched = other->is_matched = true;
    changed_.notify_all();
  };
  for (const Transfer& t : transfers) post(t);
  if (!member->is_aborted) {
    changed_.wait(lock, [&] {
      return member->is_aborted ||
             std::all_of(posts.begin(), posts.end(), [](const auto& p) { return p->is_matched; });
    });
  }
  for (const auto& p : posts) p->is_dead = !p->is_matched;
}

std::vector<MemberPtr> Clique::members() const {
  std::vector<MemberPtr> all;
  for (const auto& weak : members_) {
    if (auto m = weak.lock()) all.push_back(std::move(m));
  }
  return all;
}

ncclResult_t Clique::settle(const MemberPtr& member) {
  Lock lock(mutex_);
  if (!member->blocks) return member->state;
  changed_.wait(lock, [&] { return member->state != ncclInProgress || member->is_aborted; });
  return member->state;
}

ncclResult_t Clique::state_of(const MemberPtr& member) {
  const Lock lock(mutex_);
  return member->state;
}

void Clique::abort(const MemberPtr& member) {
  const Lock lock(mutex_);
  member->is_aborted = true;
  std::erase_if(launches_, [&](const Launch& l) { return l.member == member; });
  changed_.notify_all();
}

void Clique::abort_all() {
  const Lock lock(mutex_);
  for (const MemberPtr& m : members()) m->is_aborted = true;
  launches_.clear();
  splits_.clear();
  changed_.notify_all();
}

}  // namespace kuafu::standin
