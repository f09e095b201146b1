// SPDX-License-Identifier: Apache-2.0
#include "kuafu/engine/plain_words.h"

#include <new>

#include <c10/util/Exception.h>

#include "kuafu/base/errors.h"
#include "kuafu/base/reason.h"

namespace kuafu {

std::string plain_words(const std::exception& error) {
  const auto* of_torch = dynamic_cast<const c10::Error*>(&error);
  if (of_torch == nullptr) {
    const std::string words = reason_of(error);
    return words.empty() ? "the oracle threw an exception without words" : words;
  }
  const std::string words = of_torch->what_without_backtrace();
  return "an error of LibTorch: " + words.substr(0, words.find('\n'));
}

std::string words_of_oracle(const std::exception& error) {
  const std::string words = plain_words(error);
  const bool is_told = dynamic_cast<const Error*>(&error) != nullptr ||
                       dynamic_cast<const std::bad_alloc*>(&error) != nullptr ||
                       words.starts_with("the oracle ");
  return is_told ? words : "the oracle threw: " + words;
}

}  // namespace kuafu
