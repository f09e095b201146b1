// SPDX-License-Identifier: Apache-2.0
#include "kuafu/experiment/corpora.h"

#include "kuafu/base/errors.h"
#include "kuafu/dataset/corpus.h"
#include "kuafu/dataset/tokenized.h"

namespace kuafu {

const std::string& Corpora::hash_of(const DataPlan& data) {
  const auto [known, is_new] = hashes_.try_emplace({data.path, data.tokenizer, data.end_token});
  if (!is_new) return known->second;
  try {
    const Corpus corpus = read_corpus(data.path.empty() ? default_corpus_ : data.path);
    known->second = data_hash(corpus, data);
    found_[known->second] = static_cast<int64_t>(corpus.bytes.size());
  } catch (const ConfigError&) {
  }
  return known->second;
}

}  // namespace kuafu
