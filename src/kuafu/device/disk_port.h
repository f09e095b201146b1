// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace kuafu::device {

/// One read or write of a file.
struct DiskRequest {
  enum class Kind { kRead, kWrite };
  Kind kind = Kind::kRead;
  int file = -1;  ///< descriptor
  std::byte* data = nullptr;
  int64_t bytes = 0, offset = 0;
  uint64_t id = 0;
};

/// `result` is as the system has it: bytes, or an errno below zero.
struct DiskCompletion {
  uint64_t id = 0;
  int64_t result = 0;
};

/// The few system calls of the disk tier: what tests put faults into. Used by one thread.
class DiskPort {
 public:
  virtual ~DiskPort() = default;
  /// Begins a request. Its memory stays until the completion.
  virtual void submit(const DiskRequest& request) = 0;
  /// Blocks until some request has ended. @pre one is under way.
  virtual DiskCompletion complete() = 0;
};

/// io_uring with room for `depth` requests. Throws Unavailable where the build, the kernel or its
/// settings have none; a setting that allows it is no proof.
std::unique_ptr<DiskPort> make_uring_port(int depth);

/// pread and pwrite, one after another: the slower way.
std::unique_ptr<DiskPort> make_plain_port();

}  // namespace kuafu::device
