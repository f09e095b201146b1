// SPDX-License-Identifier: Apache-2.0
#include "tests/optim/watched_pages.h"

#include <signal.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <array>

#include "kuafu/base/errors.h"

namespace kuafu::tests {
namespace {

constexpr size_t kMostRegions = 16, kMostPages = 512;
constexpr int64_t kNone = -1;

/// Fixed in size: a handler of signals allocates nothing.
struct Region {
  char* begin = nullptr;
  int64_t pages = 0;
  std::array<PageVisits, kMostPages> visits = {};
  std::array<int64_t, 2> open = {kNone, kNone};  // the newest first

  bool holds(const char* at, int64_t page_size) const {
    return at >= begin && at < begin + pages * page_size;
  }
};
struct Watch {
  int64_t page_size = 0;
  size_t num_regions = 0;
  std::array<Region, kMostRegions> regions;
  struct sigaction before = {};
};
Watch* watched = nullptr;

void protect(const Region& r, int64_t page, int how) {
  mprotect(r.begin + page * watched->page_size, static_cast<size_t>(watched->page_size), how);
}

void on_fault(int, siginfo_t* info, void* context) {
  const auto* at = static_cast<const char*>(info->si_addr);
  constexpr greg_t kIsWrite = 2;  // of the processor's page fault code
  const bool is_write =
      (static_cast<const ucontext_t*>(context)->uc_mcontext.gregs[REG_ERR] & kIsWrite) != 0;
  for (size_t i = 0; i < watched->num_regions; ++i) {
    Region& r = watched->regions[i];
    if (!r.holds(at, watched->page_size)) continue;
    const int64_t page = (at - r.begin) / watched->page_size;
    const auto place = std::find(r.open.begin(), r.open.end(), page);
    if (place == r.open.end()) {
      if (r.open[1] != kNone) protect(r, r.open[1], PROT_NONE);
      r.open = {page, r.open[0]};
    }
    PageVisits& visits = r.visits[static_cast<size_t>(page)];
    ++(is_write ? visits.writes : visits.reads);
    return protect(r, page, is_write ? PROT_READ | PROT_WRITE : PROT_READ);
  }
  sigaction(SIGSEGV, &watched->before, nullptr);  // nobody's: it faults again
}

/// Whole pages of a tensor.
struct Pages {
  char* begin;
  int64_t count;
};
Pages pages_of(const at::Tensor& t) {
  const auto size = static_cast<uintptr_t>(watched->page_size);
  const auto from = reinterpret_cast<uintptr_t>(t.mutable_data_ptr());
  const uintptr_t begin = (from + size - 1) / size * size, end = (from + t.nbytes()) / size * size;
  return {reinterpret_cast<char*>(begin), static_cast<int64_t>((end - begin) / size)};
}

}  // namespace

WatchedPages::WatchedPages() {
  KUAFU_CHECK(watched == nullptr, "pages are watched already");
  watched = new Watch;
  watched->page_size = sysconf(_SC_PAGESIZE);
  struct sigaction action = {};
  action.sa_sigaction = on_fault;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGSEGV, &action, &watched->before);
}

WatchedPages::~WatchedPages() {
  for (size_t i = 0; i < watched->num_regions; ++i) {
    const Region& r = watched->regions[i];
    mprotect(r.begin, static_cast<size_t>(r.pages * watched->page_size), PROT_READ | PROT_WRITE);
  }
  sigaction(SIGSEGV, &watched->before, nullptr);
  delete watched;
  watched = nullptr;
}

void WatchedPages::watch(const at::Tensor& t) {
  const Pages pages = pages_of(t);
  KUAFU_CHECK(t.is_contiguous() && pages.count > 1 && pages.count <= int64_t{kMostPages} &&
                  watched->num_regions < kMostRegions,
              "watched: ", pages.count, " pages beside ", watched->num_regions, " tensors");
  Region& r = watched->regions[watched->num_regions++];
  r.begin = pages.begin;
  r.pages = pages.count;
  mprotect(r.begin, static_cast<size_t>(r.pages * watched->page_size), PROT_NONE);
}

PageVisits WatchedPages::visits(const at::Tensor& t) const {
  const Pages pages = pages_of(t);
  for (size_t i = 0; i < watched->num_regions; ++i) {
    const Region& r = watched->regions[i];
    if (r.begin != pages.begin) continue;
    for (int64_t p = 1; p < r.pages; ++p) {
      const PageVisits& own = r.visits[static_cast<size_t>(p)];
      KUAFU_CHECK(own == r.visits[0], "page ", p, " was read ", own.reads, " times and written ",
                  own.writes, " times, the first one ", r.visits[0].reads, " and ",
                  r.visits[0].writes);
    }
    return r.visits[0];
  }
  throw InternalError("a tensor that nobody watches");
}

}  // namespace kuafu::tests
