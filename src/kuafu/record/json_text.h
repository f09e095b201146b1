// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "kuafu/record/json.h"

namespace kuafu {

/// Parses JSON that somebody else may have written. Throws ConfigError "byte 12: ..." where it is
/// none, is nested deeper than 64 (comparing and printing a value take a stack frame a level), or
/// holds a number that no double holds.
Json parse_json(std::string_view bytes);

/// Throws ConfigError where brackets outside of strings are nested deeper than parse_json() takes.
void check_json_depth(std::string_view bytes);

/// What a library of JSON threw, without its name for it.
std::string words_of(const Json::exception& error);

/// The first key that an object has twice, with those around it: "tensors.w.dtype"; empty: none. A
/// parsed value has the last of the two alone, and so has a checksum of it. @pre `bytes` is JSON
std::string repeated_key(std::string_view bytes);

/// The value on one line. Text that is no UTF-8 (the last words of a crashed child) gets U+FFFD in
/// its place: a document with a doubtful character is better than none.
std::string json_line(const Json& value);

/// The same over several lines, as documents are written.
std::string json_document(const Json& value);

/// An integer as it is written; none where the value is no integer of 64 bits with a sign: neither
/// 1.0 nor true nor 2^63, which Json would convert.
std::optional<int64_t> whole_number(const Json& value);

/// The first `most` bytes of a value on one line, for messages.
std::string json_excerpt(const Json& value, size_t most = 40);

}  // namespace kuafu
