// SPDX-License-Identifier: Apache-2.0
#include "kuafu/dataset/shared_corpora.h"

namespace kuafu {

std::shared_ptr<const Corpus> SharedCorpora::read(const std::string& path) {
  const std::lock_guard lock(mutex_);
  std::shared_ptr<const Corpus>& corpus = by_path_[path];
  if (corpus == nullptr) corpus = std::make_shared<const Corpus>(read_corpus(path));
  return corpus;
}

std::shared_ptr<const TokenRow> SharedCorpora::tokens(const Corpus& corpus,
                                                      const TokenizerFile& tokenizer) {
  const std::lock_guard lock(mutex_);
  std::shared_ptr<const TokenRow>& row = by_hash_[hash_of_tokens(corpus, tokenizer)];
  if (row == nullptr) row = tokenized(corpus, tokenizer, tokenizing_);
  return row;
}

}  // namespace kuafu
