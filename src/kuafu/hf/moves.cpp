// SPDX-License-Identifier: Apache-2.0
//
// Where the elements of a tensor of ours lie in those of theirs.

#include <algorithm>
#include <cstring>

#include "kuafu/base/errors.h"
#include "kuafu/hf/tensors.h"

namespace kuafu::hf {
namespace {

/// Calls move(ours, theirs) with the offsets of every element of a part, in tiles that stay in the
/// cache where the two orders differ.
template <class Move>
void each(const Mapped& t, size_t part, const Move& move) {
  constexpr int64_t kTile = 64;
  const auto parts = static_cast<int64_t>(t.parts.size()), p = static_cast<int64_t>(part);
  const int64_t lines = t.lines(), all = t.places(), places = all / parts;
  const int64_t first = t.parts[part].first, b = t.block;
  int64_t elements = 1;
  for (const int64_t extent : t.theirs) elements *= extent;
  const int64_t stride = elements / lines;  // places of one of their lines
  for (int64_t line0 = 0; line0 < lines; line0 += kTile) {
    for (int64_t place0 = 0; place0 < places; place0 += kTile) {
      for (int64_t line = line0; line < std::min(lines, line0 + kTile); ++line) {
        // Of each place (place / b P + p) b + place % b, without two quotients an element.
        int64_t own = (place0 / b * parts + p) * b + place0 % b, left = b - place0 % b;
        for (int64_t place = place0; place < std::min(places, place0 + kTile); ++place, ++own) {
          if (left-- == 0) {
            own += (parts - 1) * b;
            left = b - 1;
          }
          move(t.along_rows ? own * lines + line : line * all + own,
               t.is_transposed ? (first + place) * lines + line : line * stride + first + place);
        }
      }
    }
  }
}

template <class Element>
void gather_as(const Mapped& t, size_t part, const char* theirs, char* ours) {
  each(t, part, [&](int64_t to, int64_t from) {
    std::memcpy(ours + to * static_cast<int64_t>(sizeof(Element)),
                theirs + from * static_cast<int64_t>(sizeof(Element)), sizeof(Element));
  });
}

template <class Element>
void scatter_as(const Mapped& t, size_t part, const char* ours, char* theirs) {
  each(t, part, [&](int64_t from, int64_t to) {
    std::memcpy(theirs + to * static_cast<int64_t>(sizeof(Element)),
                ours + from * static_cast<int64_t>(sizeof(Element)), sizeof(Element));
  });
}

/// Whether elements lie in the same order on both sides.
bool is_in_order(const Mapped& t) {
  return t.parts.size() == 1 && t.parts[0].first == 0 && !t.is_transposed && !t.along_rows;
}

int64_t bytes_of(const Mapped& t, int64_t bytes) { return t.places() * t.lines() * bytes; }

}  // namespace

int64_t Mapped::places() const { return along_rows || shape.size() == 1 ? shape[0] : shape[1]; }

int64_t Mapped::lines() const {
  int64_t elements = 1;
  for (const int64_t extent : shape) elements *= extent;
  return elements / places();
}

void gather(const Mapped& tensor, size_t part, int64_t bytes, const char* theirs, char* ours) {
  if (is_in_order(tensor)) {
    std::memcpy(ours, theirs, static_cast<size_t>(bytes_of(tensor, bytes)));
    return;
  }
  if (bytes == 8) return gather_as<uint64_t>(tensor, part, theirs, ours);
  if (bytes == 4) return gather_as<uint32_t>(tensor, part, theirs, ours);
  KUAFU_CHECK(bytes == 2, "elements of ", bytes, " bytes");
  gather_as<uint16_t>(tensor, part, theirs, ours);
}

void scatter(const Mapped& tensor, size_t part, int64_t bytes, const char* ours, char* theirs) {
  if (is_in_order(tensor)) {
    std::memcpy(theirs, ours, static_cast<size_t>(bytes_of(tensor, bytes)));
    return;
  }
  if (bytes == 8) return scatter_as<uint64_t>(tensor, part, ours, theirs);
  if (bytes == 4) return scatter_as<uint32_t>(tensor, part, ours, theirs);
  KUAFU_CHECK(bytes == 2, "elements of ", bytes, " bytes");
  scatter_as<uint16_t>(tensor, part, ours, theirs);
}

}  // namespace kuafu::hf
