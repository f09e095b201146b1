// SPDX-License-Identifier: Apache-2.0
#include "kuafu/experiment/corpora.h"

#include "kuafu/base/errors.h"
#include "kuafu/dataset/corpus.h"

namespace kuafu {

const std::string& Corpora::hash_of(const std::string& path) {
  const auto [known, is_new] = hashes_.try_emplace(path);
  if (!is_new) return known->second;
  try {
    const Corpus corpus = read_corpus(path.empty() ? default_corpus_ : path);
    known->second = corpus.hash;
    found_[corpus.hash] = static_cast<int64_t>(corpus.bytes.size());
  } catch (const ConfigError&) {
  }
  return known->second;
}

}  // namespace kuafu
