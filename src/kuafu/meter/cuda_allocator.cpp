// SPDX-License-Identifier: Apache-2.0
//
// LibTorch's allocator for cards, with every tensor's block booked. It stays LibTorch's: caching by
// stream, graphs and statistics are its own.

#include <c10/core/DeviceGuard.h>
#include <c10/cuda/CUDACachingAllocator.h>

#include <mutex>

#include "kuafu/base/errors.h"
#include "kuafu/meter/allocator.h"
#include "kuafu/meter/book.h"
#include "kuafu/meter/cuda_block.h"

namespace kuafu {
namespace {

namespace caching = c10::cuda::CUDACachingAllocator;
using c10::DeviceIndex;
using c10::MempoolId_t;

class BookingAllocator final : public caching::CUDAAllocator {
 public:
  explicit BookingAllocator(caching::CUDAAllocator& inner) : inner_(inner) {}

  c10::DataPtr allocate(size_t bytes) override {
    if (bytes == 0) return inner_.allocate(0);
    void* const booking = book_block(bytes);
    try {
      c10::DataPtr data = inner_.allocate(bytes);
      void* const place = data.get();
      const c10::Device device = data.device();
      auto* const block = new CudaBlock{booking, std::move(data)};
      return {place, block, &free_cuda_block, device};
    } catch (const c10::OutOfMemoryError&) {
      unbook_block(booking);
      throw_out_of_memory(static_cast<int64_t>(bytes));
    } catch (...) {
      unbook_block(booking);
      throw;
    }
  }
  c10::DeleterFnPtr raw_deleter() const override { return inner_.raw_deleter(); }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    inner_.copy_data(to, from, bytes);
  }
  void recordStream(const c10::DataPtr& data, c10::cuda::CUDAStream stream) override {
    const bool is_booked = data.get_deleter() == &free_cuda_block;
    inner_.recordStream(is_booked ? static_cast<CudaBlock*>(data.get_context())->data : data,
                        stream);
  }

  // The rest is LibTorch's.
  void* raw_alloc(size_t n) override { return inner_.raw_alloc(n); }
  void* raw_alloc_with_stream(size_t n, cudaStream_t s) override {
    return inner_.raw_alloc_with_stream(n, s);
  }
  void raw_delete(void* p) override { inner_.raw_delete(p); }
  void init(int devices) override { inner_.init(devices); }
  bool initialized() override { return inner_.initialized(); }
  double getMemoryFraction(DeviceIndex d) override { return inner_.getMemoryFraction(d); }
  void setMemoryFraction(double f, DeviceIndex d) override { inner_.setMemoryFraction(f, d); }
  std::vector<caching::StreamSegmentSize> getExpandableSegmentSizes(DeviceIndex d) override {
    return inner_.getExpandableSegmentSizes(d);
  }
  void emptyCache(MempoolId_t id) override { inner_.emptyCache(id); }
  void enable(bool value) override { inner_.enable(value); }
  bool isEnabled() const override { return inner_.isEnabled(); }
  void cacheInfo(DeviceIndex d, size_t* most) override { inner_.cacheInfo(d, most); }
  void* getBaseAllocation(void* p, size_t* n) override { return inner_.getBaseAllocation(p, n); }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(DeviceIndex d) override {
    return inner_.getDeviceStats(d);
  }
  void resetAccumulatedStats(DeviceIndex d) override { inner_.resetAccumulatedStats(d); }
  void resetPeakStats(DeviceIndex d) override { inner_.resetPeakStats(d); }
  caching::SnapshotInfo snapshot(MempoolId_t id, bool traces) override {
    return inner_.snapshot(id, traces);
  }
  void beginAllocateToPool(DeviceIndex d, MempoolId_t id,
                           std::function<bool(cudaStream_t)> filter) override {
    inner_.beginAllocateToPool(d, id, std::move(filter));
  }
  void endAllocateToPool(DeviceIndex d, MempoolId_t id) override {
    inner_.endAllocateToPool(d, id);
  }
  void releasePool(DeviceIndex d, MempoolId_t id) override { inner_.releasePool(d, id); }
  int getPoolUseCount(DeviceIndex d, MempoolId_t id) override {
    return inner_.getPoolUseCount(d, id);
  }
  void createOrIncrefPool(DeviceIndex d, MempoolId_t id,
                          std::shared_ptr<caching::CUDAAllocator> of) override {
    inner_.createOrIncrefPool(d, id, std::move(of));
  }
  void setUseOnOOM(DeviceIndex d, MempoolId_t id, bool value) override {
    inner_.setUseOnOOM(d, id, value);
  }
  void setNoSplit(DeviceIndex d, MempoolId_t id) override { inner_.setNoSplit(d, id); }
  bool checkPoolLiveAllocations(DeviceIndex d, MempoolId_t id,
                                const std::unordered_set<void*>& live) override {
    return inner_.checkPoolLiveAllocations(d, id, live);
  }
  caching::ShareableHandle shareIpcHandle(void* p) override { return inner_.shareIpcHandle(p); }
  std::shared_ptr<void> getIpcDevPtr(std::string handle) override {
    return inner_.getIpcDevPtr(std::move(handle));
  }
  bool isHistoryEnabled() override { return inner_.isHistoryEnabled(); }
  void recordHistory(bool enabled, caching::CreateContextFn recorder, size_t most,
                     caching::RecordContext when, bool clears,
                     const std::vector<std::string>& skipped) override {
    inner_.recordHistory(enabled, recorder, most, when, clears, skipped);
  }
  void recordAnnotation(const std::vector<std::pair<std::string, std::string>>& all) override {
    inner_.recordAnnotation(all);
  }
  void pushCompileContext(std::string& md) override { inner_.pushCompileContext(md); }
  void popCompileContext() override { inner_.popCompileContext(); }
  void setUserMetadata(const std::string& metadata) override { inner_.setUserMetadata(metadata); }
  std::string getUserMetadata() override { return inner_.getUserMetadata(); }
  void attachOutOfMemoryObserver(caching::OutOfMemoryObserver observer) override {
    inner_.attachOutOfMemoryObserver(std::move(observer));
  }
  void attachAllocatorTraceTracker(caching::AllocatorTraceTracker tracker) override {
    inner_.attachAllocatorTraceTracker(std::move(tracker));
  }
  void enablePeerAccess(DeviceIndex from, DeviceIndex to) override {
    inner_.enablePeerAccess(from, to);
  }
  cudaError_t memcpyAsync(void* to, int to_device, const void* from, int from_device, size_t n,
                          cudaStream_t stream, bool is_peer) override {
    return inner_.memcpyAsync(to, to_device, from, from_device, n, stream, is_peer);
  }
  std::shared_ptr<caching::AllocatorState> getCheckpointState(DeviceIndex d,
                                                              MempoolId_t id) override {
    return inner_.getCheckpointState(d, id);
  }
  caching::CheckpointDelta setCheckpointPoolState(
      DeviceIndex d, std::shared_ptr<caching::AllocatorState> state) override {
    return inner_.setCheckpointPoolState(d, std::move(state));
  }
  std::string name() override { return inner_.name(); }

 private:
  [[noreturn]] void throw_out_of_memory(int64_t bytes) {
    size_t free = 0, total = 0;
    cudaMemGetInfo(&free, &total);
    const RankBook* book = current_book();
    throw OutOfMemory(book ? book->rank() : 0, bytes, static_cast<int64_t>(total - free),
                      static_cast<int64_t>(total));
  }

  caching::CUDAAllocator& inner_;
};

}  // namespace

void install_cuda_allocator() {
  static std::once_flag once;
  std::call_once(once, [] {
    caching::CUDAAllocator* const inner = caching::get();
    inner->init(c10::cuda::device_count_ensure_non_zero());
    // Never destroyed: tensors of static lifetime are freed after any static here would be gone.
    auto* const booking = new BookingAllocator(*inner);
    caching::allocator.store(booking);
    c10::SetAllocator(c10::DeviceType::CUDA, booking, 1);
  });
}

}  // namespace kuafu
