// SPDX-License-Identifier: Apache-2.0
#include "kuafu/tokenizer/pre_tokenizers.h"

#include <algorithm>

#include "kuafu/tokenizer/byte_level.h"
#include "kuafu/tokenizer/characters.h"
#include "kuafu/tokenizer/metaspace.h"
#include "kuafu/tokenizer/pattern.h"

namespace kuafu::tokenizer {
namespace {

Delimiter delimiter_of(const Component& part) {
  const std::vector<std::string> words = {"Removed", "Isolated", "MergedWithPrevious",
                                          "MergedWithNext", "Contiguous"};
  const auto found = std::find(words.begin(), words.end(), part.one_of(words));
  return static_cast<Delimiter>(found - words.begin());
}

/// Splits at the characters for which `is_delimiter` holds.
template <class Predicate>
void split_at(Pieces& pieces, const Predicate& is_delimiter, Delimiter delimiter) {
  split_pieces(pieces, [&](const Piece& piece) {
    return arranged(spans_of(piece.text, is_delimiter), delimiter);
  });
}

StepPtr<Pieces> byte_level_splitter(const Component& part) {
  part.allow({"add_prefix_space", "trim_offsets", "use_regex"});
  return step<Pieces>([has_prefix = part.at("add_prefix_space").boolean(),
                       splits = part.boolean("use_regex", true)](Pieces& pieces) {
    for (Piece& piece : pieces) {
      if (has_prefix && !piece.is_token() && !piece.text.starts_with(' ')) piece.prepend(" ");
    }
    if (splits) {
      split_pieces(pieces, [](const Piece& piece) { return gpt2_spans(piece.text); });
    }
    for (Piece& piece : pieces) {
      if (piece.is_token()) continue;
      std::string chars, first;
      append_byte_chars(chars, piece.text);
      append_byte_chars(first, std::string_view(piece.text).substr(0, piece.from_start));
      piece.text = std::move(chars);
      piece.from_start = first.size();
    }
  });
}

StepPtr<Pieces> split_splitter(const Component& part) {
  part.allow({"pattern", "behavior", "invert"});
  return step<Pieces>([pattern = Pattern(part.at("pattern")),
                       delimiter = delimiter_of(part.at("behavior")),
                       is_inverted = part.at("invert").boolean()](Pieces& pieces) {
    split_pieces(pieces, [&](const Piece& piece) {
      std::vector<Span> spans = pattern.find(piece.text);
      for (Span& span : spans) span.is_match = span.is_match != is_inverted;
      return arranged(std::move(spans), delimiter);
    });
  });
}

StepPtr<Pieces> bert_splitter(const Component& part) {
  part.allow({});
  return step<Pieces>([](Pieces& pieces) {
    split_at(pieces, is_space, Delimiter::kRemoved);
    split_at(pieces, is_punctuation, Delimiter::kIsolated);
  });
}

/// Runs of word characters, and runs of what is neither that nor white space.
std::vector<Span> words_of(std::string_view text) {
  enum class Kind { kSpace, kWord, kOther };
  std::vector<Span> spans;
  Kind last = Kind::kSpace;
  for (size_t at = 0; at < text.size();) {
    const size_t here = at;
    const char32_t c = next_char(text, at);
    const Kind kind = is_word(c) ? Kind::kWord : is_space(c) ? Kind::kSpace : Kind::kOther;
    if (kind != Kind::kSpace && kind == last) {
      spans.back().end = at;
    } else if (kind != Kind::kSpace) {
      spans.push_back({here, at, false});
    }
    last = kind;
  }
  return spans;
}

StepPtr<Pieces> whitespace_splitter(const Component& part) {
  part.allow({});
  return step<Pieces>([](Pieces& pieces) {
    split_pieces(pieces, [](const Piece& piece) { return words_of(piece.text); });
  });
}

StepPtr<Pieces> whitespace_split_splitter(const Component& part) {
  part.allow({});
  return step<Pieces>([](Pieces& pieces) { split_at(pieces, is_space, Delimiter::kRemoved); });
}

StepPtr<Pieces> punctuation_splitter(const Component& part) {
  part.allow({"behavior"});
  const Delimiter delimiter =
      part.has("behavior") ? delimiter_of(part.at("behavior")) : Delimiter::kIsolated;
  return step<Pieces>([delimiter](Pieces& pieces) { split_at(pieces, is_punctuation, delimiter); });
}

StepPtr<Pieces> digits_splitter(const Component& part) {
  part.allow({"individual_digits"});
  const Delimiter delimiter =
      part.at("individual_digits").boolean() ? Delimiter::kIsolated : Delimiter::kContiguous;
  return step<Pieces>([delimiter](Pieces& pieces) { split_at(pieces, is_number, delimiter); });
}

StepPtr<Pieces> char_split_splitter(const Component& part) {
  part.allow({"delimiter"});
  return step<Pieces>([delimiter = part.at("delimiter").character()](Pieces& pieces) {
    split_at(
        pieces, [=](char32_t c) { return c == delimiter; }, Delimiter::kRemoved);
  });
}

void replace_spaces(Piece& piece, const std::string& replacement) {
  if (piece.text.find(' ') == std::string::npos) return;
  std::string out;
  size_t from_start = 0;
  for (size_t at = 0; at < piece.text.size(); ++at) {
    if (piece.text[at] == ' ') {
      out += replacement;
    } else {
      out += piece.text[at];
    }
    if (at < piece.from_start) from_start = out.size();
  }
  piece.text = std::move(out);
  piece.from_start = from_start;
}

StepPtr<Pieces> metaspace_splitter(const Component& part) {
  return step<Pieces>([metaspace = Metaspace(part)](Pieces& pieces) {
    using Prepend = Metaspace::Prepend;
    for (Piece& piece : pieces) {
      if (piece.is_token()) continue;
      replace_spaces(piece, metaspace.replacement);
      const bool is_wanted = metaspace.prepend == Prepend::kAlways ||
                             (metaspace.prepend == Prepend::kFirst && piece.is_at_start());
      if (is_wanted && !piece.text.starts_with(metaspace.replacement)) {
        piece.prepend(metaspace.replacement);
      }
    }
    if (!metaspace.splits) return;
    size_t at = 0;
    const char32_t c = next_char(metaspace.replacement, at);
    split_at(
        pieces, [=](char32_t other) { return other == c; }, Delimiter::kWithNext);
  });
}

StepPtr<Pieces> fixed_length_splitter(const Component& part) {
  part.allow({"length"});
  const int64_t length = part.has("length") ? part.at("length").count() : 5;
  if (length == 0) part.at("length").refuse("a whole number from 1 on");
  return step<Pieces>([length](Pieces& pieces) {
    split_pieces(pieces, [length](const Piece& piece) {
      std::vector<Span> spans;
      for (size_t at = 0; at < piece.text.size();) {
        const size_t begin = at;
        for (int64_t i = 0; i < length && at < piece.text.size(); ++i) {
          at += char_bytes(piece.text[at]);
        }
        spans.push_back({begin, at, false});
      }
      return spans;
    });
  });
}

StepPtr<Pieces> sequence_splitter(const Component& part) {
  part.allow({"pretokenizers"});
  std::vector<StepPtr<Pieces>> steps;
  for (const Component& element : part.at("pretokenizers").elements()) {
    steps.push_back(make_pre_tokenizer(element));
  }
  return in_sequence(std::move(steps));
}

struct PreTokenizerKind {
  const char* name;
  StepPtr<Pieces> (*make)(const Component& part);
};

constexpr PreTokenizerKind kPreTokenizerKinds[] = {{"ByteLevel", byte_level_splitter},
                                                   {"Split", split_splitter},
                                                   {"BertPreTokenizer", bert_splitter},
                                                   {"Whitespace", whitespace_splitter},
                                                   {"WhitespaceSplit", whitespace_split_splitter},
                                                   {"Metaspace", metaspace_splitter},
                                                   {"Punctuation", punctuation_splitter},
                                                   {"Digits", digits_splitter},
                                                   {"CharDelimiterSplit", char_split_splitter},
                                                   {"FixedLength", fixed_length_splitter},
                                                   {"Sequence", sequence_splitter}};

}  // namespace

StepPtr<Pieces> make_pre_tokenizer(const Component& part) {
  std::vector<std::string> names;
  for (const PreTokenizerKind& kind : kPreTokenizerKinds) names.emplace_back(kind.name);
  const std::string name = part.kind(names);
  return std::find_if(std::begin(kPreTokenizerKinds), std::end(kPreTokenizerKinds),
                      [&](const PreTokenizerKind& kind) { return name == kind.name; })
      ->make(part);
}

}  // namespace kuafu::tokenizer
