// SPDX-License-Identifier: Apache-2.0
#include "app/worker/appended_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "kuafu/base/errors.h"

namespace kuafu {

AppendedFile::AppendedFile(std::string option, std::string path)
    : option_(std::move(option)),
      path_(std::move(path)),
      file_(::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644)) {
  if (!file_.is_open()) fail(system_error("write", path_));
  bytes_ = std::max<int64_t>(::lseek(file_.descriptor(), 0, SEEK_END), 0);  // a pipe has no end
}

void AppendedFile::add(std::string_view record) {
  try {
    write_all(file_, record, path_);
  } catch (const ConfigError& e) {
    // What is no file (a device, a pipe) cannot be cut: its reader sees that the record has no end.
    [[maybe_unused]] const int ignored = ::ftruncate(file_.descriptor(), bytes_);
    fail(e.what());
  }
  bytes_ += static_cast<int64_t>(record.size());
}

void AppendedFile::fail(const std::string& why) const {
  throw ConfigError(text(option_, ": ", why));
}

}  // namespace kuafu
