// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace kuafu::tokenizer {

// Characters that Unicode 15.0 knows and a table of the `tokenizers` package does not: to it they are
// not assigned. A new release of the package may need these anew: tests/tokenizer/equal_test.py
// `characters` looks at every character there is.

bool is_young_punctuation(char32_t c);
bool is_young_format(char32_t c);
bool is_young_mark(char32_t c);
bool is_young_nonspacing(char32_t c);
/// Combines or decomposes by now.
bool has_young_form(char32_t c);

}  // namespace kuafu::tokenizer
