// SPDX-License-Identifier: Apache-2.0
#define PCRE2_CODE_UNIT_WIDTH 8
#include "kuafu/tokenizer/regex.h"

#include <pcre2.h>

#include "kuafu/base/errors.h"
#include "kuafu/tokenizer/characters.h"
#include "kuafu/tokenizer/regex_syntax.h"

namespace kuafu::tokenizer {
namespace {

std::string words_of(int code) {
  PCRE2_UCHAR words[256] = {};
  pcre2_get_error_message(code, words, sizeof(words));
  return reinterpret_cast<const char*>(words);
}

}  // namespace

struct Regex::Compiled {
  template <auto release>
  struct Releases {
    template <class T>
    void operator()(T* p) const {
      release(p);
    }
  };

  std::unique_ptr<pcre2_code, Releases<pcre2_code_free>> code;
  std::unique_ptr<pcre2_match_data, Releases<pcre2_match_data_free>> match;
  std::unique_ptr<pcre2_match_context, Releases<pcre2_match_context_free>> context;
  std::unique_ptr<pcre2_jit_stack, Releases<pcre2_jit_stack_free>> stack;
};

Regex::Regex(std::string_view pattern) : compiled_(std::make_unique<Compiled>()) {
  const std::string ours = pcre_pattern(pattern);
  const std::unique_ptr<pcre2_compile_context, Compiled::Releases<pcre2_compile_context_free>>
      context(pcre2_compile_context_create(nullptr));
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  int error = 0;
  PCRE2_SIZE where = 0;
  compiled_->code.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(ours.data()), ours.size(),
                                      PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE, &error, &where,
                                      context.get()));
  KUAFU_REQUIRE(compiled_->code != nullptr,
                "no regular expression that is understood: ", words_of(error));
  compiled_->match.reset(pcre2_match_data_create_from_pattern(compiled_->code.get(), nullptr));
  compiled_->context.reset(pcre2_match_context_create(nullptr));
  if (pcre2_jit_compile(compiled_->code.get(), PCRE2_JIT_COMPLETE) != 0) return;  // interpreted
  constexpr size_t kFirstBytes = 32 << 10, kMostBytes = 8 << 20;
  compiled_->stack.reset(pcre2_jit_stack_create(kFirstBytes, kMostBytes, nullptr));
  pcre2_jit_stack_assign(compiled_->context.get(), nullptr, compiled_->stack.get());
}

Regex::~Regex() = default;
Regex::Regex(Regex&&) noexcept = default;
Regex& Regex::operator=(Regex&&) noexcept = default;

/// An empty match right behind another one is none: the search goes on a character later.
std::vector<Span> Regex::find(std::string_view text) const {
  std::vector<Span> spans;
  const auto* const subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  size_t covered = 0;
  bool has_match = false;
  for (size_t at = 0; at <= text.size() && !text.empty();) {
    const int found =
        pcre2_match(compiled_->code.get(), subject, text.size(), at, PCRE2_NO_UTF_CHECK,
                    compiled_->match.get(), compiled_->context.get());
    if (found == PCRE2_ERROR_NOMATCH) break;
    KUAFU_REQUIRE(found > 0, "a regular expression of the tokenizer gives up on a text of ",
                  text.size(), " bytes: ", words_of(found));
    const PCRE2_SIZE* const ends = pcre2_get_ovector_pointer(compiled_->match.get());
    const size_t begin = ends[0], end = ends[1];
    if (begin >= end && has_match && end == covered) {
      if (end >= text.size()) break;
      at = end + char_bytes(text[end]);
      continue;
    }
    if (covered < begin) spans.push_back({covered, begin, false});
    spans.push_back({begin, end, true});
    has_match = true;
    covered = at = end;
  }
  if (covered < text.size()) spans.push_back({covered, text.size(), false});
  return spans;
}

}  // namespace kuafu::tokenizer
