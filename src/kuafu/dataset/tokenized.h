// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "kuafu/dataset/corpus.h"
#include "kuafu/dataset/pairs.h"
#include "kuafu/dataset/token_row.h"
#include "kuafu/plan/plan.h"

namespace kuafu {

/// A tokenizer.json that was read, and the token that stands behind each file of a corpus.
struct TokenizerFile {
  std::string path;
  std::string bytes;
  std::string end_token = {};  ///< as the file spells it; empty = none
};

/// Reads the tokenizer of data.tokenizer. Throws ConfigError where it cannot.
TokenizerFile read_tokenizer(const std::string& path, const std::string& end_token);

/// The id of its end_token. Throws ConfigError where it is no token. @pre it has one
int64_t end_token_of(const TokenizerFile& tokenizer);

/// What the tokenizer puts around pairs of texts and where a token is hidden; none where it lacks one
/// of the three.
std::optional<PairIds> pair_ids_of(const TokenizerFile& tokenizer);

/// 16 hex digits of all that the ids of a corpus follow from: its bytes, where its files begin, the
/// tokenizer and the token behind each file.
std::string hash_of_tokens(const Corpus& corpus, const TokenizerFile& tokenizer);
/// What data.hash is: the corpus's, or hash_of_tokens() where the plan has a tokenizer, which is read.
std::string data_hash(const Corpus& corpus, const DataPlan& data);

/// How ids are made.
struct Tokenizing {
  std::string folder;              ///< where they are kept; empty = in memory
  int64_t shard_bytes = 64 << 20;  ///< of the corpus, that a file of ids is of at least
  int64_t text_bytes = 16 << 20;   ///< from where on a file of the corpus is cut into texts
  /// Is told what takes long and what is unusual.
  std::function<void(const std::string&)> tell = [](const std::string&) {};
};

/// The ids of a corpus: of each file as one text, as `kuafu tokenize --whole` has them; a file that is
/// longer than `text_bytes` is cut behind the first line end from there on. Throws ConfigError: the
/// tokenizer cannot be read or lacks `end_token`, a file is no UTF-8 (with its path).
std::shared_ptr<const TokenRow> tokenized(const Corpus& corpus, const TokenizerFile& tokenizer,
                                          const Tokenizing& how);

}  // namespace kuafu
