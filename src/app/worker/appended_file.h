// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "kuafu/record/files.h"

namespace kuafu {

/// A file that grows by whole records: what a full disk cuts off is taken back.
class AppendedFile {
 public:
  /// Goes on behind what the file holds. Throws ConfigError "option: cannot write path: reason".
  AppendedFile(std::string option, std::string path);

  /// The system has it when this returns. Same error.
  void add(std::string_view record);

 private:
  [[noreturn]] void fail(const std::string& why) const;

  std::string option_, path_;
  File file_;
  int64_t bytes_ = 0;  ///< of whole records
};

}  // namespace kuafu
