// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kuafu/tokenizer/characters.h"

namespace kuafu::tokenizer {

/// A stretch of a text that normalizers change and pre-tokenizers split, or a token that was added
/// by hand and is left alone.
struct Piece {
  static constexpr int32_t kNone = -1;

  std::string text;
  /// How many of its first bytes come of the first character of the whole text: 0 says that it does
  /// not begin there, which some parts ask.
  size_t from_start = 0;
  int32_t id = kNone;  ///< of an added token

  bool is_token() const { return id != kNone; }
  bool is_at_start() const { return from_start > 0; }
  /// Bytes [begin, end) as a piece.
  Piece part(size_t begin, size_t end) const;
  /// Puts `prefix` before a text that is not empty.
  void prepend(std::string_view prefix);
};

using Pieces = std::vector<Piece>;

/// Part of a text: what a pattern found, or what lies between two such parts.
struct Span {
  size_t begin = 0, end = 0;
  bool is_match = false;
};

/// What becomes of a delimiter that was found.
enum class Delimiter : uint8_t { kRemoved, kIsolated, kWithPrevious, kWithNext, kContiguous };

/// Spans that cover a text joined as `delimiter` says; removed ones are gone.
std::vector<Span> arranged(std::vector<Span> spans, Delimiter delimiter);

/// Spans of single characters for which `is_delimiter` holds, and of what lies between.
template <class Predicate>
std::vector<Span> spans_of(std::string_view text, const Predicate& is_delimiter) {
  std::vector<Span> spans;
  size_t begin = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t here = at;
    if (!is_delimiter(next_char(text, at))) continue;
    if (begin < here) spans.push_back({begin, here, false});
    spans.push_back({here, at, true});
    begin = at;
  }
  if (begin < text.size()) spans.push_back({begin, text.size(), false});
  return spans;
}

/// Splits every piece that is no token: `split(piece)` gives its spans. Empty pieces vanish.
template <class Split>
void split_pieces(Pieces& pieces, const Split& split) {
  Pieces out;
  out.reserve(pieces.size());
  for (Piece& piece : pieces) {
    if (piece.is_token()) {
      out.push_back(std::move(piece));
      continue;
    }
    const std::vector<Span> spans = split(piece);
    if (spans.size() == 1 && spans[0].begin == 0 && spans[0].end == piece.text.size()) {
      if (!piece.text.empty()) out.push_back(std::move(piece));
      continue;
    }
    for (const Span& span : spans) {
      if (span.begin < span.end) out.push_back(piece.part(span.begin, span.end));
    }
  }
  pieces = std::move(out);
}

}  // namespace kuafu::tokenizer
