// SPDX-License-Identifier: Apache-2.0
#include "kuafu/record/folder_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <thread>

#include "kuafu/base/errors.h"

namespace kuafu {

namespace {

constexpr std::chrono::milliseconds kPause{50};

/// A killed runner's guard process still holds the lock while it ends the case: worth a short wait.
bool try_lock(const File& file, std::chrono::milliseconds patience) {
  const auto deadline = std::chrono::steady_clock::now() + patience;
  while (::flock(file.descriptor(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return false;
    if (std::chrono::steady_clock::now() >= deadline) {
      errno = EWOULDBLOCK;
      return false;
    }
    std::this_thread::sleep_for(kPause);
  }
  return true;
}

}  // namespace

FolderLock::FolderLock(const std::string& folder, std::chrono::milliseconds patience,
                       std::string_view option) {
  const std::string path = folder + "/lock";
  file_ = File(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
  KUAFU_REQUIRE(file_.is_open(), system_error("open", path));
  if (!try_lock(file_, patience)) {
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
  const std::string process = text(::getpid());
  const bool is_named = ::ftruncate(file_.descriptor(), 0) == 0 &&
                        ::write(file_.descriptor(), process.data(), process.size()) > 0;
  if (!is_named)
    note_ = system_error("name the runner in", path);  // full disk: the lock still holds
}

}  // namespace kuafu
