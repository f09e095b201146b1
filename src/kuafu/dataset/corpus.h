// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace kuafu {

/// The bytes of a file, or of the text files of a folder tree one after the other, sorted by their
/// path below it (byte order, so that every machine reads the same corpus).
struct Corpus {
  std::string path;
  std::vector<uint8_t> bytes;
  int64_t num_files = 0;
  int64_t num_binary = 0;  ///< files of the tree left out: a zero byte among their first 8 KiB
  std::string hash;        ///< XXH64 of the bytes, 16 hex digits
};

/// Reads a corpus whole. Throws ConfigError: nothing at `path`, neither file nor folder,
/// unreadable, no text in it.
Corpus read_corpus(const std::string& path);

/// Corpora that datasets of one process share: each is read once. May be called by several threads.
class SharedCorpora {
 public:
  /// read_corpus(), or what an earlier call of the same path read.
  std::shared_ptr<const Corpus> read(const std::string& path);

 private:
  std::mutex mutex_;
  std::map<std::string, std::shared_ptr<const Corpus>> by_path_;
};

/// The corpus where data.path is empty: the headers of the LibTorch in `folder`, which differ from
/// version to version. Empty where there is none.
std::string default_corpus(std::string_view folder);

/// Throws ConfigError naming both where a plan's data.hash is given and not the corpus's.
void check_hash(const Corpus& corpus, const std::string& wanted);

}  // namespace kuafu
