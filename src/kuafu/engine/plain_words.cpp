// SPDX-License-Identifier: Apache-2.0
#include "kuafu/engine/plain_words.h"

#include <c10/util/Exception.h>

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

}  // namespace kuafu
