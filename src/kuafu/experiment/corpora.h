// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <utility>

#include "kuafu/plan/plan.h"

namespace kuafu {

/// What corpora hold, each read once.
class Corpora {
 public:
  explicit Corpora(std::string default_corpus) : default_corpus_(std::move(default_corpus)) {}

  /// What data.hash is of these data; empty where they cannot be read: the worker says why.
  const std::string& hash_of(const DataPlan& data);

  /// Bytes by hash.
  const std::map<std::string, int64_t>& found() const { return found_; }

 private:
  std::string default_corpus_;
  /// By path, tokenizer and the token behind each file.
  std::map<std::tuple<std::string, std::string, std::string>, std::string> hashes_;
  std::map<std::string, int64_t> found_;
};

}  // namespace kuafu
