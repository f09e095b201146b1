// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <string>

namespace kuafu {

/// What an exception says to a user: of LibTorch's the first line, without the stack it was thrown on.
std::string plain_words(const std::exception& error);

/// The same of one that an oracle threw, which says so where the library did not throw it.
std::string words_of_oracle(const std::exception& error);

/// What is said of an oracle that throws anything else.
inline constexpr const char* kNoException = "the oracle threw something that is no std::exception";

}  // namespace kuafu
