// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "kuafu/base/errors.h"

namespace kuafu {

/// What a user whose run diverges may do, behind every cause.
inline constexpr std::string_view kDivergenceAdvice =
    ": training diverged; lower optimizer.lr or raise optimizer.warmup";

/// The cause alone: a certificate may find that training is not at fault.
inline std::string cause_of(const Diverged& why) {
  const std::string_view words = why.what();
  return std::string(words.substr(0, words.find(kDivergenceAdvice)));
}

}  // namespace kuafu
