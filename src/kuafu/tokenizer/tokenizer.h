// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kuafu {

/// Whether special tokens are put around a text, and told when tokens become text again.
enum class SpecialTokens : uint8_t { kWithout, kWith };

/// A tokenizer of a Hugging Face `tokenizer.json`: ids and texts are those of the `tokenizers`
/// package. One thread at a time; each thread loads its own.
class Tokenizer {
 public:
  /// Throws ConfigError with file, member, what was given and what is allowed; Unavailable where this
  /// build lacks utf8proc or PCRE2.
  static Tokenizer load(const std::string& path);
  /// The same of the bytes of a file; `name` stands for it in messages.
  static Tokenizer parse(std::string_view bytes, const std::string& name);

  ~Tokenizer();
  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;

  /// The ids of a text. Throws ConfigError where it is no UTF-8, or has what the tokenizer has no
  /// token for, not even an unknown one.
  std::vector<int32_t> encode(std::string_view text,
                              SpecialTokens special = SpecialTokens::kWithout);
  /// The text of ids, without special tokens unless asked for. Throws ConfigError at an id that is
  /// no token.
  std::string decode(std::span<const int32_t> ids,
                     SpecialTokens special = SpecialTokens::kWithout) const;

  /// The largest id and one: the rows of an embedding.
  int64_t vocab_size() const;
  /// The id of a token as the file spells it; none where there is no such token.
  std::optional<int32_t> id_of(std::string_view token) const;

 private:
  struct Parts;
  explicit Tokenizer(std::unique_ptr<Parts> parts);

  std::unique_ptr<Parts> parts_;
};

/// Whether this build has what a Tokenizer needs.
bool has_tokenizers();

}  // namespace kuafu
