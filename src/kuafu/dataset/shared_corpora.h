// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "kuafu/dataset/corpus.h"
#include "kuafu/dataset/tokenized.h"

namespace kuafu {

/// Corpora that datasets of one process share: each is read once, and tokenized once. May be called by
/// several threads.
class SharedCorpora {
 public:
  SharedCorpora() : SharedCorpora(Tokenizing{}) {}
  explicit SharedCorpora(Tokenizing tokenizing) : tokenizing_(std::move(tokenizing)) {}

  /// read_corpus(), or what an earlier call of the same path read.
  std::shared_ptr<const Corpus> read(const std::string& path);
  /// tokenized(), or what an earlier call of the same arguments gave.
  std::shared_ptr<const TokenRow> tokens(const Corpus& corpus, const TokenizerFile& tokenizer);

 private:
  Tokenizing tokenizing_;
  std::mutex mutex_;
  std::map<std::string, std::shared_ptr<const Corpus>> by_path_;
  std::map<std::string, std::shared_ptr<const TokenRow>> by_hash_;
};

}  // namespace kuafu
