// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace kuafu::tokenizer {

/// A pattern of Oniguruma with Ruby's syntax as PCRE2 reads it (UTF, UCP, multi-line, newline LF):
/// classes whose characters differ are spelled out. Throws ConfigError at what the two read
/// differently and no tokenizer in use has: (?m), \h, \G, sets inside of sets, {n}?, ...
std::string pcre_pattern(std::string_view pattern);

}  // namespace kuafu::tokenizer
