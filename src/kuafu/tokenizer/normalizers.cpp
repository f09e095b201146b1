// SPDX-License-Identifier: Apache-2.0
#include "kuafu/tokenizer/normalizers.h"

#include <algorithm>
#include <memory>

#include "kuafu/base/errors.h"
#include "kuafu/tokenizer/byte_level.h"
#include "kuafu/tokenizer/characters.h"
#include "kuafu/tokenizer/pattern.h"

namespace kuafu::tokenizer {
namespace {

/// Characters of one cluster count as those of its first: what lies behind a text's first character
/// then begins at its first whole one.
void apply_form(Piece& piece, NormalForm form) {
  size_t from_start = 0;
  if (piece.from_start > 0) {
    from_start = normal_form(piece.text.substr(0, piece.from_start), form).size();
  }
  piece.text = normal_form(piece.text, form);
  from_start = std::min(from_start, piece.text.size());
  while (from_start < piece.text.size() &&
         (static_cast<unsigned char>(piece.text[from_start]) & 0xC0u) == 0x80) {
    ++from_start;
  }
  piece.from_start = from_start;
}

StepPtr<Piece> form_normalizer(const Component& part, NormalForm form) {
  part.allow({});
  return step<Piece>([form](Piece& piece) { apply_form(piece, form); });
}

StepPtr<Piece> lowercase_normalizer(const Component& part) {
  part.allow({});
  return step<Piece>([](Piece& piece) { map_chars(piece, append_lower); });
}

StepPtr<Piece> strip_accents_normalizer(const Component& part) {
  part.allow({});
  return step<Piece>([](Piece& piece) {
    map_chars(piece, [](std::string& out, char32_t c) {
      if (!is_mark(c)) append_char(out, c);
    });
  });
}

void strip(Piece& piece, bool is_left, bool is_right) {
  const std::string_view text = piece.text;
  size_t begin = 0, end = text.size();
  while (is_left && begin < end) {
    size_t behind = begin;
    if (!is_space(next_char(text, behind))) break;
    begin = behind;
  }
  while (is_right && begin < end) {
    const char32_t c = char_before(text, end);
    if (!is_space(c)) break;
    end -= to_utf8(c).size();
  }
  piece = piece.part(begin, end);
}

StepPtr<Piece> strip_normalizer(const Component& part) {
  part.allow({"strip_left", "strip_right"});
  return step<Piece>([is_left = part.at("strip_left").boolean(),
                      is_right = part.at("strip_right").boolean()](Piece& piece) {
    strip(piece, is_left, is_right);
  });
}

StepPtr<Piece> replace_normalizer(const Component& part) {
  part.allow({"pattern", "content"});
  return step<Piece>([pattern = Pattern(part.at("pattern")),
                      content = part.at("content").text()](Piece& piece) {
    std::string out;
    size_t from_start = 0;
    for (const Span& span : pattern.find(piece.text)) {
      out += span.is_match ? std::string_view(content)
                           : std::string_view(piece.text).substr(span.begin, span.end - span.begin);
      if (span.end <= piece.from_start) {
        from_start = out.size();
      } else if (!span.is_match && span.begin < piece.from_start) {
        from_start = out.size() - (span.end - piece.from_start);
      }
    }
    piece.text = std::move(out);
    piece.from_start = from_start;
  });
}

StepPtr<Piece> prepend_normalizer(const Component& part) {
  part.allow({"prepend"});
  return step<Piece>([prefix = part.at("prepend").text()](Piece& piece) { piece.prepend(prefix); });
}

/// As sentencepiece's own rules have it: some controls go, others and marks of width 0 are spaces.
void append_nmt(std::string& out, char32_t c) {
  const bool is_gone = (c >= 0x1 && c <= 0x8) || c == 0xB || (c >= 0xE && c <= 0x1F) || c == 0x7F ||
                       c == 0x8F || c == 0x9F;
  if (is_gone) return;
  const bool is_blank = c == 0x9 || c == 0xA || c == 0xC || c == 0xD || c == 0x1680 ||
                        (c >= 0x200B && c <= 0x200F) || c == 0x2028 || c == 0x2029 || c == 0x2581 ||
                        c == 0xFEFF || c == 0xFFFD;
  append_char(out, is_blank ? U' ' : c);
}

StepPtr<Piece> nmt_normalizer(const Component& part) {
  part.allow({});
  return step<Piece>([](Piece& piece) { map_chars(piece, append_nmt); });
}

StepPtr<Piece> byte_chars_normalizer(const Component& part) {
  part.allow({});
  return step<Piece>([](Piece& piece) {
    map_chars(piece, [](std::string& out, char32_t c) { append_byte_chars(out, to_utf8(c)); });
  });
}

/// What BERT calls Chinese: blocks of ideographs.
bool is_ideograph(char32_t c) {
  return (c >= 0x4E00 && c <= 0x9FFF) || (c >= 0x3400 && c <= 0x4DBF) ||
         (c >= 0x20000 && c <= 0x2A6DF) || (c >= 0x2A700 && c <= 0x2B73F) ||
         (c >= 0x2B740 && c <= 0x2B81F) || (c >= 0x2B920 && c <= 0x2CEAF) ||
         (c >= 0xF900 && c <= 0xFAFF) || (c >= 0x2F800 && c <= 0x2FA1F);
}

void append_clean(std::string& out, char32_t c) {
  const bool is_blank = c == '\t' || c == '\n' || c == '\r';
  if (!is_blank && (c == 0 || c == 0xFFFD || is_control(c))) return;
  append_char(out, is_blank || is_space(c) ? U' ' : c);
}

void append_spaced(std::string& out, char32_t c) {
  const bool is_apart = is_ideograph(c);
  if (is_apart) out += ' ';
  append_char(out, c);
  if (is_apart) out += ' ';
}

StepPtr<Piece> bert_normalizer(const Component& part) {
  part.allow({"clean_text", "handle_chinese_chars", "strip_accents", "lowercase"});
  const bool is_lower = part.at("lowercase").boolean();
  const bool strips = part.boolean("strip_accents", is_lower);
  return step<Piece>([is_lower, strips, cleans = part.at("clean_text").boolean(),
                      spaces = part.at("handle_chinese_chars").boolean()](Piece& piece) {
    if (cleans) map_chars(piece, append_clean);
    if (spaces) map_chars(piece, append_spaced);
    if (strips) {
      apply_form(piece, NormalForm::kD);
      map_chars(piece, [](std::string& out, char32_t c) {
        if (!is_nonspacing(c)) append_char(out, c);
      });
    }
    if (is_lower) map_chars(piece, append_lower);
  });
}

StepPtr<Piece> sequence_normalizer(const Component& part) {
  part.allow({"normalizers"});
  std::vector<StepPtr<Piece>> steps;
  for (const Component& element : part.at("normalizers").elements()) {
    steps.push_back(make_normalizer(element));
  }
  return in_sequence(std::move(steps));
}

struct NormalizerKind {
  const char* name;
  StepPtr<Piece> (*make)(const Component& part);
};

constexpr NormalizerKind kNormalizerKinds[] = {
    {"NFC", [](const Component& part) { return form_normalizer(part, NormalForm::kC); }},
    {"NFD", [](const Component& part) { return form_normalizer(part, NormalForm::kD); }},
    {"NFKC", [](const Component& part) { return form_normalizer(part, NormalForm::kKC); }},
    {"NFKD", [](const Component& part) { return form_normalizer(part, NormalForm::kKD); }},
    {"Lowercase", lowercase_normalizer},
    {"StripAccents", strip_accents_normalizer},
    {"Strip", strip_normalizer},
    {"Replace", replace_normalizer},
    {"Prepend", prepend_normalizer},
    {"Nmt", nmt_normalizer},
    {"ByteLevel", byte_chars_normalizer},
    {"BertNormalizer", bert_normalizer},
    {"Precompiled", make_precompiled},
    {"Sequence", sequence_normalizer}};

}  // namespace

StepPtr<Piece> make_normalizer(const Component& part) {
  std::vector<std::string> names;
  for (const NormalizerKind& kind : kNormalizerKinds) names.emplace_back(kind.name);
  const std::string name = part.kind(names);
  return std::find_if(std::begin(kNormalizerKinds), std::end(kNormalizerKinds),
                      [&](const NormalizerKind& kind) { return name == kind.name; })
      ->make(part);
}

}  // namespace kuafu::tokenizer
