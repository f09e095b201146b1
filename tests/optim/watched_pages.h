// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace kuafu::tests {

/// How often a loop came by a page of memory, to read it and to write it.
struct PageVisits {
  int64_t reads = 0, writes = 0;
  bool operator==(const PageVisits&) const = default;
};

/// While it lives, the pages of tensors can be touched but by visits, which are counted: the first
/// access to a page faults and opens it, and closes the one opened before the last of the same tensor.
/// A loop that goes over a tensor once visits each page once, however often it comes back to what is
/// less than a page behind it; a request to prefetch is none. Pages at the ends, which others may share, are
/// left out. One at a time, for one thread.
class WatchedPages {
 public:
  WatchedPages();
  ~WatchedPages();
  WatchedPages(const WatchedPages&) = delete;
  WatchedPages& operator=(const WatchedPages&) = delete;

  /// @pre contiguous, of more than three pages
  void watch(const at::Tensor& t);
  /// Visits that every page of the tensor had so far. Throws where its pages had different ones.
  PageVisits visits(const at::Tensor& t) const;
};

}  // namespace kuafu::tests
