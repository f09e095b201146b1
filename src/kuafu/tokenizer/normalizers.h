// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kuafu/tokenizer/component.h"
#include "kuafu/tokenizer/piece.h"
#include "kuafu/tokenizer/text_step.h"

namespace kuafu::tokenizer {

/// What rewrites a text before it is split.
using Normalizer = TextStep<Piece>;

/// The member `normalizer` of a file, with all that it is made of.
StepPtr<Piece> make_normalizer(const Component& part);

/// SentencePiece's rules, compiled into a double array: {"precompiled_charsmap": base64}.
StepPtr<Piece> make_precompiled(const Component& part);

/// Replaces a piece's text by what `write(out, c)` appends for each of its characters.
template <class Write>
void map_chars(Piece& piece, const Write& write) {
  std::string out;
  out.reserve(piece.text.size() + piece.text.size() / 8 + 8);
  size_t from_start = 0;
  for (size_t at = 0; at < piece.text.size();) {
    write(out, next_char(piece.text, at));
    if (at <= piece.from_start) from_start = out.size();
  }
  piece.text = std::move(out);
  piece.from_start = from_start;
}

}  // namespace kuafu::tokenizer
