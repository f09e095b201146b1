// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kuafu/dataset/corpus.h"

namespace kuafu {

/// Numbers in a row that windows are cut from: the bytes of a corpus, or its ids under a tokenizer.
class TokenRow {
 public:
  virtual ~TokenRow() = default;
  virtual int64_t size() const = 0;
  /// Appends numbers [start, start + count). @pre they are in the row
  virtual void append(int64_t start, int64_t count, std::vector<int64_t>& out) const = 0;
  /// Where the numbers of the corpus's own validation part begin. @pre corpus.held_out
  virtual int64_t begin_of_validation(const Corpus& corpus) const = 0;
  /// One more than the largest number there can be.
  virtual int64_t vocab() const = 0;
  /// What one number is, for messages: "byte" or "token".
  virtual const char* unit() const = 0;
};

/// Bytes as they are.
class ByteRow final : public TokenRow {
 public:
  explicit ByteRow(std::shared_ptr<const Corpus> corpus) : corpus_(std::move(corpus)) {}

  int64_t size() const override { return static_cast<int64_t>(corpus_->bytes.size()); }
  void append(int64_t start, int64_t count, std::vector<int64_t>& out) const override {
    const uint8_t* bytes = corpus_->bytes.data() + start;
    out.insert(out.end(), bytes, bytes + count);
  }
  int64_t begin_of_validation(const Corpus& corpus) const override { return *corpus.held_out; }
  int64_t vocab() const override { return 256; }
  const char* unit() const override { return "byte"; }

 private:
  std::shared_ptr<const Corpus> corpus_;
};

}  // namespace kuafu
