// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "kuafu/base/errors.h"

namespace kuafu {

/// A file that cannot be written through no fault of the call: a full disk, a quota, a limit of a
/// file's size, a device that fails. Says path and cause.
class Unwritten : public ConfigError {
 public:
  using ConfigError::ConfigError;
};

/// Owns an open POSIX file descriptor.
class File {
 public:
  File() = default;
  explicit File(int descriptor) : descriptor_(descriptor) {}
  ~File() { close(); }
  File(File&& other) noexcept : descriptor_(other.release()) {}
  File& operator=(File&& other) noexcept;

  int descriptor() const { return descriptor_; }
  bool is_open() const { return descriptor_ >= 0; }
  int release();
  void close();

 private:
  int descriptor_ = -1;
};

/// "cannot write path: reason" of the current errno, after `before`: Unwritten, or ConfigError where
/// another path would do.
[[noreturn]] void throw_unwritten(const std::string& path, std::string_view before = "");

/// Writes all of `bytes`; throws as throw_unwritten() does.
void write_all(const File& file, std::string_view bytes, const std::string& path);

/// Opens a file that a folder of ours holds, for reading. Throws ConfigError where it cannot, and
/// where it is no file of its own: a link may lead out of the folder, a pipe never ends. `what`
/// names it: "checkpoint file".
File open_own(const std::string& path, std::string_view what);

/// All bytes of an open file, from its beginning.
std::string read_all(const File& file, const std::string& path);

/// Replaces `path` in one step: a temporary beside it, fsync, rename, fsync of the folder. A reader
/// sees the old content or the new, never a part. What is no regular file (/dev/stdout) is written
/// to. Throws as throw_unwritten() does.
void replace_file(const std::string& path, std::string_view bytes);

/// Makes the last rename or creation inside `folder` survive a power cut. Best effort.
void sync_folder(const std::string& folder);

/// Creates `folder` with its parents and proves that files can be written there. Throws ConfigError
/// that names the option with which another one is chosen.
void make_writable_folder(const std::string& folder, std::string_view option = "--out");

/// "path: reason" of the current errno.
std::string system_error(std::string_view what, const std::string& path);

}  // namespace kuafu
