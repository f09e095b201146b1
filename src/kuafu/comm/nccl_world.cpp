// SPDX-License-Identifier: Apache-2.0
#include "kuafu/comm/nccl_world.h"

#include <nccl.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "kuafu/comm/nccl_channel.h"

namespace kuafu {

namespace {

constexpr auto kLookEvery = std::chrono::milliseconds(20);

std::string words_of(int code) {
  return text(ncclGetErrorString(static_cast<ncclResult_t>(code)), "; ", ncclGetLastError(nullptr));
}

}  // namespace

NcclWorld::NcclWorld(int rank, int device, std::chrono::milliseconds timeout)
    : rank_(rank), device_(device), timeout_(timeout), watcher_([this] { look_after(); }) {}

NcclWorld::~NcclWorld() {
  {
    const std::lock_guard lock(mutex_);
    is_over_ = true;
  }
  stops_.notify_all();
  watcher_.join();
}

void NcclWorld::watch(std::string what, std::shared_ptr<const device::Event> end) {
  const std::lock_guard lock(mutex_);
  under_way_.push_back({std::move(what), std::move(end), std::chrono::steady_clock::now()});
}

void NcclWorld::check() const {
  if (!has_failed_.load()) return;
  const std::lock_guard lock(mutex_);
  throw RankLost(text("rank ", rank_, ": ", why_));
}

void NcclWorld::wait(const std::function<std::string()>& what,
                     const std::function<bool()>& is_over) {
  const auto deadline = std::chrono::steady_clock::now() + timeout_;
  while (!is_over()) {
    check();
    advance();
    if (std::chrono::steady_clock::now() > deadline) {
      const std::lock_guard lock(mutex_);
      fail(text(what(), ": nothing for ", timeout_.count(), " ms"));
    }
    std::this_thread::yield();
  }
}

void NcclWorld::advance() {
  const std::vector<NcclChannel*> waiting = waiting_;
  for (NcclChannel* channel : waiting) channel->advance();
}

void NcclWorld::add_waiting(NcclChannel& channel) {
  if (std::find(waiting_.begin(), waiting_.end(), &channel) == waiting_.end()) {
    waiting_.push_back(&channel);
  }
}

void NcclWorld::remove_waiting(NcclChannel& channel) { std::erase(waiting_, &channel); }

void NcclWorld::look_after() {
  try {
    device::use(device_);
    std::unique_lock lock(mutex_);
    while (!stops_.wait_for(lock, kLookEvery, [this] { return is_over_; })) {
      if (!has_failed_.load()) look();
    }
  } catch (const std::exception& e) {
    const std::lock_guard lock(mutex_);
    fail(e.what());
  }
}

void NcclWorld::look() {
  for (const NcclComm* comm : comms_) {
    const int state = comm->state();
    if (state != ncclSuccess && state != ncclInProgress) return fail(words_of(state));
  }
  const auto long_ago = std::chrono::steady_clock::now() - timeout_;
  for (auto at = under_way_.begin(); at != under_way_.end();) {
    if (at->end->is_reached()) {
      at = under_way_.erase(at);
    } else if (at->since < long_ago) {
      return fail(text(at->what, ": under way for ", timeout_.count(),
                       " ms; other ranks did not call it, or called something else"));
    } else {
      ++at;
    }
  }
}

void NcclWorld::fail(const std::string& why) {
  if (has_failed_.load()) return;
  why_ = why;
  has_failed_.store(true);
  for (NcclComm* comm : comms_) ncclCommAbort(std::exchange(comm->comm_, nullptr));
  comms_.clear();
  under_way_.clear();
}

NcclComm::NcclComm(std::shared_ptr<NcclWorld> world, ncclComm* comm,
                   const device::DeviceStream& stream)
    : world_(std::move(world)), stream_(stream), comm_(comm) {
  const std::lock_guard lock(world_->mutex_);
  world_->comms_.push_back(this);
}

void NcclComm::drain() {
  try {
    device::Event end(device::Event::Timing::kOff);
    end.record(stream_);
    world_->wait([] { return "the end of a communicator"; }, [&end] { return end.is_reached(); });
  } catch (const std::exception&) {  // the world has failed and says so itself
  }
}

NcclComm::~NcclComm() {
  if (std::uncaught_exceptions() == 0) drain();
  {
    const std::lock_guard lock(world_->mutex_);
    std::erase(world_->comms_, this);
  }
  if (comm_ == nullptr) return;
  if (std::uncaught_exceptions() > 0) {
    ncclCommAbort(comm_);
  } else {
    ncclCommDestroy(comm_);
  }
}

int NcclComm::state() const {
  ncclResult_t state = ncclSuccess;
  const ncclResult_t code = ncclCommGetAsyncError(comm_, &state);
  return code == ncclSuccess ? state : code;
}

void NcclComm::call(const char* name, const NcclCall& call) {
  world_->check();
  const std::lock_guard lock(world_->mutex_);
  if (comm_ == nullptr) throw RankLost(text("rank ", world_->rank(), ": ", world_->why_));
  const int code = call(comm_);
  if (code != ncclSuccess && code != ncclInProgress) {
    throw Error(text(name, ": ", words_of(code)));
  }
}

bool NcclComm::is_settled() {
  world_->check();
  const std::lock_guard lock(world_->mutex_);
  if (comm_ == nullptr) return false;  // the next check throws
  const int code = state();
  if (code == ncclInProgress) return false;
  if (code != ncclSuccess) world_->fail(words_of(code));  // the next check throws
  return code == ncclSuccess;
}

void NcclComm::settle(const std::function<std::string()>& what) {
  world_->wait(what, [this] { return is_settled(); });
}

}  // namespace kuafu
