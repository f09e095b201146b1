// SPDX-License-Identifier: Apache-2.0
#include "kuafu/meter/allocator.h"

#include <c10/core/CPUAllocator.h>
#include <malloc.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <mutex>
#include <new>

#include "kuafu/base/errors.h"
#include "kuafu/base/trace.h"
#include "kuafu/device/arena.h"
#include "kuafu/meter/cuda_block.h"

namespace kuafu {
namespace {

/// What stands in front of every CPU block, and behind every meta one.
struct alignas(64) Header {
  std::shared_ptr<MemoryAccount> account;  // null: booked to nobody
  int64_t bytes = 0;
  Category category = Category::kTemporary;
  int64_t block = 0;  // its number in the trace of `recorder`
  const TraceRecorder* recorder = nullptr;
  bool leaves = false;  // of an arena: its pages go with it
};
constexpr size_t kHeader = 64;
static_assert(sizeof(Header) == kHeader);

constexpr size_t kLarge = size_t{32} << 20;  // beyond malloc's own heap, see tune_malloc
constexpr size_t kHugePage = size_t{2} << 20;

/// Large blocks that were freed, kept for the next step, which takes the same ones: a fresh one
/// costs a page fault and a zeroed page for every page of it. At most kMost bytes stay, the latest
/// freed.
class KeptBlocks {
 public:
  void* take(size_t bytes) {
    const std::lock_guard lock(mutex_);
    const auto fits = [bytes](const Block& b) { return b.bytes == bytes; };
    const auto found = std::find_if(blocks_.rbegin(), blocks_.rend(), fits);
    if (found == blocks_.rend()) return nullptr;
    void* base = found->base;
    total_ -= bytes;
    blocks_.erase(std::next(found).base());
    return base;
  }
  void keep(void* base, size_t bytes) {
    const std::lock_guard lock(mutex_);
    blocks_.push_back({base, bytes});
    total_ += bytes;
    while (total_ > kMost) drop_oldest();
  }
  void drop_all() {
    const std::lock_guard lock(mutex_);
    while (!blocks_.empty()) drop_oldest();
  }

 private:
  struct Block {
    void* base;
    size_t bytes;
  };
  static constexpr size_t kMost = size_t{512} << 20;

  void drop_oldest() {
    total_ -= blocks_.front().bytes;
    std::free(blocks_.front().base);
    blocks_.pop_front();
  }

  std::mutex mutex_;
  std::deque<Block> blocks_;  // oldest first
  size_t total_ = 0;
};

/// Never destroyed: tensors of static lifetime are freed after any static here would be gone.
KeptBlocks& kept_blocks() {
  static auto* kept = new KeptBlocks;
  return *kept;
}

/// The recorder of the rank whose block this is; null where nothing is traced, or by another rank.
TraceRecorder* recorder_of(const Header& h) {
  TraceRecorder* trace = current_trace();
  if (trace == nullptr || !h.account || !h.account->is_traced()) return nullptr;
  const RankBook* book = current_book();
  return book != nullptr && book->account() == h.account ? trace : nullptr;
}

/// Scratch is no event: an op takes what its device needs.
void trace_alloc(Header& h) {
  TraceRecorder* trace = h.category == Category::kScratch ? nullptr : recorder_of(h);
  h.recorder = trace;
  h.block = trace == nullptr ? 0 : trace->alloc(to_string(h.category), h.bytes);
}

void trace_free(const Header& h) {
  TraceRecorder* trace = h.category == Category::kScratch ? nullptr : recorder_of(h);
  if (trace == nullptr) return;
  trace->free(trace == h.recorder ? h.block : 0, to_string(h.category), h.bytes);
}

/// Books first, so that nothing is left behind where the budget refuses.
Header booked(size_t bytes) {
  Header h;
  h.bytes = static_cast<int64_t>(bytes);
  h.category = current_category();
  if (RankBook* book = current_book()) {
    book->allocated(h.bytes, h.category);
    h.account = book->account();
    trace_alloc(h);
  }
  return h;
}

void unbook(const Header& h) {
  trace_free(h);
  if (h.account) h.account->freed(h.bytes, h.category);
}

Header* header_of_block(void* data) {
  return reinterpret_cast<Header*>(static_cast<std::byte*>(data) - kHeader);
}

void free_block(void* data) {
  if (data == nullptr) return;
  Header* h = header_of_block(data);
  unbook(*h);
  const size_t bytes = static_cast<size_t>(h->bytes) + kHeader;
  const std::shared_ptr<MemoryAccount> account = std::move(h->account);  // it owns the arena
  const auto pages = h->leaves ? device::Pages::kReleased : device::Pages::kKept;
  h->~Header();
  if (account && account->arena() != nullptr) return account->arena()->free(h, pages);
  if (bytes >= kLarge) {
    kept_blocks().keep(h, bytes);
  } else {
    std::free(h);
  }
}

/// Large blocks come from mmap, page by page: huge pages save most of the faults.
void* take_block(size_t bytes) {
  void* base = nullptr;
  if (bytes < kLarge) return posix_memalign(&base, kHeader, bytes) == 0 ? base : nullptr;
  if (void* kept = kept_blocks().take(bytes)) return kept;
  if (posix_memalign(&base, kHugePage, bytes) != 0) {
    kept_blocks().drop_all();
    if (posix_memalign(&base, kHugePage, bytes) != 0) return nullptr;
  }
  madvise(base, bytes, MADV_HUGEPAGE);  // advice: failure changes nothing
  return base;
}

class CpuAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    const c10::Device cpu(c10::DeviceType::CPU);
    if (bytes == 0) return {nullptr, nullptr, &free_block, cpu};
    Header h = booked(bytes);
    if (device::Arena* arena = h.account ? h.account->arena() : nullptr) {
      return in_arena(*arena, std::move(h));
    }
    void* base = take_block(bytes + kHeader);
    if (base == nullptr) {
      unbook(h);
      const RankBook* book = current_book();
      throw OutOfMemory(book ? book->rank() : 0, h.bytes, book ? book->live() : 0, 0);
    }
    new (base) Header(std::move(h));
    void* data = static_cast<std::byte*>(base) + kHeader;
    return {data, data, &free_block, cpu};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_block; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    std::memcpy(to, from, bytes);
  }

 private:
  static c10::DataPtr in_arena(device::Arena& arena, Header&& h) {
    void* base = nullptr;
    try {
      base = arena.allocate(h.bytes + static_cast<int64_t>(kHeader));
    } catch (const OutOfMemory&) {
      unbook(h);
      throw;
    }
    new (base) Header(std::move(h));
    void* data = static_cast<std::byte*>(base) + kHeader;
    return {data, data, &free_block, c10::Device(c10::DeviceType::CPU)};
  }
};

void free_meta(void* context) {
  const std::unique_ptr<Header> h(static_cast<Header*>(context));
  if (h) unbook(*h);
}

class MetaAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    // The context is never null where bytes are booked: without one the deleter would not run.
    void* context = bytes == 0 ? nullptr : new Header(booked(bytes));
    return {nullptr, context, &free_meta, c10::Device(c10::DeviceType::Meta)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_meta; }
  void copy_data(void*, const void*, size_t) const override {}
};

/// Blocks below 32 MiB (the most glibc allows) stay in one heap that is never given back: a
/// training step frees and takes the same blocks again, and returning them to the kernel costs a
/// page fault for each 4 KiB, 10 to 20 % of a step. One arena, because those of threads are at most
/// 64 MiB long and are unmapped as soon as they are empty.
void tune_malloc() {
  mallopt(M_ARENA_MAX, 1);
  mallopt(M_MMAP_THRESHOLD, static_cast<int>(kLarge));
  mallopt(M_TRIM_THRESHOLD, -1);
  mallopt(M_TOP_PAD, 16 << 20);
}

/// The header of a storage that came from here; null for any other.
Header* header_of(const c10::DataPtr& data) {
  if (data.get_context() == nullptr) return nullptr;
  if (data.get_deleter() == &free_block) return header_of_block(data.get_context());
  if (data.get_deleter() == &free_meta) return static_cast<Header*>(data.get_context());
  if (data.get_deleter() == &free_cuda_block) {
    return static_cast<Header*>(static_cast<CudaBlock*>(data.get_context())->booking);
  }
  return nullptr;
}

}  // namespace

void* book_block(size_t bytes) { return new Header(booked(bytes)); }

void unbook_block(void* booking) { free_meta(booking); }

void free_cuda_block(void* context) {
  const std::unique_ptr<CudaBlock> block(static_cast<CudaBlock*>(context));
  if (block) unbook_block(block->booking);
}

void install_allocators() {
  static std::once_flag once;
  std::call_once(once, [] {
    static CpuAllocator cpu;
    static MetaAllocator meta;
    tune_malloc();
    c10::SetCPUAllocator(&cpu, 1);
    c10::SetAllocator(c10::DeviceType::Meta, &meta, 1);
  });
}

void recategorise(const at::Tensor& t, Category to) {
  if (!t.defined()) return;
  Header* h = header_of(t.storage().data_ptr());
  if (h == nullptr || h->category == to) return;
  if (h->account) h->account->recategorised(h->bytes, h->category, to);
  trace_free(*h);
  h->category = to;
  trace_alloc(*h);
}

void free_storage(const at::Tensor& t) { allocate_storage(t, 0); }

void let_pages_leave(const at::Tensor& t) {
  if (Header* h = header_of(t.storage().data_ptr())) h->leaves = true;
}

void allocate_storage(const at::Tensor& t, int64_t bytes) {
  KUAFU_CHECK(bytes >= 0, "storage of ", bytes, " bytes");
  c10::StorageImpl* storage = t.storage().unsafeGetStorageImpl();
  KUAFU_CHECK(storage->allocator() != nullptr, "a storage without an allocator cannot be replaced");
  // The old block goes first: freeing and taking a shard anew must not need both at once.
  storage->set_data_ptr_noswap(storage->allocator()->allocate(0));
  storage->set_nbytes(0);
  if (bytes == 0) return;
  storage->set_data_ptr_noswap(storage->allocator()->allocate(static_cast<size_t>(bytes)));
  storage->set_nbytes(static_cast<size_t>(bytes));
}

}  // namespace kuafu
