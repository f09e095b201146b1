// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "kuafu/base/errors.h"
#include "kuafu/device/clock.h"
#include "kuafu/device/disk_port.h"
#include "kuafu/device/token_bucket.h"

namespace kuafu::device {

/// A chunk on the disk tier that cannot be written or read. What the system said is in `system`.
class DiskError : public Error {
 public:
  enum class Kind {
    kFull,      ///< the disk, a quota or a limit of a file's size
    kVanished,  ///< the device or the end of the file is gone
    kCorrupt,   ///< read, but not the bytes that were written
    kFailed,    ///< anything else that the system says
  };
  /// What happened where.
  struct Fields {
    Kind kind = Kind::kFailed;
    std::string path, doing;
    int64_t chunk = 0, offset = 0;  ///< offset in the file
    std::string system;
  };
  explicit DiskError(Fields fields_);
  const Fields fields;
};
std::string to_string(DiskError::Kind kind);

struct DiskOptions {
  std::string folder;       ///< where the user wants it; must be there
  int64_t chunk_bytes = 0;  ///< the most bytes of a chunk
  int64_t num_chunks = 0;
  int64_t piece_bytes = 1 << 20;          ///< of one request; rounded up to the alignment
  int depth = 8;                          ///< requests at once
  std::optional<double> gbs = {};         ///< rate, reading and writing together; none: no throttle
  std::shared_ptr<SharedLink> link = {};  ///< what it is held to with other files; null: alone
  Clock* clock = nullptr;                 ///< null: the machine's
};

struct DiskStats {
  int64_t read = 0, written = 0;  ///< bytes of chunks, without padding
  int64_t busy_ns = 0;            ///< time in which something was under way
  int64_t continued = 0;          ///< requests made again: interrupted, or answered in part
};

/// Chunks in a file without a name, which is gone when its process is, however that ends. Requests
/// are made in order on a thread of their own, several chunks at once, but one after another for
/// each chunk. Reads give the bytes last written, or an error: each piece has a checksum in memory.
/// Used by one thread. Destroying it ends after what is under way and drops what is not.
class DiskFile {
 public:
  using Ticket = int64_t;

  /// The file has its full size from the beginning, so that a disk that is too small is told here.
  /// Throws ConfigError where the folder is of no use (tmpfs is memory, not a tier below it), and
  /// DiskError of kFull.
  explicit DiskFile(const DiskOptions& options);
  /// The same behind another port, for tests: `wrap` gets the one that would serve.
  using Wrap = std::unique_ptr<DiskPort> (*)(std::unique_ptr<DiskPort> port, void* context);
  DiskFile(const DiskOptions& options, Wrap wrap, void* context);
  ~DiskFile();
  DiskFile(const DiskFile&) = delete;
  DiskFile& operator=(const DiskFile&) = delete;

  /// Asks for a chunk to be written, and comes back at once. `bytes` stay as they are until it is
  /// done. Memory that is aligned to alignment() is written from where it lies.
  Ticket write(int64_t chunk, std::span<const std::byte> bytes);

  /// The same for a read of all that was last written. @pre as many bytes as were.
  Ticket read(int64_t chunk, std::span<std::byte> bytes);

  /// Blocks until a request is done. Throws DiskError; of a read too where the last write failed,
  /// and InternalError where there was none.
  void wait(Ticket ticket);
  bool is_done(Ticket ticket);

  DiskStats stats();
  int64_t alignment() const;
  /// How it works here, for people: "io_uring, O_DIRECT, alignment 512", or why it is slower.
  const std::string& how() const;

 private:
  class Worker;
  std::unique_ptr<Worker> worker_;
};

}  // namespace kuafu::device
