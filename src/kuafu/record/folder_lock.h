// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <string>
#include <string_view>

#include "kuafu/record/files.h"

namespace kuafu {

/// Keeps a folder of results or checkpoints to one runner. The lock ends with the process, however
/// it dies; its file goes with the object, unless the process was killed.
class FolderLock {
 public:
  /// Takes `folder`/lock, waiting up to `patience` for it. Throws ConfigError naming the process
  /// that has it and the option with which another folder is chosen. Where the file system cannot
  /// lock, goes on without and says so in `note`.
  explicit FolderLock(const std::string& folder,
                      std::chrono::milliseconds patience = std::chrono::seconds(3),
                      std::string_view option = "--out");

  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

  /// Empty, or why the folder is not protected.
  const std::string& note() const { return note_; }

 private:
  std::string path_;
  File file_;
  bool is_held_ = false;
  std::string note_;
};

}  // namespace kuafu
