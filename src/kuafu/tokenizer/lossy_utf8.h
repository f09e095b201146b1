// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace kuafu::tokenizer {

/// The bytes with U+FFFD in the place of each longest part that could begin a character and does not
/// go on as one (Unicode's recommended practice).
std::string lossy_utf8(std::string_view bytes);

}  // namespace kuafu::tokenizer
