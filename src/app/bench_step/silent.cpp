// SPDX-License-Identifier: Apache-2.0
#include "app/bench_step/silent.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

namespace kuafu {
namespace {

class Silent : public Communicator {
 public:
  Silent(std::vector<int> members, int index, std::function<void()> at_receive)
      : members_(std::move(members)), index_(index), at_receive_(std::move(at_receive)) {}

  std::string_view name() const override { return "silent"; }
  int rank() const override { return index_; }
  int size() const override { return static_cast<int>(members_.size()); }
  const std::vector<int>& members() const override { return members_; }

  std::unique_ptr<Communicator> split(const SplitRule& rule) override {
    const SplitKey mine = rule(index_);
    if (mine.color < 0) return nullptr;
    std::vector<std::pair<int, int>> order;  // key, index
    for (int i = 0; i < size(); ++i) {
      const SplitKey key = rule(i);
      if (key.color == mine.color) order.emplace_back(key.key, i);
    }
    std::sort(order.begin(), order.end());
    std::vector<int> members;
    int index = 0;
    for (const auto& [key, i] : order) {
      if (i == index_) index = static_cast<int>(members.size());
      members.push_back(members_[static_cast<size_t>(i)]);
    }
    return std::make_unique<Silent>(std::move(members), index, at_receive_);
  }

  Work broadcast(Buffer b, int root) override {
    if (root != index_) clear(b);
    return {};
  }
  Work reduce(Buffer, int, ReduceOp) override { return {}; }
  Work all_reduce(Buffer, ReduceOp) override { return {}; }
  Work all_gather(Buffer out, Buffer in) override {
    for (int i = 0; i < size(); ++i) copy(out.part(i, size()), in);
    return {};
  }
  Work reduce_scatter(Buffer out, Buffer in, ReduceOp) override {
    copy(out, in.part(index_, size()));
    return {};
  }
  Work all_to_all(Buffer out, Buffer in, const Splits&) override {
    copy(out, in.range(0, std::min(in.count, out.count)));
    clear(out.range(std::min(in.count, out.count), out.count - std::min(in.count, out.count)));
    return {};
  }
  Work send(Buffer, int, int) override { return {}; }
  Work recv(Buffer b, int, int) override {
    at_receive_();
    clear(b);
    return {};
  }
  Work send_recv(Buffer out, int, Buffer in, int, int) override {
    if (in.count == out.count) {
      copy(in, out);
    } else {
      clear(in);
    }
    return {};
  }
  void barrier() override {}

 private:
  static void copy(const Buffer& to, const Buffer& from) {
    if (to.data != from.data) std::memmove(to.data, from.data, static_cast<size_t>(from.bytes()));
  }
  static void clear(const Buffer& b) {
    if (b.count > 0) std::memset(b.data, 0, static_cast<size_t>(b.bytes()));
  }

  std::vector<int> members_;
  int index_;
  std::function<void()> at_receive_;
};

}  // namespace

std::unique_ptr<Communicator> make_silent(int rank, int size, std::function<void()> at_receive) {
  std::vector<int> members(static_cast<size_t>(size));
  std::iota(members.begin(), members.end(), 0);
  return std::make_unique<Silent>(std::move(members), rank, std::move(at_receive));
}

}  // namespace kuafu
