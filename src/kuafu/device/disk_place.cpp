// SPDX-License-Identifier: Apache-2.0
#include "kuafu/device/disk_place.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "kuafu/device/disk.h"

namespace kuafu::device {

namespace {

constexpr int64_t kUsualAlignment = 4096;  // where the kernel is too old to tell

/// A descriptor without a name, or -1 and errno.
int open_unnamed(const std::string& folder, int flags) {
  const int file = ::open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC | flags, 0600);
  // Not all file systems have files without names; old kernels say that the folder is one.
  if (file >= 0 || (errno != EOPNOTSUPP && errno != EISDIR)) return file;
  std::string name = folder + "/.kuafu-tier-XXXXXX";
  const int named = ::mkostemp(name.data(), O_CLOEXEC | flags);
  if (named >= 0) ::unlink(name.c_str());
  return named;
}

}  // namespace

DiskPlace::DiskPlace(const std::string& folder) : folder_(folder) {
  struct statfs system;
  KUAFU_REQUIRE(::statfs(folder.c_str(), &system) == 0, "the disk tier's folder ", folder,
                " cannot be used: ", std::strerror(errno));
  KUAFU_REQUIRE(system.f_type != TMPFS_MAGIC && system.f_type != RAMFS_MAGIC,
                "the disk tier's folder ", folder,
                " lies in memory (tmpfs), which would be booked to nobody; name one on a disk");
  open();
  look_at_alignment();
}

DiskPlace::~DiskPlace() { ::close(file_); }

void DiskPlace::open() {
  alignment_ = kUsualAlignment;
  file_ = open_unnamed(folder_, O_DIRECT);
  if (file_ < 0 && errno == EINVAL) {
    alignment_ = 1;
    file_ = open_unnamed(folder_, 0);
  }
  KUAFU_REQUIRE(file_ >= 0, "no file can be made in the disk tier's folder ", folder_, ": ",
                std::strerror(errno));
}

void DiskPlace::look_at_alignment() {
#ifdef STATX_DIOALIGN
  struct statx told;
  const bool is_told = ::statx(file_, "", AT_EMPTY_PATH, STATX_DIOALIGN, &told) == 0 &&
                       (told.stx_mask & STATX_DIOALIGN) != 0;
  if (!is_direct() || !is_told) return;
  alignment_ = std::max<int64_t>({1, told.stx_dio_mem_align, told.stx_dio_offset_align});
  // 0 is "not for this file", such as one that is encrypted.
  if (!is_direct()) ::fcntl(file_, F_SETFL, ::fcntl(file_, F_GETFL) & ~O_DIRECT);
#endif
}

void DiskPlace::take_space(int64_t bytes) {
  int code = 0;
  do {
    code = ::fallocate(file_, 0, 0, bytes) == 0 ? 0 : errno;
  } while (code == EINTR);
  if (code == EOPNOTSUPP) code = ::ftruncate(file_, bytes) == 0 ? 0 : errno;
  if (code == 0) return;
  const bool is_full = code == ENOSPC || code == EDQUOT || code == EFBIG;
  throw DiskError({.kind = is_full ? DiskError::Kind::kFull : DiskError::Kind::kFailed,
                   .path = folder_,
                   .doing = text("take ", bytes, " bytes"),
                   .system = std::strerror(code)});
}

}  // namespace kuafu::device
