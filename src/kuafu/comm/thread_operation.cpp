// SPDX-License-Identifier: Apache-2.0
#include "kuafu/comm/thread_operation.h"

#include <algorithm>
#include <cstring>
#include <thread>

#include "kuafu/comm/reduction.h"

namespace kuafu {

namespace {

// Bytes of one rank's slice in a tile: short enough that all threads end together, long enough for
// the prefetchers, which run past the end of a tile into one that another core works on.
constexpr int64_t kLeastTileBytes = 16 * 1024;
constexpr int64_t kMostTileBytes = 256 * 1024;
constexpr int64_t kTilesPerWorker = 8;

// Operations of at most this many tiles are done by the last rank to arrive, at once: others would
// take longer to wake up than it takes to do them, the more so where ranks share cores.
constexpr int64_t kFewTiles = 2;
constexpr int64_t kFewTilesOnSharedCores = 8;

std::byte* at(const Buffer& b, int64_t element) {
  return static_cast<std::byte*>(b.data) + element * size_of(b.dtype);
}

}  // namespace

Operation::Operation(ThreadWorld& world, std::shared_ptr<const std::vector<int>> participants,
                     std::string group, int64_t sequence)
    : world_(world),
      participants_(std::move(participants)),
      group_(std::move(group)),
      sequence_(sequence),
      calls_(participants_->size()),
      posted_(participants_->size()) {}

bool Operation::post(int index, const Call& call) {
  calls_[static_cast<size_t>(index)] = call;
  if (call.place() == Place::kDevice) {
    if (device_ == nullptr) device_ = std::make_unique<DeviceOperation>(calls_.size());
    device_->post(static_cast<size_t>(index), call);
  }
  if (first_ < 0) first_ = index;
  posted_[static_cast<size_t>(index)].store(true);
  return ++num_posted_ == num_participants();
}

void Operation::seal(int world_rank) {
  if (device_ != nullptr) return seal_on_device(world_.stream_of(world_rank));
  lay_out();
  is_sealed_.store(true);
  if (num_tiles_ == 0) is_done_.store(true);
  const bool shares_cores = world_.num_workers() < world_.size();
  if (num_tiles_ <= (shares_cores ? kFewTilesOnSharedCores : kFewTiles)) work();
  if (is_done_.load()) {
    for (const int rank : *participants_) world_.wake(rank);
    return;
  }
  int num_woken = 0;
  for (const int rank : *participants_) {
    if (num_woken == world_.num_workers()) return;
    if (world_.wake_from(rank, all_posted_)) ++num_woken;
  }
}

/// Starts nothing once a participant has left: what it would work on may be gone.
void Operation::seal_on_device(const device::DeviceStream& stream) {
  num_active_.fetch_add(1);
  const bool is_open = !is_closed_.load();
  try {
    if (is_open) device_->start(calls_, stream);
  } catch (...) {
    num_active_.fetch_sub(1);
    throw;
  }
  num_active_.fetch_sub(1);
  if (!is_open) return;
  is_sealed_.store(true);
  is_done_.store(true);
  for (const int rank : *participants_) world_.wake(rank);
}

void Operation::complete(int world_rank) {
  try {
    world_.wait(world_rank, all_posted_);
    if (!is_done_.load()) work();
    world_.wait(world_rank, done_);
  } catch (...) {
    abandon();
    throw;
  }
  if (device_ == nullptr) return;
  for (size_t i = 0; i < calls_.size(); ++i) {
    if ((*participants_)[i] == world_rank) device_->hold(calls_[i].stream());
  }
}

void Operation::complete_on_host(int world_rank) {
  complete(world_rank);
  if (device_ != nullptr) device_->synchronize();
}

bool Operation::test(int world_rank) {
  if (!is_sealed_.load()) {
    if (world_.has_failed()) world_.throw_torn_down(world_rank);
    return false;
  }
  complete(world_rank);
  return true;
}

// After this nobody reads or writes the buffers of a participant that is about to free them.
void Operation::abandon() {
  is_closed_.store(true);
  while (num_active_.load() != 0) std::this_thread::yield();
  if (device_ == nullptr || !device_->has_started()) return;
  try {
    device_->synchronize();
  } catch (const Error&) {  // the card failed: it works on nothing any more
  }
}

void Operation::work() {
  num_active_.fetch_add(1);
  Pointers pointers;
  pointers.from.resize(participants_->size());
  pointers.to.reserve(participants_->size());
  bool did_last = false;
  while (!is_closed_.load()) {
    const int64_t tile = next_tile_.fetch_add(1);
    if (tile >= num_tiles_) break;
    run_tile(tile, pointers);
    if (num_done_.fetch_add(1) + 1 == num_tiles_) {
      is_done_.store(true);
      did_last = true;
    }
  }
  num_active_.fetch_sub(1);
  if (!did_last) return;
  for (const int rank : *participants_) world_.wake(rank);
}

void Operation::lay_out() {
  const Call& any = call(0);
  const int64_t n = num_participants();
  const int64_t element = size_of(any.verb == Verb::kBarrier ? DType::kU8 : any.dtype());
  const int64_t share = any.count() * element / (kTilesPerWorker * world_.num_workers());
  tile_count_ = std::clamp(share, kLeastTileBytes, kMostTileBytes) / element;
  segment_count_ = any.count();
  switch (any.verb) {
    case Verb::kBarrier:
      segment_count_ = 0;
      break;
    case Verb::kAllGather:
    case Verb::kReduceScatter:
      num_segments_ = n;
      segment_count_ /= n;
      break;
    case Verb::kAllToAll: {
      first_tiles_.resize(static_cast<size_t>(n * n));
      send_offsets_.resize(first_tiles_.size());
      recv_offsets_.resize(first_tiles_.size());
      std::vector<int64_t> recv_offset(static_cast<size_t>(n), 0);
      for (int64_t i = 0; i < n; ++i) {
        int64_t send_offset = 0;
        for (int64_t j = 0; j < n; ++j) {
          const auto pair = static_cast<size_t>(i * n + j);
          const int64_t length = call(static_cast<int>(i)).splits.send[static_cast<size_t>(j)];
          first_tiles_[pair] = num_tiles_;
          send_offsets_[pair] = send_offset;
          recv_offsets_[pair] = recv_offset[static_cast<size_t>(j)];
          send_offset += length;
          recv_offset[static_cast<size_t>(j)] += length;
          num_tiles_ += (length + tile_count_ - 1) / tile_count_;
        }
      }
      return;
    }
    default:
      break;
  }
  num_tiles_ = num_segments_ * ((segment_count_ + tile_count_ - 1) / tile_count_);
}

void Operation::run_tile(int64_t tile, Pointers& pointers) const {
  int64_t segment = 0, first = 0, segment_count = segment_count_;
  if (!first_tiles_.empty()) {
    const auto next = std::upper_bound(first_tiles_.begin(), first_tiles_.end(), tile);
    segment = next - first_tiles_.begin() - 1;
    first = first_tiles_[static_cast<size_t>(segment)];
    const int64_t n = num_participants();
    segment_count =
        call(static_cast<int>(segment / n)).splits.send[static_cast<size_t>(segment % n)];
  } else {
    const int64_t tiles_each = num_tiles_ / num_segments_;
    segment = tile / tiles_each;
    first = segment * tiles_each;
  }
  const int64_t offset = (tile - first) * tile_count_;
  const int64_t length = std::min(tile_count_, segment_count - offset);
  if (call(0).reduces()) {
    combine_tile(segment, offset, length, pointers);
  } else {
    copy_tile(segment, offset, length);
  }
}

void Operation::combine_tile(int64_t segment, int64_t offset, int64_t length,
                             Pointers& pointers) const {
  const Call& any = call(0);
  const int64_t source = segment * segment_count_ + offset;
  for (size_t i = 0; i < calls_.size(); ++i) pointers.from[i] = at(calls_[i].in, source);
  pointers.to.clear();
  if (any.verb == Verb::kAllReduce) {
    for (const Call& c : calls_) pointers.to.push_back(at(c.out, offset));
  } else {
    const int owner = any.verb == Verb::kReduce ? any.root : static_cast<int>(segment);
    pointers.to.push_back(at(call(owner).out, offset));
  }
  combine(any.dtype(), any.op, pointers.from, pointers.to, length);
}

void Operation::copy_tile(int64_t segment, int64_t offset, int64_t length) const {
  const auto copy = [&](const Buffer& out, int64_t to, const Buffer& in, int64_t from) {
    if (at(out, to) == at(in, from)) return;
    std::memcpy(at(out, to), at(in, from), static_cast<size_t>(length * size_of(in.dtype)));
  };
  const int n = num_participants();
  switch (call(0).verb) {
    case Verb::kBroadcast:
      for (const Call& c : calls_) copy(c.out, offset, call(call(0).root).in, offset);
      return;
    case Verb::kAllGather:
      for (const Call& c : calls_) {
        copy(c.out, segment * segment_count_ + offset, call(static_cast<int>(segment)).in, offset);
      }
      return;
    case Verb::kAllToAll: {
      const auto pair = static_cast<size_t>(segment);
      copy(call(static_cast<int>(segment % n)).out, recv_offsets_[pair] + offset,
           call(static_cast<int>(segment / n)).in, send_offsets_[pair] + offset);
      return;
    }
    default:  // a message
      copy(call(1).out, offset, call(0).in, offset);
  }
}

std::string Operation::position() const {
  if (sequence_ == CallNote::kMessage) return text("a message of group '", group_, "'");
  return text("call ", sequence_, " of group '", group_, "'");
}

std::vector<int> Operation::AllPosted::missing() const {
  std::vector<int> ranks;
  for (int i = 0; i < operation_.num_participants(); ++i) {
    if (!operation_.has_posted(i)) {
      ranks.push_back((*operation_.participants_)[static_cast<size_t>(i)]);
    }
  }
  return ranks;
}

std::string Operation::AllPosted::describe() const {
  for (int i = 0; i < operation_.num_participants(); ++i) {
    if (operation_.has_posted(i)) {
      return text(kuafu::describe(operation_.call(i)), ", ", operation_.position());
    }
  }
  return operation_.position();
}

}  // namespace kuafu
