// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kuafu/dataset/token_row.h"

namespace kuafu {

/// Ids of whole texts, one after the other, and how much of the corpus they are of.
struct TokenShard {
  int64_t begin = 0, end = 0;     ///< bytes of the corpus
  std::vector<int32_t> ids = {};  ///< not negative
};

/// A row of ids in files of one folder, that are mapped and so shared by all processes of a machine.
///
///     FOLDER/NAME/                  NAME: a hash of all that the ids follow from
///       lock                        of the process that makes them
///       tokens-00000.bin            a head of 4,096 bytes: JSON, blanks, a line end; then ids of
///       tokens-00001.bin            2 or 4 bytes, little endian
///
/// A head says format, NAME, bytes of the corpus, count and width of ids, their XXH64 and its own. A shard gets
/// its name by a rename when it is whole and on the disk: a process that was ended goes on behind it.
class TokenFiles final : public TokenRow {
 public:
  struct Source {
    std::string name;        ///< of the folder
    int64_t bytes = 0;       ///< of the corpus
    int64_t vocab = 0;       ///< ids are below
    std::string about = {};  ///< one line of provenance, for people
  };
  /// The next shard: ids of texts from byte `begin` of the corpus on, at least one text.
  using Make = std::function<TokenShard(int64_t begin)>;

  /// Opens what is there, and makes what is not. Of processes that open at once one makes it, and the
  /// others wait. A shard that is damaged is told and made again. Throws what `make` throws; where the
  /// folder cannot be written, ids stay in memory, which `tell` is told.
  TokenFiles(const std::string& folder, Source source, const Make& make,
             const std::function<void(const std::string&)>& tell);
  ~TokenFiles() override;
  TokenFiles(const TokenFiles&) = delete;
  TokenFiles& operator=(const TokenFiles&) = delete;

  int64_t size() const override { return size_; }
  void append(int64_t start, int64_t count, std::vector<int64_t>& out) const override;
  /// @pre a shard begins there
  int64_t begin_of_validation(const Corpus& corpus) const override;
  int64_t vocab() const override { return source_.vocab; }
  const char* unit() const override { return "token"; }

 private:
  class Mapped;
  struct Part;

  void add(std::unique_ptr<Part> part);

  Source source_;
  std::vector<std::unique_ptr<Part>> parts_;
  int64_t size_ = 0;
};

/// Where token files are kept unless somebody says otherwise: KUAFU_CACHE, or kuafu in the user's folder
/// for caches (XDG_CACHE_HOME, ~/.cache); empty where there is none.
std::string cache_folder();

}  // namespace kuafu
