// SPDX-License-Identifier: Apache-2.0
#include "kuafu/tokenizer/piece.h"

#include <algorithm>

namespace kuafu::tokenizer {

Piece Piece::part(size_t begin, size_t end) const {
  const size_t behind = from_start > begin ? from_start - begin : 0;
  return {text.substr(begin, end - begin), std::min(behind, end - begin)};
}

void Piece::prepend(std::string_view prefix) {
  if (text.empty()) return;
  text.insert(0, prefix);
  if (from_start > 0) from_start += prefix.size();
}

namespace {

/// A match joins the span before it, in the order of `spans`, unless that is a match too.
template <class Join>
std::vector<Span> joined_to_neighbour(const std::vector<Span>& spans, const Join& join) {
  std::vector<Span> out;
  bool was_match = false;
  for (const Span& span : spans) {
    const bool is_joined = span.is_match && !was_match && !out.empty();
    if (is_joined) {
      join(out.back(), span);
    } else {
      out.push_back(span);
    }
    was_match = span.is_match;
  }
  return out;
}

std::vector<Span> contiguous(const std::vector<Span>& spans) {
  std::vector<Span> out;
  bool was_match = false;
  for (const Span& span : spans) {
    if (span.is_match == was_match && !out.empty()) {
      out.back().end = span.end;
    } else {
      out.push_back(span);
    }
    was_match = span.is_match;
  }
  return out;
}

}  // namespace

std::vector<Span> arranged(std::vector<Span> spans, Delimiter delimiter) {
  switch (delimiter) {
    case Delimiter::kIsolated:
      return spans;
    case Delimiter::kRemoved:
      spans.erase(std::remove_if(spans.begin(), spans.end(),
                                 [](const Span& span) { return span.is_match; }),
                  spans.end());
      return spans;
    case Delimiter::kWithPrevious:
      return joined_to_neighbour(spans, [](Span& to, const Span& span) { to.end = span.end; });
    case Delimiter::kWithNext:
      std::reverse(spans.begin(), spans.end());
      spans = joined_to_neighbour(spans, [](Span& to, const Span& span) { to.begin = span.begin; });
      std::reverse(spans.begin(), spans.end());
      return spans;
    case Delimiter::kContiguous:
      return contiguous(spans);
  }
  return spans;
}

}  // namespace kuafu::tokenizer
