// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <string>

#include "kuafu/record/files.h"

namespace kuafu {

/// Keeps a results folder to one runner. The lock ends with the process, however it dies.
class FolderLock {
 public:
  /// Takes `folder`/lock, waiting up to `patience` for it. Throws ConfigError naming the process
  /// that has it. Where the file system cannot lock, goes on without and says so in `note`.
  explicit FolderLock(const std::string& folder,
                      std::chrono::milliseconds patience = std::chrono::seconds(3));

  /// Empty, or why the folder is not protected.
  const std::string& note() const { return note_; }

 private:
  File file_;
  std::string note_;
};

}  // namespace kuafu
