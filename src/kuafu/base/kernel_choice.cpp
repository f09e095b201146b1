// SPDX-License-Identifier: Apache-2.0
#include "kuafu/base/kernel_choice.h"

#include <array>
#include <cstdlib>
#include <string>

#include "kuafu/base/errors.h"
#include "kuafu/base/suggest.h"

namespace kuafu {
namespace {

constexpr std::array kChoices = {KernelChoice::kOwn, KernelChoice::kAten};

}  // namespace

std::string_view to_string(KernelChoice choice) {
  return choice == KernelChoice::kOwn ? "own" : "aten";
}

KernelChoice kernel_choice() {
  const char* given = std::getenv("KUAFU_KERNELS");
  const std::string word = given == nullptr ? "" : given;
  if (word.empty()) return KernelChoice::kOwn;
  std::vector<std::string> words;
  for (const KernelChoice choice : kChoices) {
    if (word == to_string(choice)) return choice;
    words.emplace_back(to_string(choice));
  }
  throw ConfigError(text("KUAFU_KERNELS is ", in_quotes(word), "; it may be ",
                         join_or(in_quotes(words)), ", not set: ", in_quotes(words[0]),
                         "; nearest: ", in_quotes(nearest(word, words))));
}

}  // namespace kuafu
