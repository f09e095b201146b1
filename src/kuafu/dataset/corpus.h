// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace kuafu {

/// The bytes of a file, or of the text files of a folder tree one after the other, sorted by their
/// path below it (byte order, so that every machine reads the same corpus).
struct Corpus {
  std::string path;
  std::vector<uint8_t> bytes;
  int64_t num_files = 0;
  int64_t num_binary = 0;  ///< files of the tree left out: a zero byte among their first 8 KiB
};

/// Reads a corpus whole. Throws ConfigError: nothing at `path`, neither file nor folder,
/// unreadable, no text in it.
Corpus read_corpus(const std::string& path);

}  // namespace kuafu
