// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kuafu {

/// One text file of a corpus.
struct CorpusFile {
  std::string path;
  int64_t begin = 0;  ///< of its bytes among the corpus's
};

/// The bytes of a file, or of the text files of a folder tree one after the other, sorted by their
/// path below it (byte order, so that every machine reads the same corpus). Of a folder of WikiText, which
/// has wiki.train.tokens and wiki.valid.tokens (or .raw), those two, in that order.
struct Corpus {
  std::string path;
  std::vector<uint8_t> bytes;
  std::vector<CorpusFile> files;  ///< in the order of their bytes, empty ones too
  int64_t num_binary = 0;  ///< files of the tree left out: a zero byte among their first 8 KiB
  /// The first byte of its own validation part; none: a share of the whole is held out.
  std::optional<int64_t> held_out = {};
  std::string hash;  ///< 16 hex digits: XXH64 of the bytes, and of where a part of its own begins
};

/// Reads a corpus whole. Throws ConfigError: nothing at `path`, neither file nor folder,
/// unreadable, no text in it, WikiText in both forms.
Corpus read_corpus(const std::string& path);

/// The corpus where data.path is empty: the headers of the LibTorch in `folder`, which differ from
/// version to version. Empty where there is none.
std::string default_corpus(std::string_view folder);

/// Throws ConfigError naming both where a plan's data.hash is given and is not `found`, that of a
/// corpus.
void check_hash(const Corpus& corpus, const std::string& found, const std::string& wanted);

}  // namespace kuafu
