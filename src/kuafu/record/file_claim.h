// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "kuafu/record/files.h"

namespace kuafu {

/// The right to write one file, while this object and its process live: no other process of this
/// machine gets it. It leaves no trace on the disk, and ends with a process that is killed.
class FileClaim {
 public:
  FileClaim() = default;
  /// `option` is who asks ("--log"). Claims nothing where `path` is empty or there is something that
  /// is no regular file (/dev/null, a pipe). Waits three seconds for a run that just ends. Throws
  /// ConfigError where another one has it still.
  FileClaim(std::string_view option, const std::string& path);

 private:
  File claim_;  ///< a socket that has the file's name
};

}  // namespace kuafu
