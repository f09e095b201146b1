// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

namespace kuafu::device {

/// An open file without a name in a folder: nothing is left of it when the process ends,
/// however that happens. Where the file system knows only files with names, it loses its name at
/// once; a process that is killed between the two calls leaves an empty file.
class DiskPlace {
 public:
  /// Throws ConfigError where the folder is of no use.
  explicit DiskPlace(const std::string& folder);
  ~DiskPlace();
  DiskPlace(const DiskPlace&) = delete;
  DiskPlace& operator=(const DiskPlace&) = delete;

  /// Gives the file its size, and the disk's promise of it. Throws DiskError, of kFull where there
  /// is less.
  void take_space(int64_t bytes);

  int file() const { return file_; }
  /// Of memory, offsets and sizes: what O_DIRECT asks for; 1 where there is none.
  int64_t alignment() const { return alignment_; }
  bool is_direct() const { return alignment_ > 1; }

 private:
  void open();
  void look_at_alignment();

  const std::string folder_;
  int file_ = -1;
  int64_t alignment_ = 1;
};

}  // namespace kuafu::device
