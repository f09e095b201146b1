// SPDX-License-Identifier: Apache-2.0
#include "kuafu/device/arena.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <utility>
#include <vector>

#include "kuafu/base/suggest.h"

namespace kuafu::device {

namespace {

/// Repeated, a NaN in f64, f32, bf16 and f16: what is read after it was freed shows in the loss.
constexpr uint16_t kPoison = 0x7FFB;

int64_t up(int64_t value, int64_t step) { return (value + step - 1) / step * step; }
int64_t down(int64_t value, int64_t step) { return value / step * step; }

std::string words_of(const ArenaFull& e) {
  const bool is_in_pieces = e.stats.free >= up(e.requested, Arena::kAlignment);
  return text("rank ", e.rank, " is out of ", e.tier, " memory: asked for ", e.requested,
              " bytes with ", e.live, " live, budget ", e.budget, "; the largest free block has ",
              e.stats.largest_free, " bytes",
              is_in_pieces
                  ? text(" of ", e.stats.free, " that are free in ", e.stats.num_free, " pieces")
                  : "");
}

#ifdef NDEBUG
constexpr Poison kPoisonOfBuild = Poison::kOff;
#else
constexpr Poison kPoisonOfBuild = Poison::kOn;
#endif

}  // namespace

Poison poison_choice() {
  const char* given = std::getenv("KUAFU_POISON");
  const std::string_view word = given == nullptr ? "" : given;
  if (word.empty()) return kPoisonOfBuild;
  KUAFU_REQUIRE(word == "on" || word == "off", "KUAFU_POISON is ", in_quotes(std::string(word)),
                R"(; it may be "on" or "off", not set: )",
                kPoisonOfBuild == Poison::kOn ? R"("on")" : R"("off")");
  return word == "on" ? Poison::kOn : Poison::kOff;
}

ArenaFull::ArenaFull(int rank_, std::string tier_, int64_t requested_, int64_t budget_,
                     FitStats stats_)
    : OutOfMemory(rank_, requested_, stats_.live, budget_),
      tier(std::move(tier_)),
      stats(stats_),
      words_(words_of(*this)) {}

Arena::Arena(ArenaOptions options)
    : options_(std::move(options)),
      page_(::sysconf(_SC_PAGESIZE)),
      fit_(std::max<int64_t>(options_.budget, 0), kAlignment) {
  KUAFU_REQUIRE(options_.budget >= kAlignment, "a budget of ", options_.budget, " bytes for tier ",
                options_.tier, "; at least ", kAlignment, " are needed");
  mapped_ = up(options_.budget, page_);
  const auto whole = static_cast<size_t>(mapped_ + 2 * page_);
  void* base =
      ::mmap(nullptr, whole, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  KUAFU_REQUIRE(base != MAP_FAILED, "tier ", options_.tier, ": no address space for ", mapped_,
                " bytes: ", std::strerror(errno),
                "; `ulimit -v` shows a limit, and a smaller budget (memory.", options_.tier,
                ") asks for less");
  region_ = static_cast<std::byte*>(base) + page_;
  const auto bytes = static_cast<size_t>(mapped_);
  const bool is_open = ::mprotect(region_, bytes, PROT_READ | PROT_WRITE) == 0;
  if (!is_open) {
    const int code = errno;
    ::munmap(base, whole);
    throw ConfigError(text("tier ", options_.tier, ": cannot use ", mapped_,
                           " bytes of address space: ", std::strerror(code)));
  }
  const bool is_huge = options_.huge_pages == HugePages::kOn;
  ::madvise(region_, bytes, is_huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);  // advice: may fail
}

Arena::~Arena() { ::munmap(region_ - page_, static_cast<size_t>(mapped_ + 2 * page_)); }

void* Arena::allocate(int64_t bytes) {
  KUAFU_REQUIRE(bytes >= 0, "a block of ", bytes, " bytes; zero or more is right");
  if (bytes == 0) return nullptr;
  const std::lock_guard lock(mutex_);
  const std::optional<int64_t> offset = fit_.take(bytes);
  if (!offset) {
    throw ArenaFull(options_.rank, options_.tier, bytes, options_.budget, fit_.stats());
  }
  if (options_.poison == Poison::kOn) dig_up({*offset, *offset + fit_.bytes_of(*offset).second});
  return region_ + *offset;
}

void Arena::free(void* data, Pages pages) {
  if (data == nullptr) return;
  const int64_t offset = static_cast<std::byte*>(data) - region_;
  const std::lock_guard lock(mutex_);
  const auto [asked, held] = fit_.bytes_of(offset);
  const ByteRange whole = fit_.give(offset);
  if (options_.poison == Poison::kOn) {
    bury(offset, asked, held);
  } else if (pages == Pages::kReleased) {
    // The pages that the block shared with free neighbours are wholly free only now.
    release({std::max(up(whole.begin, page_), down(offset, page_)),
             std::min(down(whole.end, page_), up(offset + held, page_))});
  }
}

void Arena::release_pages() {
  if (options_.poison == Poison::kOn) return;
  const std::lock_guard lock(mutex_);
  for (const ByteRange& block : fit_.free_blocks()) {
    release({up(block.begin, page_), down(block.end, page_)});
  }
}

void Arena::release(ByteRange range) {
  if (range.bytes() <= 0) return;
  const int code =
      ::madvise(region_ + range.begin, static_cast<size_t>(range.bytes()), MADV_DONTNEED);
  KUAFU_CHECK(code == 0, "madvise of ", range.bytes(), " bytes: ", std::strerror(errno));
}

void Arena::bury(int64_t offset, int64_t asked, int64_t held) {
  auto* words = reinterpret_cast<uint16_t*>(region_ + offset);
  std::fill_n(words, held / 2, kPoison);
  graves_[offset] = {offset + held, offset, asked, num_freed_++};
}

void Arena::check_grave(int64_t begin, const Grave& grave) const {
  const auto* words = reinterpret_cast<const uint16_t*>(region_ + begin);
  const int64_t count = (grave.end - begin) / 2;
  const auto* changed = std::find_if(words, words + count, [](uint16_t w) { return w != kPoison; });
  if (changed == words + count) return;
  const int64_t at = begin + 2 * (changed - words) - grave.block_begin;
  throw UseAfterFree(text("rank ", options_.rank, ", tier ", options_.tier, ": the block of ",
                          grave.block_bytes, " bytes at offset ", grave.block_begin,
                          " was written to after it was freed (as number ", grave.number,
                          "): its byte ", at, " or ", at + 1, " has changed"));
}

/// A block is taken from the front of a free one, so at most the last grave is cut, at its front.
void Arena::dig_up(ByteRange range) {
  auto grave = graves_.lower_bound(range.begin);
  while (grave != graves_.end() && grave->first < range.end) {
    const auto [begin, found] = *grave;
    grave = graves_.erase(grave);
    if (found.end > range.end) graves_.insert(grave, {range.end, found});
    try {
      check_grave(begin, {std::min(found.end, range.end), found.block_begin, found.block_bytes,
                          found.number});
    } catch (...) {
      fit_.give(range.begin);  // the caller gets no block
      throw;
    }
  }
}

void Arena::check_poison() const {
  const std::lock_guard lock(mutex_);
  for (const auto& [begin, grave] : graves_) check_grave(begin, grave);
}

int64_t Arena::resident_bytes() const {
  std::vector<unsigned char> pages(static_cast<size_t>(mapped_ / page_));
  const int code = ::mincore(region_, static_cast<size_t>(mapped_), pages.data());
  KUAFU_CHECK(code == 0, "mincore: ", std::strerror(errno));
  return page_ * std::count_if(pages.begin(), pages.end(), [](unsigned char p) { return p & 1; });
}

FitStats Arena::stats() const {
  const std::lock_guard lock(mutex_);
  return fit_.stats();
}

}  // namespace kuafu::device
