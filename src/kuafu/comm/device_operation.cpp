// SPDX-License-Identifier: Apache-2.0
#include "kuafu/comm/device_operation.h"

namespace kuafu {
namespace {

/// The calls of one operation, slice by slice.
class Slices {
 public:
  Slices(const std::vector<Call>& calls, device::StreamView stream)
      : calls_(calls), stream_(stream) {}

  void run() {
    const Call& any = calls_.front();
    const int64_t n = std::ssize(calls_);
    switch (any.verb) {
      case Verb::kBarrier:
        return;
      case Verb::kBroadcast:
        return copy_to_all(call(any.root).in, 0);
      case Verb::kReduce:
        return reduce(0, any.count(), {call(any.root).out});
      case Verb::kAllReduce:
        return reduce(0, any.count(), outputs());
      case Verb::kAllGather:
        for (int64_t i = 0; i < n; ++i) copy_to_all(call(i).in, i * call(i).in.count);
        return;
      case Verb::kReduceScatter:
        for (int64_t i = 0; i < n; ++i) {
          reduce(i * call(i).out.count, call(i).out.count, {call(i).out});
        }
        return;
      case Verb::kAllToAll:
        return all_to_all();
      default:  // a message
        device::copy(call(1).out.data, call(0).in.data, call(0).in.bytes(), stream_);
    }
  }

 private:
  const Call& call(int64_t index) const { return calls_[static_cast<size_t>(index)]; }

  std::vector<Buffer> outputs() const {
    std::vector<Buffer> all;
    for (const Call& c : calls_) all.push_back(c.out);
    return all;
  }

  /// Everybody's elements from `first` on, combined, to the start of each of `into`.
  void reduce(int64_t first, int64_t count, const std::vector<Buffer>& into) const {
    std::vector<const void*> from;
    std::vector<void*> to;
    for (const Call& c : calls_) from.push_back(c.in.range(first, count).data);
    for (const Buffer& b : into) to.push_back(b.data);
    device::combine(calls_.front().dtype(), on_device(calls_.front().op), from, to, count, stream_);
  }

  /// One rank's part into everybody's whole, at element `first`.
  void copy_to_all(const Buffer& part, int64_t first) const {
    const void* const from = part.data;
    std::vector<void*> to;
    for (const Call& c : calls_) {
      void* const place = c.out.range(first, part.count).data;
      if (place != from) to.push_back(place);
    }
    device::combine(part.dtype, device::Combine::kSum, {&from, 1}, to, part.count, stream_);
  }

  void all_to_all() const {
    std::vector<int64_t> received(calls_.size(), 0);
    for (const Call& sender : calls_) {
      int64_t sent = 0;
      for (size_t j = 0; j < calls_.size(); ++j) {
        const int64_t length = sender.splits.send[j];
        const Buffer from = sender.in.range(sent, length);
        device::copy(calls_[j].out.range(received[j], length).data, from.data, from.bytes(),
                     stream_);
        sent += length;
        received[j] += length;
      }
    }
  }

  const std::vector<Call>& calls_;
  device::StreamView stream_;
};

}  // namespace

device::Combine on_device(ReduceOp op) {
  if (op == ReduceOp::kSum) return device::Combine::kSum;
  return op == ReduceOp::kMax ? device::Combine::kMax : device::Combine::kMin;
}

void DeviceOperation::post(size_t index, const Call& call) {
  ready_[index].emplace(device::Event::Timing::kOff);
  ready_[index]->record(device::StreamView(call.stream()));
}

void DeviceOperation::start(const std::vector<Call>& calls, const device::DeviceStream& stream) {
  for (const auto& ready : ready_) {
    if (ready) ready->hold(stream);
  }
  Slices(calls, stream).run();
  end_.emplace(device::Event::Timing::kOff);
  end_->record(stream);
}

}  // namespace kuafu
