// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "kuafu/record/files.h"

namespace kuafu {

/// Keeps a results folder to one runner. The lock ends with the process, however it dies.
class FolderLock {
 public:
  /// Takes `folder`/lock. Throws ConfigError naming the process that has it. Where the file system
  /// cannot lock, goes on without and says so in `note`.
  explicit FolderLock(const std::string& folder);

  /// Empty, or why the folder is not protected.
  const std::string& note() const { return note_; }

 private:
  File file_;
  std::string note_;
};

}  // namespace kuafu
