// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <random>
#include <string>

#include "kuafu/device/disk.h"

namespace kuafu::device {

/// What a disk, or the way to it, may do. Those from kFlipWritten on say that all went well.
enum class Fault {
  kShort,        ///< less is done than was asked for, not always whole blocks
  kNothing,      ///< 0 bytes are told
  kInterrupted,  ///< EINTR
  kAgain,        ///< EAGAIN
  kFull,         ///< ENOSPC
  kFailed,       ///< EIO
  kGone,         ///< ENODEV
  kFlipWritten,  ///< a bit that is written is another one
  kFlipRead,     ///< the same of a bit that is read
  kLost,         ///< a write is not made
  kTorn,         ///< a write is made in part
  kKill,         ///< the process is killed
};
constexpr size_t kNumFaults = 12;
std::string to_string(Fault fault);
using FaultCounts = std::array<int64_t, kNumFaults>;

/// Puts faults into what goes through it, drawn by a seed.
struct FaultDraw {
  std::mt19937_64 random;
  double rate = 0;
  int64_t alignment = 512;
  bool is_plain = false;  ///< behind pread and pwrite, whatever else there is
  std::array<std::atomic<int64_t>, kNumFaults> counts = {};  ///< by the disk's thread
};
/// For DiskFile's second constructor; `context` is a FaultDraw.
std::unique_ptr<DiskPort> with_faults(std::unique_ptr<DiskPort> port, void* context);

/// What some cases came to.
struct DiskOutcome {
  FaultCounts faults = {};
  int64_t right = 0;                    ///< reads that gave the bytes last written
  std::array<int64_t, 4> refused = {};  ///< reads and writes with an error, by DiskError::Kind
  std::string wrong;                    ///< the first thing that may not be; empty where nothing
};

/// Case `number` of a seed: a random program of writes and reads of a few chunks in `folder`, of
/// sizes below, at and around multiples of the alignment, with faults; or a child that is killed
/// while it writes. Adds to `outcome`.
void run_disk_case(uint64_t seed, uint64_t number, const std::string& folder, DiskOutcome& outcome);

/// A new folder in the build folder, which is on a disk; removed with what is in it.
class DiskFolder {
 public:
  DiskFolder();
  ~DiskFolder();
  const std::string& path() const { return path_; }
  bool is_empty() const;

 private:
  std::string path_;
};

}  // namespace kuafu::device
