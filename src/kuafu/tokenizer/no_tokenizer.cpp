// SPDX-License-Identifier: Apache-2.0
#include "kuafu/base/errors.h"
#include "kuafu/tokenizer/tokenizer.h"

namespace kuafu {

struct Tokenizer::Parts {};

namespace {

[[noreturn]] void throw_no_tokenizer() {
  throw Unavailable(
      "this kuafu was built without utf8proc or PCRE2, which tokenizers need; install them "
      "(Debian: "
      "libutf8proc-dev, libpcre2-dev), configure and build again");
}

}  // namespace

Tokenizer::Tokenizer(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}
Tokenizer::~Tokenizer() = default;
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;

Tokenizer Tokenizer::load(const std::string&) { throw_no_tokenizer(); }
Tokenizer Tokenizer::parse(std::string_view, const std::string&) { throw_no_tokenizer(); }
std::vector<int32_t> Tokenizer::encode(std::string_view, SpecialTokens) { throw_no_tokenizer(); }
std::string Tokenizer::decode(std::span<const int32_t>, SpecialTokens) const {
  throw_no_tokenizer();
}
int64_t Tokenizer::vocab_size() const { throw_no_tokenizer(); }
std::optional<int32_t> Tokenizer::id_of(std::string_view) const { throw_no_tokenizer(); }

bool has_tokenizers() { return false; }

}  // namespace kuafu
