// SPDX-License-Identifier: Apache-2.0
#include "kuafu/experiment/formula_tokens.h"

#include <cctype>

#include "kuafu/base/errors.h"
#include "kuafu/base/suggest.h"

namespace kuafu::formula {
namespace {

bool is_letter(char c) { return std::isalpha(static_cast<unsigned char>(c)) != 0 || c == '_'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }

class Tokenizer {
 public:
  explicit Tokenizer(const std::string& text) : text_(text) {}

  std::vector<Token> run() {
    std::vector<Token> tokens;
    do tokens.push_back(next());
    while (tokens.back().kind != Token::Kind::kEnd);
    return tokens;
  }

 private:
  char at(size_t i) const { return i < text_.size() ? text_[i] : '\0'; }

  Token next() {
    while (at_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[at_])) != 0) ++at_;
    const size_t begin = at_;
    const auto token = [&](Token::Kind kind) {
      return Token{kind, text_.substr(begin, at_ - begin), begin + 1};
    };
    if (at_ >= text_.size()) return token(Token::Kind::kEnd);
    const char c = text_[at_];
    if (is_digit(c)) {
      skip_number();
      return token(Token::Kind::kNumber);
    }
    if (is_letter(c)) {
      skip_name();
      return token(Token::Kind::kName);
    }
    if (c == '\'' || c == '"' || c == '`') return quoted(c);
    for (const char* sign : {"==", "!=", "<=", ">="}) {
      if (text_.compare(at_, 2, sign) == 0) {
        at_ += 2;
        return token(Token::Kind::kSign);
      }
    }
    if (std::string("+-*/%(),<>=").find(c) == std::string::npos) {
      size_t end = begin + 1;  // of the character in UTF-8
      while (end < text_.size() && (text_[end] & 0xC0) == 0x80) ++end;
      fail(text_, begin + 1,
           kuafu::text("unexpected ", in_quotes(text_.substr(begin, end - begin))));
    }
    ++at_;
    return token(Token::Kind::kSign);
  }

  void skip_digits() {
    while (is_digit(at(at_))) ++at_;
  }

  void skip_number() {
    skip_digits();
    if (at(at_) == '.' && is_digit(at(at_ + 1))) {
      ++at_;
      skip_digits();
    }
    if (at(at_) != 'e' && at(at_) != 'E') return;
    const size_t digits = at_ + (at(at_ + 1) == '+' || at(at_ + 1) == '-' ? 2 : 1);
    if (!is_digit(at(digits))) return;
    at_ = digits;
    skip_digits();
  }

  /// "ledger.*.bytes_sent.0": parts of letters, digits and _, or a star.
  void skip_name() {
    const auto is_inside = [&](size_t i) { return is_letter(at(i)) || is_digit(at(i)); };
    while (is_inside(at_)) ++at_;
    while (at(at_) == '.') {
      if (at(at_ + 1) == '*' && at(at_ + 2) == '.') {
        at_ += 2;
      } else if (is_inside(at_ + 1)) {
        ++at_;
        while (is_inside(at_)) ++at_;
      } else {
        return;
      }
    }
  }

  Token quoted(char quote) {
    const size_t begin = at_, end = text_.find(quote, at_ + 1);
    if (end == std::string::npos) {
      fail(text_, begin + 1, kuafu::text("the ", quote, " has no second one"));
    }
    at_ = end + 1;
    return {quote == '`' ? Token::Kind::kQuotedName : Token::Kind::kText,
            text_.substr(begin + 1, end - begin - 1), begin + 1};
  }

  const std::string& text_;
  size_t at_ = 0;
};

}  // namespace

std::vector<Token> tokens_of(const std::string& text) { return Tokenizer(text).run(); }

void fail(const std::string& text, size_t letter, const std::string& what) {
  throw ConfigError(kuafu::text("formula ", in_quotes(text), ", letter ", letter, ": ", what));
}

}  // namespace kuafu::formula
