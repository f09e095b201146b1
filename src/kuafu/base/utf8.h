// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace kuafu {

/// Whether bytes are UTF-8 (RFC 3629): no stray or missing continuation, no overlong form, no
/// surrogate, nothing above U+10FFFF.
bool is_utf8(std::string_view bytes);

/// The bytes with U+FFFD in the place of each that is no part of a character: what a message may
/// quote, whatever a file or the command line holds.
std::string as_utf8(std::string_view bytes);

/// At most `most` bytes of a text, cut between two characters.
std::string_view utf8_prefix(std::string_view text, size_t most);

}  // namespace kuafu
