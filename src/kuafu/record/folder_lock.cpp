// SPDX-License-Identifier: Apache-2.0
#include "kuafu/record/folder_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <thread>

#include "kuafu/base/errors.h"

namespace kuafu {

namespace {

constexpr std::chrono::milliseconds kPause{50};

/// Whether `path` still names the open file: its owner removes it when it ends.
bool is_still_there(const File& file, const std::string& path) {
  struct stat own {
  }, there{};
  return ::fstat(file.descriptor(), &own) == 0 && ::stat(path.c_str(), &there) == 0 &&
         own.st_dev == there.st_dev && own.st_ino == there.st_ino;
}

File open_lock(const std::string& path) {
  File file(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644));
  KUAFU_REQUIRE(file.is_open(), system_error("open", path));
  return file;
}

/// A killed runner's guard process still holds the lock while it ends the case: worth a short wait.
bool try_lock(File& file, const std::string& path, std::chrono::milliseconds patience) {
  const auto deadline = std::chrono::steady_clock::now() + patience;
  while (true) {
    if (::flock(file.descriptor(), LOCK_EX | LOCK_NB) == 0) {
      if (is_still_there(file, path)) return true;
      file = open_lock(path);  // locked what its last owner has just removed
      continue;
    }
    if (errno != EWOULDBLOCK) return false;
    if (std::chrono::steady_clock::now() >= deadline) {
      errno = EWOULDBLOCK;
      return false;
    }
    std::this_thread::sleep_for(kPause);
  }
}

}  // namespace

FolderLock::FolderLock(const std::string& folder, std::chrono::milliseconds patience,
                       std::string_view option)
    : path_(folder + "/lock"), file_(open_lock(path_)) {
  if (!try_lock(file_, path_, patience)) {
    const int reason = errno;
    if (reason == EWOULDBLOCK) {
      char owner[32] = {};
      const ssize_t n = ::read(file_.descriptor(), owner, sizeof owner - 1);
      throw ConfigError(text("another runner ", n > 0 ? text("(process ", owner, ") ") : "",
                             "works in ", folder, "; wait for it, or choose another folder with ",
                             option));
    }
    note_ = text("the file system of ", folder, " cannot lock (", std::strerror(reason),
                 "): start no second runner there");
    return;
  }
  is_held_ = true;
  const std::string process = text(::getpid());
  const bool is_named = ::ftruncate(file_.descriptor(), 0) == 0 &&
                        ::write(file_.descriptor(), process.data(), process.size()) > 0;
  if (!is_named)
    note_ = system_error("name the runner in", path_);  // full disk: the lock still holds
}

FolderLock::~FolderLock() {
  if (is_held_) ::unlink(path_.c_str());  // before the lock is given up: the next one makes its own
}

}  // namespace kuafu
