// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>

namespace kuafu {

/// What corpora hold, each read once.
class Corpora {
 public:
  explicit Corpora(std::string default_corpus) : default_corpus_(std::move(default_corpus)) {}

  /// Hash of the bytes of data.path; empty where they cannot be read: the worker says why.
  const std::string& hash_of(const std::string& path);

  /// Bytes by hash.
  const std::map<std::string, int64_t>& found() const { return found_; }

 private:
  std::string default_corpus_;
  std::map<std::string, std::string> hashes_;  ///< by path
  std::map<std::string, int64_t> found_;
};

}  // namespace kuafu
