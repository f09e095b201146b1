// SPDX-License-Identifier: Apache-2.0
#include "kuafu/record/launch_folders.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <set>
#include <string_view>
#include <system_error>
#include <thread>

#include "kuafu/base/errors.h"

namespace kuafu {
namespace {

namespace fs = std::filesystem;

constexpr const char* kName = "kuafu-run-";
constexpr const char* kLock = ".lock";
constexpr const char* kSharedMemory = "/dev/shm";
constexpr const char* kTemporaryVariable = "OMPI_MCA_orte_tmpdir_base";
constexpr const char* kSharedVariable = "OMPI_MCA_btl_vader_backing_directory";

/// Locked by this process, if nobody else has it; a name that was removed meanwhile is no lock.
bool take(const File& lock, const std::string& path) {
  if (!lock.is_open() || ::flock(lock.descriptor(), LOCK_EX | LOCK_NB) != 0) return false;
  struct stat own {
  }, there{};
  return ::fstat(lock.descriptor(), &own) == 0 && ::stat(path.c_str(), &there) == 0 &&
         own.st_ino == there.st_ino && own.st_uid == ::geteuid();
}

/// Removes a folder that a killed launcher may still be writing into: again and again, for at most a
/// second. True where it is gone.
bool remove_whole(const std::string& path) {
  constexpr int kTries = 50;
  constexpr std::chrono::milliseconds kPause(20);
  std::error_code error;
  for (int i = 0; i < kTries; ++i) {
    fs::remove_all(path, error);
    if (!fs::exists(fs::symlink_status(path, error))) return true;
    std::this_thread::sleep_for(kPause);
  }
  return false;
}

/// The folder that a name in `base` stands for, by itself or by its lock; empty: none of ours.
std::string folder_of(const std::string& name) {
  if (!name.starts_with(kName)) return {};
  const bool is_lock = name.ends_with(kLock);
  const std::string folder =
      name.substr(0, name.size() - (is_lock ? std::string_view(kLock).size() : 0));
  const std::string number = folder.substr(std::string_view(kName).size());
  const bool is_number = !number.empty() && std::all_of(number.begin(), number.end(), [](char c) {
    return c >= '0' && c <= '9';
  });
  return is_number ? folder : std::string();
}

bool is_own(const fs::path& path) {
  struct stat s {};
  return ::lstat(path.c_str(), &s) == 0 && s.st_uid == ::geteuid();
}

/// Folders of processes that are gone: their locks can be had, or they have none.
void remove_orphans(const std::string& base) {
  std::error_code error;
  std::set<std::string> folders;
  for (const auto& entry : fs::directory_iterator(base, error)) {
    const std::string folder = folder_of(entry.path().filename().string());
    if (!folder.empty() && is_own(entry.path())) folders.insert(text(base, "/", folder));
  }
  for (const std::string& folder : folders) {
    const std::string path = folder + kLock;
    const File lock(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (!take(lock, path)) continue;
    std::error_code ignored;
    // One that cannot be removed keeps its lock, so that the next run finds it.
    if (remove_whole(folder)) fs::remove(path, ignored);
  }
}

bool is_set(const char* name) { return std::getenv(name) != nullptr; }

/// Makes the folder that a variable of Open MPI names, unless somebody has set it.
void make(std::optional<OwnedFolder>& folder, const std::string& base, const char* variable) {
  if (is_set(variable)) return;
  try {
    folder.emplace(base);
    ::setenv(variable, folder->path().c_str(), 1);
  } catch (const ConfigError&) {  // then it takes its own
  }
}

}  // namespace

OwnedFolder::OwnedFolder(const std::string& base)
    : path_(text(base, "/", kName, ::getpid())), owner_(::getpid()) {
  remove_orphans(base);
  const std::string lock = path_ + kLock;
  // Without O_CLOEXEC: the launcher holds it too, and may outlive a killed parent for a moment.
  lock_ = File(::open(lock.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW, 0600));
  KUAFU_REQUIRE(take(lock_, lock), system_error("lock", lock));
  std::error_code error;
  fs::create_directory(path_, error);
  KUAFU_REQUIRE(!error, "cannot make the folder ", path_, ": ", error.message());
}

OwnedFolder::~OwnedFolder() {
  if (::getpid() != owner_) return;
  std::error_code ignored;
  // While the lock is held: nobody takes what is going away.
  if (remove_whole(path_)) fs::remove(path_ + kLock, ignored);
}

void remove_orphaned_folders() {
  std::error_code error;
  const fs::path temporary = fs::temp_directory_path(error);
  if (!error) remove_orphans(temporary.string());
  if (fs::is_directory(kSharedMemory, error)) remove_orphans(kSharedMemory);
}

bool starts_here() {
  constexpr const char* kElsewhere[] = {"SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "JOB_ID",
                                        "OMPI_MCA_orte_default_hostfile"};
  return std::none_of(std::begin(kElsewhere), std::end(kElsewhere), is_set);
}

LaunchFolders::LaunchFolders() {
  if (!starts_here()) return;
  std::error_code error;
  const fs::path temporary = fs::temp_directory_path(error);
  if (!error) make(temporary_, temporary.string(), kTemporaryVariable);
  if (fs::is_directory(kSharedMemory, error)) make(shared_, kSharedMemory, kSharedVariable);
}

LaunchFolders::~LaunchFolders() {
  if (temporary_) ::unsetenv(kTemporaryVariable);
  if (shared_) ::unsetenv(kSharedVariable);
}

}  // namespace kuafu
