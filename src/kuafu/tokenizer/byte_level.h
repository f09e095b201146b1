// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "kuafu/tokenizer/piece.h"

namespace kuafu::tokenizer {

/// GPT-2's alphabet: every byte as a character that prints. Appends those of `bytes`.
void append_byte_chars(std::string& out, std::string_view bytes);

/// Appends the bytes that the characters of `token` stand for; false, and nothing, where one of them
/// stands for none.
bool append_char_bytes(std::string& out, std::string_view token);

/// GPT-2's split, by hand: contractions, words, numbers and the rest with the space before them, and
/// white space of which the last character goes to what follows.
std::vector<Span> gpt2_spans(std::string_view text);

}  // namespace kuafu::tokenizer
