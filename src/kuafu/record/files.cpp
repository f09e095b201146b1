// SPDX-License-Identifier: Apache-2.0
#include "kuafu/record/files.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "kuafu/base/errors.h"

namespace kuafu {

File& File::operator=(File&& other) noexcept {
  if (this != &other) {
    close();
    descriptor_ = other.release();
  }
  return *this;
}

int File::release() { return std::exchange(descriptor_, -1); }

void File::close() {
  if (is_open()) ::close(release());
}

std::string system_error(std::string_view what, const std::string& path) {
  const int code = errno;
  return text("cannot ", what, " ", path, ": ", std::strerror(code));
}

void throw_unwritten(const std::string& path, std::string_view before) {
  const int code = errno;
  const std::string why = text(before, "cannot write ", path, ": ", std::strerror(code));
  const auto is_lack = {ENOSPC, EDQUOT, EFBIG, EIO};
  if (std::find(is_lack.begin(), is_lack.end(), code) != is_lack.end()) throw Unwritten(why);
  throw ConfigError(why);
}

void write_all(const File& file, std::string_view bytes, const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(file.descriptor(), bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw_unwritten(path);
    bytes.remove_prefix(static_cast<size_t>(n));
  }
}

File open_own(const std::string& path, std::string_view what) {
  File file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  KUAFU_REQUIRE(file.is_open() || errno != ELOOP, "the ", what, " ", path,
                " is a link; allowed: a file that lies in the folder itself");
  KUAFU_REQUIRE(file.is_open(), system_error(text("open the ", what), path));
  struct stat status = {};
  KUAFU_REQUIRE(::fstat(file.descriptor(), &status) == 0, system_error("look at", path));
  KUAFU_REQUIRE(S_ISREG(status.st_mode), "the ", what, " ", path,
                " is no regular file but a folder, a pipe or a device");
  return file;
}

std::string read_all(const File& file, const std::string& path) {
  constexpr size_t kPart = size_t{1} << 20;
  std::string bytes;
  while (true) {
    const size_t begin = bytes.size();
    bytes.resize(begin + kPart);
    const ssize_t n =
        ::pread(file.descriptor(), bytes.data() + begin, kPart, static_cast<off_t>(begin));
    KUAFU_REQUIRE(n >= 0, system_error("read", path));
    bytes.resize(begin + static_cast<size_t>(n));
    if (n == 0) return bytes;
  }
}

namespace {

constexpr std::string_view kTemporary = ".new";

/// Temporaries of `path` whose writers were killed: nobody holds them, and they are not being made.
void remove_orphans(const std::string& path) {
  namespace fs = std::filesystem;
  constexpr std::chrono::seconds kJustMade{2};
  const fs::path whole(path);
  const std::string name = whole.filename().string() + ".";
  std::error_code error;
  const fs::path folder = whole.has_parent_path() ? whole.parent_path() : fs::path(".");
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const std::string other = entry.path().filename().string();
    if (!other.starts_with(name) || !other.ends_with(kTemporary)) continue;
    const size_t end = other.size() - kTemporary.size();
    if (other.find_first_not_of("0123456789", name.size()) != end) continue;  // somebody else's
    const auto written = fs::last_write_time(entry.path(), error);
    if (error || fs::file_time_type::clock::now() - written < kJustMade) continue;
    const File file(::open(entry.path().c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
    if (file.is_open() && ::flock(file.descriptor(), LOCK_EX | LOCK_NB) == 0)
      fs::remove(entry.path(), error);
  }
}

}  // namespace

void replace_file(const std::string& path, std::string_view bytes) {
  std::error_code unknown;
  if (std::filesystem::exists(path, unknown) && !std::filesystem::is_regular_file(path, unknown)) {
    const File device(
        ::open(path.c_str(), O_WRONLY | O_CLOEXEC));  // /dev/null, /dev/stdout, a pipe
    if (!device.is_open()) throw_unwritten(path);
    return write_all(device, bytes, path);
  }
  remove_orphans(path);
  const std::string temporary = text(path, ".", ::getpid(), kTemporary);
  try {
    const File file(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
    if (!file.is_open()) throw_unwritten(path);
    ::flock(file.descriptor(), LOCK_EX | LOCK_NB);  // while it is held, it is no orphan
    write_all(file, bytes, path);
    if (::fsync(file.descriptor()) != 0) throw_unwritten(path);
    if (::rename(temporary.c_str(), path.c_str()) != 0) throw_unwritten(path);
  } catch (const Error&) {
    ::unlink(temporary.c_str());
    throw;
  }
  sync_folder(std::filesystem::path(path).parent_path().string());
}

void sync_folder(const std::string& folder) {
  const File file(
      ::open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (file.is_open()) ::fsync(file.descriptor());  // some file systems cannot: nothing to do then
}

void make_writable_folder(const std::string& folder, std::string_view option) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error == std::errc::no_space_on_device) {
    throw Unwritten(text("cannot make the folder ", folder, ": ", error.message()));
  }
  KUAFU_REQUIRE(std::filesystem::is_directory(folder), "cannot make the folder ", folder, ": ",
                error ? error.message() : "a file of that name is in the way",
                "; choose another one with ", option);
  const std::string probe = folder + "/.probe";
  const File file(::open(probe.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (!file.is_open() && errno == ENOSPC) throw_unwritten(probe);
  KUAFU_REQUIRE(file.is_open(), system_error("write in the folder", folder),
                "; choose another one with ", option);
  ::unlink(probe.c_str());
}

}  // namespace kuafu
