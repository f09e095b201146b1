// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kuafu/record/json.h"

namespace kuafu::test {

/// A folder of its own under the system's temporary folder, removed at the end.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

/// A whole document of status `ok`: every number a closed form of `ranks` and `tag`.
Json sample_document(int64_t ranks, int64_t tag);

/// The line of a case around a document.
Json sample_case(const std::string& id, const Json& document);

/// The line with so many rounds, all like its document, and their timing.
Json with_rounds(Json line, int64_t rounds);

/// The first line of a record.
Json sample_header(int64_t cases);

std::string read_text(const std::string& path);
void write_text(const std::string& path, const std::string& text);
/// What a folder holds, sorted.
std::vector<std::string> names_in(const std::string& folder);

/// Limits the size of files that this process may write, while it lives: a disk that is full there.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(uint64_t bytes);
  ~FileSizeLimit();

 private:
  uint64_t before_;
  void (*handler_)(int);
};

}  // namespace kuafu::test
